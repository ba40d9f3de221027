"""Test what `dimorder inspect`, `ops` and `bench` print and write, and their exit codes."""

from __future__ import annotations

import json

import pytest
import torch

from dimorder.cli import main
from dimorder.eager.inspection import probe
from tests.eager.networks import KNOWS_EACH_CALL

INPUT = ["--input", "2x3x5x7"]


pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture
def few(monkeypatch):
    chosen = {name: probe.PROBES[name] for name in ("relu", "softmax C")}
    monkeypatch.setattr(probe, "PROBES", chosen)


def test_inspect_prints_what_keeps_its_order(capfd):
    assert main(["inspect", "tests.cli.networks:Tiny", *INPUT]) == 0
    out = capfd.readouterr().out
    assert "network   Tiny: 2 x 3 x 5 x 7, in channels-last" in out
    assert "moved     nothing: the order is kept throughout" in out


def test_inspect_ends_with_1_and_writes_what_was_asked_for(tmp_path, capfd):
    page, data = tmp_path / "page.html", tmp_path / "found.json"
    files = ["--report", str(page), "--json", str(data), "--compare"]
    assert main(["inspect", "tests.zoo:groupnorm_residual", "--input", "2x24x20x28", *files]) in (0, 1)
    found = json.loads(data.read_text())
    assert found["model"] == "GroupNormResidual" and set(found["compare"]) >= {"ratio", "recommendation"}
    assert page.read_text().startswith("<!doctype html>")
    out = capfd.readouterr().out
    assert "advice    " in out
    assert main(["inspect", "tests.zoo:conv_flatten_linear", "--input", "2x3x16x20", "--json"]) == 1
    (lost,) = [f for f in json.loads(capfd.readouterr().out)["findings"] if f["verdict"] == "lost"]
    assert lost["function"] == ("flatten" if KNOWS_EACH_CALL else "") and lost["bytes"] == 2 * 8 * 8 * 10 * 4


def test_a_network_of_torchs_own_modules_has_no_line_of_the_command(capfd):
    argv = ["inspect", "torch.nn:TransformerEncoderLayer", "--input", "2x3x4", "--json"]
    assert main([*argv, "--arg", "d_model=4", "--arg", "nhead=2", "--arg", "dim_feedforward=5"]) == 1
    found = json.loads(capfd.readouterr().out)["findings"]
    assert {each["source"] for each in found} == {""}


def test_inspect_tells_wrong_use(tmp_path, capfd):
    assert main(["inspect", "tests.cli.networks:Tiny", "--input", "2x4x5x7"]) == 2
    assert "on which it raises" in capfd.readouterr().err
    file = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(2, 3),)), file)
    assert main(["inspect", str(file)]) == 2
    assert "package.module:factory" in capfd.readouterr().err


def test_ops_prints_writes_and_compares(few, tmp_path, capfd):
    file = tmp_path / "ops.json"
    assert main(["ops", "--json", str(file)]) == 0
    assert "softmax C  drops    drops    drops" in capfd.readouterr().out
    assert main(["ops", "--diff", str(file)]) == 0
    assert "nothing changed in 2 operators" in capfd.readouterr().out
    old = json.loads(file.read_text())
    old["operators"]["relu"]["5"]["support"] = "drops"
    file.write_text(json.dumps(old))
    assert main(["ops", "--diff", str(file)]) == 1
    assert capfd.readouterr().out.strip() == "relu, 5 dims: drops → keeps"
    assert main(["ops", "--markdown"]) == 0
    assert "| `relu` | keeps | keeps | keeps |" in capfd.readouterr().out
    assert main(["ops", "--diff", str(tmp_path / "none.json")]) == 2


def test_bench_convert_adds_its_row_to_a_table(tmp_path, monkeypatch, capfd):
    from dimorder.eager import transposition

    monkeypatch.setattr(
        transposition, "measure", lambda progress: {"4": {"64x64": {"tiles": 3.0, "shuffle": 2.0}}}
    )
    file = tmp_path / "table.json"
    file.write_text('{"other": {}}')
    assert main(["bench", "convert", "-o", str(file)]) == 0
    assert json.loads(file.read_text()) == {
        "other": {},
        transposition.family(): {"4": {"64x64": {"tiles": 3.0, "shuffle": 2.0}}},
    }
    assert "4 bytes  64x64       tiles 3.00×, shuffle 2.00×" in capfd.readouterr().out
