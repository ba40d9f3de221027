"""The tables that the C++ loader shares with Python are Python's."""

from __future__ import annotations

import pytest

pytest.importorskip("executorch")

from tests.device.native_tables import PATH, native_tables


def test_the_header_is_what_python_writes() -> None:
    assert PATH.read_text() == native_tables(), "run python -m tests.device.native_tables"
