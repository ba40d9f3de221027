"""Test that figures in the documents are those of the benchmarks' records."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conftest import ROOT

RECORD = json.loads((ROOT / "benchmarks" / "results" / "npu.json").read_text())["rows"]
PAGE = (ROOT / "docs" / "npu.md").read_text()


def _cells(network: str) -> list[str]:
    """Return the cells that the table of docs/npu.md ought to have for a network."""
    u85, u55 = (
        next(row for row in RECORD if (row["network"], row["accelerator"]) == (network, npu))
        for npu in ("ethos-u85-256", "ethos-u55-128")
    )
    counts = [str(row["transposes"]) for row in (u85["ours"]["cycles"], u85["stock"])]
    sizes = u85["input"].removeprefix("1x").replace("x", " × ")
    return [network.partition(",")[0], sizes, *counts, *_cycles(u85), *_cycles(u55)]


def _cycles(row: dict[str, Any]) -> list[str]:
    """Return our cycles, ExecuTorch's and their ratio; where ExecuTorch's failed, the page says how."""
    ours = row["ours"]["cycles"]["cycles"]
    if "error" in row["stock"]:
        return [f"{ours:,}", "crashes", ""]
    stock = row["stock"]["cycles"]
    return [f"{ours:,}", f"{stock:,}", f"{ours / stock:.2f}"]


def test_the_table_of_npus_is_that_of_the_record() -> None:
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", PAGE, re.M)
    ]
    networks = dict.fromkeys(row["network"] for row in RECORD)
    assert [cells for cells in shown if len(cells) == 10][3:] == [_cells(network) for network in networks]


def test_fewer_transposes_take_more_cycles_as_the_page_says() -> None:
    plans = {row["network"]: row["ours"] for row in RECORD if row["accelerator"] == "ethos-u85-256"}
    named = [plans[name] for name in ("vit of 4 layers", "swin blocks")]
    assert [[plan[by]["transposes"] for plan in named] for by in ("count", "cycles")] == [[5, 8], [16, 11]]
    ratios = [plan["count"]["cycles"] / plan["cycles"]["cycles"] for plan in named]
    assert [f"{ratio:.3g}" for ratio in ratios] == ["1.26", "3.41"]
    assert "have 5 of them in the ViT and 8 in the Swin blocks" in PAGE
    assert "have 16 and 11" in PAGE and "1.26 and 3.41 times" in PAGE
