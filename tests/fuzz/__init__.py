"""Random networks: each is data, drawn from a seed, lowered, held to what must hold, and made small where it
fails. `python -m tests.fuzz --count 100 --seed 0 --target xnnpack` runs them.
"""

from tests.fuzz.description import MISFIT as _MISFIT
from tests.fuzz.description import (
    TOLERANCE,
    Case,
    Given,
    Step,
    given,
    is_sound,
    pruned,
    relative_error,
    run,
    run_calls,
)
from tests.fuzz.drawing import _shape, captured, generate
from tests.fuzz.examining import Physical, examine, refusing
from tests.fuzz.outcome import Outcome
from tests.fuzz.scripts import script
from tests.fuzz.shrinking import shrink

__all__ = [
    "TOLERANCE",
    "_MISFIT",
    "Case",
    "Given",
    "Outcome",
    "Physical",
    "Step",
    "_shape",
    "captured",
    "examine",
    "generate",
    "given",
    "is_sound",
    "pruned",
    "refusing",
    "relative_error",
    "run",
    "run_calls",
    "script",
    "shrink",
]
