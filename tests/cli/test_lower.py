"""Test what `dimorder lower` writes and prints, and the keys of its JSON."""

from __future__ import annotations

import json

import pytest

from dimorder.cli import main
from tests.cli.commands import HERE, INPUT, documented_keys, refused

pytestmark = pytest.mark.usefixtures("at_root")

JSON_KEYS = {
    *("target", "inputs", "outputs", "conversions", "conversion_count", "cost", "cost_unit", "lower_bound"),
    *("optimal", "candidates", "solver", "constant_bytes_added", "delegates", "outside", "verify", "seconds"),
    *("opaque", "outside_calls", "blocks", "ranges", "wasted_levels", "float_islands", "npu"),
}
WITH_QUANTIZE, WITH_STATE = {"fidelity"}, {"state"}


def test_lower_writes_what_it_is_asked_for_and_nothing_else(made):
    assert sorted(file.name for file in made.iterdir()) == ["net.pte", "plan.json", "report.html"]
    assert (made / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("what", "first", "word"),
    [("captured", "x ", "convolution(x, "), ("plan", "input ", "cost "), ("physical", "x ", "conv2d_nhwc(")],
)
def test_lower_prints_what_it_is_asked_for_and_nothing_else(what, first, word, capfd):
    argv = ["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, "--target", "torch", "--print", what]
    assert main(argv) == 0
    out, _ = capfd.readouterr()
    assert out.startswith(first) and word in out
    assert "verified" not in out and ("output0" in out.splitlines()[-1] or what == "plan")


def test_lower_json_has_the_stable_keys(made):
    data = json.loads((made / "plan.json").read_text())
    assert set(data) == JSON_KEYS
    (conversion,) = data["conversions"]
    assert set(conversion) == {"value", "shape", "from", "to", "bytes", "producer", "consumers"}
    assert conversion["producer"] == "contract"
    (consumer,) = conversion["consumers"]
    assert consumer["operator"] == "aten.convolution" and "networks.py:" in consumer["source"]
    assert data["conversion_count"] == 1 and data["cost"] == conversion["bytes"] == 4 * 2 * 3 * 5 * 7
    assert data["cost_unit"] == "bytes" and data["lower_bound"] == data["cost"] and data["optimal"] is True
    assert data["delegates"] == 1 and data["outside"] == {} and data["verify"]["max_rel_error"] < 1e-5
    assert data["seconds"]["total"] == pytest.approx(sum(data["seconds"].values()) / 2)


def test_docs_name_exactly_the_keys_of_json():
    assert documented_keys("lower") == JSON_KEYS | WITH_QUANTIZE | WITH_STATE


def test_json_lists_the_buffers_of_a_network_with_state(capfd):
    assert main(["plan", "tests.zoo.stateful:StreamingConv2d", "--input", "1x3x2x9", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)
    assert set(data) < JSON_KEYS | WITH_STATE
    assert [set(buffer) for buffer in data["state"]] == [{"name", "shape", "dtype", "order"}] * 2


def test_json_on_stdout_is_alone_there(capfd):
    assert main(["plan", f"{HERE}:is_noisy", *INPUT, "--json"]) == 0
    out, _ = capfd.readouterr()
    assert set(json.loads(out)) < JSON_KEYS


def test_an_operator_without_a_kernel_is_refused_by_name_and_leaves_no_file(capfd, tmp_path):
    file = tmp_path / "net.pte"
    text = refused(capfd, ["lower", f"{HERE}:Unruly", "--input", "2x3x17x17", "-o", file], 1)
    assert "linalg_inv" in text and "networks.py:" in text
    assert list(tmp_path.iterdir()) == []
