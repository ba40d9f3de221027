"""Laws are tested without a deadline: the first call of torch may take longer than any."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
