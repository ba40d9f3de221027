"""Test what `dimorder check` and `dimorder ops --runtime executorch` say, and their exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from dimorder.cli import main
from dimorder.errors import ContractError
from dimorder.executorch.lowering_paths import stock
from dimorder.executorch.pte import read_contract
from dimorder.runtime.kernels import LEGEND, KernelTable
from tests.cli.commands import refused

HERE = "tests.cli.test_check"


class Joined(nn.Module):
    """Wrong on portable kernels when its inputs are channels-last, right when they are not."""

    def forward(self, x, y):
        return torch.cat([x, y], 1).relu()


class Shifted(nn.Module):
    def forward(self, x, y):
        return (x.permute(0, 2, 3, 1) + y).relu()


class Turned(nn.Module):
    """One conversion."""

    def forward(self, x):
        return x.permute(0, 2, 1) + 1


SAFE = "verdict  no operator calls are wrong or refused"
ONE = "verdict  1 operator call is wrong or refused"
KEYS = {
    "format",
    "safe",
    "boundaries",
    "fed",
    "operators",
    "conversion_count",
    "bytes",
    "delegates",
    "outside",
}
TWO = ["--input", "x=2x3x5x7", "--input", "y=2x4x5x7"]


def last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Stock programs, one safe and one not, and one that ends too early."""
    folder = tmp_path_factory.mktemp("check")
    for name, inputs in (
        ("safe", (torch.randn(2, 3, 5, 7), torch.randn(2, 4, 5, 7))),
        ("danger", (last(2, 3, 5, 7), last(2, 4, 5, 7))),
    ):
        (folder / f"{name}.pte").write_bytes(stock("portable")(torch.export.export(Joined(), inputs)))
    (folder / "short.pte").write_bytes((folder / "safe.pte").read_bytes()[:300])
    (folder / "other.pte").write_bytes(b"PK\x03\x04 a zip, whatever it is called")
    return folder


def test_a_file_with_a_danger_ends_with_1_and_the_danger_comes_first(files, capfd):
    assert main(["check", str(files / "danger.pte")]) == 1
    assert capfd.readouterr().out.splitlines() == [
        "input   input0   2 x 3 x 5 x 7  float32  NHWC (0, 2, 3, 1)",
        "input   input1   2 x 4 x 5 x 7  float32  NHWC (0, 2, 3, 1)",
        "output  output0  2 x 7 x 5 x 7  float32  NHWC (0, 2, 3, 1)",
        "fed      input0: NCHW (0, 1, 2, 3) wrong, NHWC (0, 2, 3, 1) right; by dimorder.load: right",
        "fed      input1: NCHW (0, 1, 2, 3) wrong, NHWC (0, 2, 3, 1) right; by dimorder.load: right",
        "wrong    aten::cat.out  rank 4 LL x1",
        "right    aten::relu.out rank 4 LL x1",
        f"letters  one per tensor, results last: {LEGEND}",
        "conversions  none",
        ONE,
    ]


def test_a_file_without_a_danger_ends_with_0(files, capfd):
    assert main(["check", str(files / "safe.pte")]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (
        "fed      input0: NCHW (0, 1, 2, 3) right, NHWC (0, 2, 3, 1) wrong; by dimorder.load: right" in lines
    )
    assert lines[-1] == SAFE


def test_the_json_of_a_file_says_the_same(files, tmp_path, capfd):
    assert main(["check", str(files / "danger.pte"), "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert set(found) == KEYS
    assert found["format"] == "pte" and found["safe"] is False
    assert [tensor["order"] for tensor in found["boundaries"]["inputs"]] == ["NHWC", "NHWC"]
    assert found["fed"]["input0"] == {"NCHW (0, 1, 2, 3)": "wrong", "NHWC (0, 2, 3, 1)": "right"}
    assert found["operators"] == [
        {"operator": "aten::cat.out", "orders": "rank 4 LL", "verdict": "wrong", "count": 1},
        {"operator": "aten::relu.out", "orders": "rank 4 LL", "verdict": "right", "count": 1},
    ]
    assert main(["check", str(files / "safe.pte"), "--json", str(tmp_path / "safe.json")]) == 0
    assert json.loads((tmp_path / "safe.json").read_text())["safe"] is True
    assert SAFE in capfd.readouterr().out


def test_a_network_is_checked_as_stock_lowering_would_make_it(capfd):
    assert main(["check", f"{HERE}:Joined", *TWO]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == SAFE
    assert main(["check", f"{HERE}:Joined", *TWO, "--input-order", "NHWC"]) == 1
    title, first, last_line = capfd.readouterr().out.splitlines()
    assert title == "checked  as ExecuTorch itself would lower the network to its portable kernels"
    assert first.startswith("wrong    cat NHWC (0, 2, 3, 1) in, NHWC (0, 2, 3, 1) out at ")
    assert "test_check.py:" in first and last_line == ONE
    assert main(["check", f"{HERE}:Joined", *TWO, "--input-order", "NHWC", "--json"]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["format"], found["boundaries"], found["fed"]) == (None, None, {})
    assert found["operators"][0]["operator"] == "cat"
    assert set(found) == KEYS and found["conversion_count"] is found["bytes"] is None


def test_an_order_that_no_input_can_have_is_refused(capfd):
    text = refused(capfd, ["check", f"{HERE}:Joined", *TWO, "--input-order", "NHCW"], 2)
    assert text.startswith("dim order 'NHCW'\n  found: no order of this name for 4 dims")


def test_an_error_of_the_network_itself_is_one_of_the_input(capfd):
    text = refused(capfd, ["check", "tests.cli.networks:Tiny", "--input", "2x4x5x7"], 2)
    assert "2x4x5x7, on which it raises RuntimeError" in text and "to have 3 channels" in text


def test_inputs_of_another_rank_than_the_orders_keep_theirs(capfd):
    mixed = ["--input", "x=2x3x5x7", "--input", "y=3"]
    assert main(["check", f"{HERE}:Shifted", *mixed, "--input-order", "NHWC"]) == 1
    assert capfd.readouterr().out.splitlines()[1].startswith("refused  permute NHWC (0, 2, 3, 1) in")


@pytest.mark.parametrize("name", ["safe.pte", "net.pt2"])
def test_an_order_for_a_file_which_has_its_own_is_refused(files, name, capfd):
    text = refused(capfd, ["check", files / name, "--input-order", "NHWC"], 2)
    assert text.splitlines()[0].startswith("--input-order NHWC, for ")
    assert "the file has the orders of its inputs" in text


@pytest.mark.parametrize("option", [("--input", "1x3x8x8"), ("--arg", "a=1")])
def test_options_of_a_network_are_refused_for_a_file(files, option, capfd):
    text = refused(capfd, ["check", files / "safe.pte", *option], 2)
    assert text.startswith(f"{option[0]}, for ") and text.endswith(f"fix: leave {option[0]} out")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("missing.pte", 2, "No such file or directory"),
        ("short.pte", 1, "lower the program again, or copy the file again"),
        ("other.pte", 1, "that do not begin as a .tflite file or a .tosa graph or a .pte program does"),
    ],
)
def test_a_file_that_cannot_be_read_ends_in_three_lines(files, name, code, words, capfd):
    text = refused(capfd, ["check", files / name], code)
    assert words in text and name in text.splitlines()[0]


def test_a_file_cut_anywhere_is_refused(files, tmp_path):
    whole, cut = (files / "safe.pte").read_bytes(), tmp_path / "cut.pte"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ContractError):
            read_contract(cut)


def test_the_table_of_kernels_is_printed_and_written_as_it_is_shipped(tmp_path, capfd):
    file = tmp_path / "kernels.json"
    assert main(["ops", "--runtime", "executorch", "--json", str(file)]) == 0
    lines = capfd.readouterr().out.splitlines()
    at = lines.index("portable  aten::cat.out")
    assert lines[at + 1].startswith("    wrong: ") and "4 LL" in lines[at + 1]
    assert lines[-1].startswith(
        "ExecuTorch 1.5.1. Rank, then a letter per tensor, results last: C contiguous"
    )
    assert KernelTable.from_json(file.read_text()).rows == KernelTable.shipped().rows
    assert main(["ops", "--runtime", "executorch", "--json"]) == 0
    assert capfd.readouterr().out == file.read_text()


def test_the_difference_between_two_tables_ends_with_1(tmp_path, capfd):
    shipped = KernelTable.shipped()
    relu = {**shipped.rows["portable"]["aten::relu.out"], "4 LL": "wrong"}
    portable = {**shipped.rows["portable"], "aten::relu.out": relu}
    old = replace(shipped, rows=MappingProxyType({**shipped.rows, "portable": portable}))
    file = tmp_path / "old.json"
    file.write_text(old.to_json())
    assert main(["ops", "--runtime", "executorch", "--diff", str(file)]) == 1
    assert capfd.readouterr().out == "portable aten::relu.out rank 4 LL: wrong -> right\n"
    file.write_text(shipped.to_json())
    assert main(["ops", "--runtime", "executorch", "--diff", str(file)]) == 0
    assert capfd.readouterr().out.startswith("nothing changed in ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("relu", "no JSON"),
        ("[]", "other JSON (TypeError"),
        (
            '{"executorch": "1.5.1", "portable": {"aten::relu.out": {"fine": "4 LL"}}}',
            "other JSON (ValueError",
        ),
    ],
    ids=["missing", "no JSON", "no table", "no verdict"],
)
def test_what_is_no_table_of_kernels_is_refused(content, words, tmp_path, capfd):
    file = tmp_path / "old.json"
    if content is not None:
        file.write_text(content)
    assert words in refused(capfd, ["ops", "--runtime", "executorch", "--diff", file], 2)


def test_a_budget_of_conversions_holds_for_each_of_several_files(files, tmp_path, capfd):
    program = torch.export.export(Turned(), (torch.randn(2, 3, 5),))
    turned, safe = tmp_path / "turned.pte", str(files / "safe.pte")
    turned.write_bytes(stock("portable")(program))
    assert main(["check", str(turned), "--max-conversions", "1"]) == 0
    assert "budget" not in capfd.readouterr().out
    assert main(["check", safe, str(turned), "--max-conversions", "0", "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert {name: (one["conversion_count"], one["within_budget"]) for name, one in told.items()} == {
        safe: (0, True),
        str(turned): (1, False),
    }
    assert main(["check", safe, "--max-conversions", "0", str(turned)]) == 1  # a file after the option too
    said = capfd.readouterr().out.splitlines()
    assert said[0] == safe and said[-1] == "budget   1 conversions, at most 0 allowed"


def test_a_budget_for_a_network_or_below_zero_is_refused(files, capfd):
    network, safe = f"{HERE}:Joined", str(files / "safe.pte")
    assert "dimorder plan counts" in refused(capfd, ["check", network, *TWO, "--max-conversions", "0"], 2)
    assert "give 0 or more" in refused(capfd, ["check", safe, "--max-conversions", "-1"], 2)
