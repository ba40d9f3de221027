"""Build `dimorder-run` once for the tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device import emulation


@pytest.fixture(scope="session")
def runner() -> Path:
    """The path of `dimorder-run` for this machine; what is built stays in `build/device`."""
    if reason := emulation.missing(emulation.HOST):
        pytest.skip(reason)
    return emulation.built()
