"""The command line: `dimorder lower | run | plan | explain | check`. See `commands` for what each does."""

from dimorder.cli.commands import main

__all__ = ["main"]
