"""Test what the benchmark of decoders says of its rows, and that it measures a tiny decoder."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import decoders
from benchmarks.decoder_ways import OURS


def row(ours: dict[str, Any], stock: dict[str, Any]) -> dict[str, Any]:
    kept = {"file_bytes": 100, decoders.PROMPT: [4.0] * 9, decoders.STEPS: [8.0] * 9}
    ways = {OURS: {**kept, **ours}, "executorch": {**kept, **stock}}
    return {"network": "tiny", "prompt": 8, "steps": 4, "cache": 16, "ways": ways}


@pytest.mark.parametrize(
    ("ours", "stock", "found"),
    [
        ({}, {}, []),
        (
            {decoders.PROMPT: [6.0] * 9},
            {},
            ["tiny: prompt in 1.50 (1.50 to 1.50) of the time of the fastest"],
        ),
        ({decoders.STEPS: [6.0] * 9}, {}, []),
        ({"file_bytes": 120}, {}, ["tiny: 1.20 of the smallest file of the others"]),
        ({"error": "it fell"}, {}, ["tiny: ours fails: it fell"]),
        ({"file_bytes": 120}, {"error": "it fell"}, []),
    ],
)
def test_a_bound_that_does_not_hold_is_named(
    ours: dict[str, Any], stock: dict[str, Any], found: list[str]
) -> None:
    missed = decoders.missed([row(ours, stock)])
    assert len(missed) == len(found)
    assert all(told.startswith(start) for told, start in zip(missed, found, strict=True))


def test_tokens_per_second_are_those_of_the_middle_round() -> None:
    given = row({decoders.PROMPT: [2.0, 4.0, 16.0]}, {})
    assert decoders.tokens_per_second(given, OURS, decoders.PROMPT) == 2000
    assert decoders.tokens_per_second(given, OURS, decoders.STEPS) == 500
