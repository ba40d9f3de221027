"""Test that the operator table tells what some known operators do, and what changed since another table."""

from __future__ import annotations

import json

import pytest
import torch

from dimorder.eager.inspection import probe as module
from dimorder.eager.inspection.probe import PROBES, Cell, OperatorTable, operators, probe
from dimorder.errors import UsageError

KNOWN = {
    # (operator, rank) → what it does on torch 2.13, CPU
    ("relu", 3): Cell("keeps"),
    ("relu", 5): Cell("keeps"),
    ("softmax C", 4): Cell("drops"),
    ("instance_norm", 4): Cell("drops"),
    ("group_norm of each channel", 4): Cell("keeps"),
    ("max_pool", 3): Cell("drops", "channels-last"),
    ("avg_pool", 5): Cell("drops"),
    ("cat C", 4): Cell("keeps"),
    ("cat with row-major", 4): Cell("drops"),
    ("conv", 4): Cell("keeps"),
    ("conv", 3): Cell("copies inside"),
    ("add row-major second", 4): Cell("copies inside"),
    ("logsigmoid", 4): Cell("drops", "channels-last"),
    ("grid_sample", 3): None,
    ("softmax C by permute", 4): Cell("keeps"),
}


@pytest.mark.parametrize(("name", "rank"), KNOWN)
def test_known_operators(name, rank):
    assert probe(name, rank) == KNOWN[name, rank]


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_threads_changes_nothing(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert probe("conv 1x1", 5) == Cell("keeps")
        assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


def test_about_190_operators():
    assert len(PROBES) >= 190


def test_wrong_values_are_told(monkeypatch):
    wrong = {"wrong": lambda rank: lambda x: x + (x.stride(1) == 1)}
    monkeypatch.setattr(module, "PROBES", wrong)
    assert probe("wrong", 4) == Cell("wrong")


def test_a_table_prints_diffs_and_goes_through_json(monkeypatch):
    monkeypatch.setattr(
        module, "PROBES", {name: PROBES[name] for name in ("relu", "softmax C", "grid_sample")}
    )
    table = operators()
    old = json.loads(json.dumps(table.to_dict()))
    assert table.diff(old) == ()
    old["operators"]["softmax C"]["4"] = {"support": "keeps", "predicted": None}
    del old["operators"]["relu"]
    assert [str(change) for change in table.diff(old)] == [
        "softmax C, 4 dims: keeps → drops",
        *(f"relu, {rank} dims: not defined → keeps" for rank in (3, 4, 5)),
    ]
    assert "softmax C" in str(table) and "| `relu` | keeps | keeps | keeps |" in table.markdown()
    assert isinstance(table, OperatorTable)
    for other in ({"not": "a table"}, {"operators": {"relu": {"4": {}}}}, {"operators": {"relu": {"4": 3}}}):
        with pytest.raises(UsageError, match="ops --json"):
            table.diff(other)


def test_a_device_that_is_none_is_refused():
    with pytest.raises(UsageError, match="--device nowhere"):
        operators("nowhere")
