"""Test that letters in --input give one file for all sizes of a range, and that wrong sizes are errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dimorder
from dimorder.cli import main
from dimorder.verification.relative_error import relative_error
from tests.cli import networks

HERE = "tests.cli.networks"

pytestmark = pytest.mark.usefixtures("at_root")


def test_a_file_for_a_range_is_lowered_and_run_at_several_sizes(tmp_path: Path, capfd) -> None:
    file, plan, out = tmp_path / "net.pte", tmp_path / "plan.json", tmp_path / "y.npy"
    sizes = ["--input", "Nx3xHx7", "--range", "H=4..32:4", "--cost-at", "N=8"]
    assert main(["lower", f"{HERE}:Tiny", *sizes, "-o", str(file), "--json", str(plan)]) == 0
    told = json.loads(plan.read_text())
    assert told["inputs"][0]["shape"] == ["N", 3, "H", 7] and told["outputs"][0]["shape"] == ["N", 5]
    assert told["ranges"]["symbols"] == [
        {"name": "N", "minimum": 1, "maximum": 16},
        {"name": "H", "minimum": 4, "maximum": 32, "step": 4},
    ]
    assert told["ranges"]["cost_at"]["N"] == 8 and told["ranges"]["optimal_for_range"] is True
    torch.manual_seed(0)
    module = networks.Tiny().eval()
    for shape in ((1, 3, 4, 7), (16, 3, 32, 7), (5, 3, 12, 7)):
        x = torch.randn(shape)
        np.save(tmp_path / "x.npy", x.numpy())
        assert main(["run", str(file), "--input", str(tmp_path / "x.npy"), "-o", str(out)]) == 0
        with torch.no_grad():
            assert relative_error(torch.from_numpy(np.load(out)), module(x)) <= 1e-4
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 6, 7), np.float32))
    capfd.readouterr()
    assert main(["run", str(file), "--input", str(tmp_path / "x.npy")]) == 1
    assert "size 6 in dim 2, where H is a multiple of 4" in capfd.readouterr().err


def test_a_physical_program_is_printed_by_its_symbols(capfd) -> None:
    argv = ["lower", f"{HERE}:Tiny", "--arg", "width=4", "--input", "Nx3x5x7", "--target", "torch"]
    assert main([*argv, "--print", "physical"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "x N×3×5×7 NCHW input",
        "x.NHWC N×5×7×3 NHWC convert x, 420*N bytes",
        "conv2d N×5×7×4 NHWC conv2d_nhwc(x.NHWC, conv_weight[4×3×3×3], conv_bias[4], padding 1)",
    ]


@pytest.mark.parametrize(
    ("argv", "found", "fix"),
    [
        (
            ["--input", "Nx3xHx7"],
            "the dynamic size H, without a range",
            "give --range H=64..256, or H=64..256:32",
        ),
        (
            ["--input", "2x3x5x7", "--range", "N=1..4"],
            "a dynamic size that is in no --input",
            "write the letter there",
        ),
        (["--input", "Nx3x5x7", "--range", "N=4"], "no range", "write N=1..16, or H=64..256:32"),
        (["--input", "Nx3x5x7", "--range", "N=9..4"], "4 is less than 9", "write the least size first"),
        (["--input", "Nx3x5x7", "--range", "N=4..8:0"], "a step of 0", "give a step of 1 or more"),
        (["--input", "Nx3x5x7", "--range", "N=4..4"], "one size alone", "write 4 in --input"),
        (["--input", "Nx3x5x7", "--range", "N=4..4:4"], "one size alone", "write 4 in --input"),
        (["--input", "Nx3x5x7", "--range", "N=0..0"], "one size alone", "write a size from 1 on in --input"),
        (["--input", "Nx3x5x7", "--range", "N=0..8:4"], "a size of 0", "begin at 4"),
        (["--input", "Nx3x5x7", "--range", "N=1..2147483648"], "a size of 2147483648", "give 2147483647 at"),
        (
            ["--input", "Nx3x5x7", "--range", "N=1..16:4"],
            "range 1 to 16 in steps of 4",
            "give multiples of 4",
        ),
        (["--input", "Nx3x5x7", "--cost-at", "N"], "no value of a dynamic size", "write N=8"),
        (["--input", "Nx3x5x7", "--cost-at", "N=²"], "no value of a dynamic size", "write N=8"),
        (["--input", "Nx3x5x7", "--cost-at", "N=17"], "N = 17", "give a size of N = 1 … 16"),
        (["--input", "2x3x5x7", "--cost-at", "N=4"], "a network without dynamic sizes", "leave it out"),
        (
            ["--input", "Nx3x5x7", "--target", "tosa"],
            "dynamic sizes, N = 1 … 16",
            "lower one graph for each",
        ),
    ],
)
def test_a_wrong_size_is_told_in_three_lines(argv: list[str], found: str, fix: str, capfd) -> None:
    assert main(["plan", f"{HERE}:Tiny", *argv]) != 0
    lines = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("dimorder: ")]
    assert len(lines) == 3
    assert lines[1].startswith(f"  found: {found}") and lines[2].startswith(f"  fix: {fix}")


def test_the_least_size_is_no_example_for_the_export(capfd) -> None:
    argv = ["plan", f"{HERE}:Small", "--input", "2x3xHx5", "--range", "H=3..40"]
    assert main(argv) == 1
    assert "the network needs H != 3, which not all 3 <= H <= 40 satisfy" in capfd.readouterr().err


def test_a_very_long_range_is_planned(capfd) -> None:
    argv = ["plan", f"{HERE}:Tiny", "--input", "1x3xHx7", "--range", "H=2..2147483647", "--target", "torch"]
    assert main(argv) == 0
    assert "sizes   H = 2 … 2147483647" in capfd.readouterr().out


def test_integers_of_a_recipe_have_any_size(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    pytest.importorskip("ai_edge_litert")
    examples = tmp_path / "examples.npy"
    np.save(examples, np.random.default_rng(0).normal(size=(6, 3, 5, 7)).astype(np.float32))
    argv = ["lower", f"{HERE}:Tiny", "--input", "Nx3x5x7", "--range", "N=1..4", "--quantize", "int8"]
    argv += ["--calibrate", str(examples)]
    for target, suffix in (("litert", "tflite"), ("xnnpack", "pte")):
        made = tmp_path / f"net.{suffix}"
        assert main([*argv, "--target", target, "-o", str(made)]) == 0
        (spec,) = dimorder.load(made).contract.inputs
        assert spec.shape == ("N", 3, 5, 7)


def test_a_command_that_runs_a_network_wants_numbers(capfd) -> None:
    assert main(["inspect", f"{HERE}:Tiny", "--input", "Nx3x5x7"]) != 0
    assert "the dynamic size N, where a fixed one is needed" in capfd.readouterr().err


@pytest.mark.parametrize("letter", ["N", "S"])
def test_a_letter_that_sympy_knows_has_multiples(letter: str, capfd) -> None:
    argv = ["plan", f"{HERE}:Tiny", "--input", f"{letter}x3x5x7", "--range", f"{letter}=2..8:2"]
    assert main([*argv, "--target", "torch"]) == 0
    assert f"sizes   {letter} = 2 … 8 in steps of 2" in capfd.readouterr().out


def test_tensors_in_a_list_have_symbols(capfd) -> None:
    argv = ["plan", f"{HERE}:Scaled", "--input", "Lx4", "--input", "3xL", "--range", "L=2..9"]
    assert main([*argv, "--target", "torch"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [" ".join(line.split()[:5]) for line in lines[:2]] == [
        "input scales_0 L x 4",
        "input scales_1 3 x L",
    ]


def test_symbols_of_tensors_by_any_name_are_refused(capfd) -> None:
    argv = ["plan", f"{HERE}:Scaled", "--input", "3x4", "--input", "image=Nx3x4", "--target", "torch"]
    assert main(argv) == 1
    assert capfd.readouterr().err.splitlines()[-3:] == [
        "torch.export of Scaled",
        "  found: dynamic sizes of tensors that forward takes by any name; torch.export lacks these",
        "  fix: name them: def forward(self, ids, mask), and not **batch",
    ]


def test_an_exported_program_brings_its_symbols(tmp_path: Path, capfd) -> None:
    file, made = tmp_path / "net.pt2", tmp_path / "net.pte"
    module = networks.Tiny().eval()
    dims = ({0: torch.export.Dim("N", min=1, max=5)},)
    torch.export.save(torch.export.export(module, (torch.ones(2, 3, 5, 7),), dynamic_shapes=dims), file)
    assert main(["lower", str(file), "-o", str(made)]) == 0
    assert "= 1 … 5" in capfd.readouterr().out
