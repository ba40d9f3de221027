"""`dimorder lower --quantize`: one command from a float network to an int8 program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dimorder.cli import main

pytest.importorskip("executorch")
pytest.importorskip("torchao")

pytestmark = pytest.mark.usefixtures("at_root")
NETWORK = ["tests.cli.networks:Tiny", "--input", "2x3x5x7", "--target", "xnnpack"]


def test_one_command_makes_an_int8_program(tmp_path: Path, capfd: Any) -> None:
    examples = np.random.default_rng(0).normal(size=(8, 3, 5, 7)).astype(np.float32)
    np.savez(tmp_path / "examples.npz", examples)
    calibrated = ["--quantize", "int8", "--calibrate", str(tmp_path / "examples.npz")]
    written = ["-o", str(tmp_path / "net.pte"), "--json", str(tmp_path / "net.json")]
    assert main(["lower", *NETWORK, *calibrated, "--input-type", "uint8", *written]) == 0
    said = capfd.readouterr().out
    assert "uint8, scale " in said and "\nfidelity     output0: " in said
    told = json.loads((tmp_path / "net.json").read_text())
    assert told["delegates"] == 1 and told["inputs"][0]["dtype"] == "uint8"
    assert [sorted(each) for each in told["fidelity"]] == [["name", "off", "pt2e_snr_db", "quanta", "snr_db"]]
    assert told["fidelity"][0]["snr_db"] > 20

    np.save(tmp_path / "x.npy", examples[:2])
    assert main(["run", str(tmp_path / "net.pte"), "--input", str(tmp_path / "x.npy")]) == 1
    assert "torch.clamp(torch.round(x / " in capfd.readouterr().err


def test_one_command_makes_a_dynamic_program(tmp_path: Path, capfd: Any) -> None:
    """Without calibration: the scales of activations are found as the program runs."""
    written = ["-o", str(tmp_path / "net.pte"), "--json", str(tmp_path / "net.json")]
    assert main(["lower", *NETWORK, "--quantize", "int8-dynamic", *written]) == 0
    said = capfd.readouterr().out
    assert "dB against the float network, where PT2E has" in said and "in float32" not in said
    told = json.loads((tmp_path / "net.json").read_text())
    assert (told["delegates"], told["float_islands"], told["inputs"][0]["dtype"]) == (1, [], "float32")
    assert told["fidelity"][0]["snr_db"] > 30 and told["fidelity"][0]["quanta"] is None

    np.save(tmp_path / "x.npy", np.ones((2, 3, 5, 7), dtype=np.float32))
    assert main(["run", str(tmp_path / "net.pte"), "--input", str(tmp_path / "x.npy")]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--quantize", "int8"],
            "--quantize\n  found: no --calibrate\n  fix: give --quantize int8 --calibrate PATH",
        ),
        (["--calibrate", "x.npz"], "--calibrate\n  found: no --quantize"),
        (["--mean", "0.5"], "--mean and --std\n  found: no pictures to calibrate with"),
        (
            ["--quantize", "int8", "--calibrate", "x.npz", "--target", "torch"],
            "quantising to int8\n  found: no recipe for target torch\n"
            "  fix: choose another target: there is int8 for litert, tosa, xnnpack, ethos-u…, "
            "int8-dynamic for litert, xnnpack, int16x8 for tosa, ethos-u…",
        ),
        (
            ["--quantize", "int8", "--calibrate", "lost.npz"],
            "calibration lost.npz\n  found: no such file or folder",
        ),
    ],
)
def test_what_belongs_together(options: list[str], said: str, capfd: Any) -> None:
    assert main(["plan", *NETWORK, *options]) == 2
    assert said in capfd.readouterr().err
