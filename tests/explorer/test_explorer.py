"""Open plans and files in Model Explorer's own server, and look for orders and conversions in its answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("model_explorer")
pytest.importorskip("executorch")

import dimorder
from dimorder.cli import main
from dimorder.errors import ContractError, UsageError
from dimorder.executorch.file_graph import graph_of_file
from dimorder.executorch.lowering_paths import stock
from dimorder.explorer.main import DimorderAdapter
from tests.cli.commands import refused

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    """One conversion in front, and a gather outside of the delegate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.gather(self.conv(x).relu(), 3, index)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 3, 9, 11), torch.zeros(1, 8, 7, 5, dtype=torch.int64)


@pytest.fixture(scope="module")
def lowered():
    torch.manual_seed(0)
    return dimorder.lower(Net().eval(), inputs(), target="xnnpack")


@pytest.fixture(scope="module")
def files(lowered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorer")
    lowered.save(folder / "net.pte")
    (folder / "stock.pte").write_bytes(stock("xnnpack")(torch.export.export(Net().eval(), inputs())))
    (folder / "cut.pte").write_bytes((folder / "net.pte").read_bytes()[:400])
    assert main([*PLAN, "--explorer", str(folder / "plan.json")]) == 0
    return folder


PLAN = ["plan", "tests.explorer.test_explorer:Net", "--input", "1x3x9x11", "--input", "1x8x7x5:int64"]
PLAN += ["--target", "xnnpack"]


@pytest.fixture(scope="module")
def server():
    """Model Explorer as a user starts it, without a browser; the address of its server."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "model_explorer", "--extensions=dimorder.explorer"]
    command += ["--no_open_in_browser", f"--port={port}"]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    address = f"http://localhost:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/check_health", timeout=2)
                break
            except OSError:
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.5)
        yield address
    finally:
        process.kill()
        process.communicate()


def ask(address, path, adapter="dimorder"):
    """The nodes of a file by their names, as the server gives them to its page."""
    command = {"cmdId": "convert", "extensionId": adapter, "modelPath": str(path), "settings": {}}
    command["deleteAfterConversion"] = False
    query = urllib.parse.urlencode({"json": json.dumps(command)})
    answer = json.load(urllib.request.urlopen(f"{address}/api/v1/send_command?{query}", timeout=120))
    assert "error" not in answer, answer
    (graph,) = answer["graphs"] if "graphs" in answer else answer["graphCollections"][0]["graphs"]
    return {node["id"]: node for node in graph["nodes"]}


def facts(node):
    return {each["key"]: each["value"] for each in node["attrs"]}


def test_a_plan_shows_orders_on_operators_and_conversions_by_bytes(server, files, lowered):
    nodes = ask(server, files / "plan.json")
    conversions = [node for name, node in nodes.items() if name.startswith("conversion")]
    assert len(conversions) == len(lowered.plan.conversions) > 0
    for node, planned in zip(conversions, lowered.plan.conversions, strict=True):
        said = facts(node)
        assert said["moves"] == f"{planned.bytes:,} bytes" and said["after"] == planned.to_order
        assert any(
            node["id"] == edge["sourceNodeId"] for each in nodes.values() for edge in each["incomingEdges"]
        )
    (conv,) = (node for node in nodes.values() if node["label"] == "aten.convolution")
    assert facts(conv)["writes"] == "NHWC (0, 2, 3, 1)" and conv["namespace"] == "conv"
    assert facts(conv)["at"].startswith("test_explorer.py:")


@pytest.mark.parametrize("name", ["net.pte", "stock.pte"])
def test_a_file_shows_delegates_kernels_and_conversions_by_bytes(name, server, files):
    nodes = ask(server, files / name)
    (conv,) = (node for node in nodes.values() if node["label"] == "Conv2d")
    assert conv["namespace"] == "XnnpackBackend 0" and facts(conv)["filter"] == "8×3×3×3 fp32, constant"
    (gather,) = (node for node in nodes.values() if node["label"].startswith("aten::gather"))
    assert "NCHW (0, 1, 2, 3)" in facts(gather)["reads 0"]
    moved = [facts(node)["moves"] for node in nodes.values() if "moves" in facts(node)]
    total = sum(int(text.split()[0].replace(",", "")) for text in moved)
    found = dimorder.executorch.check_file(files / name).conversions
    assert (len(moved), total) == (found.conversion_count, found.bytes)
    assert all(edge["sourceNodeId"] in nodes for node in nodes.values() for edge in node["incomingEdges"])
    reached = {edge["sourceNodeId"] for node in nodes.values() for edge in node["incomingEdges"]}
    assert set(nodes) - reached == {name for name in nodes if name.startswith("output")}


def test_model_explorer_opens_our_tflite_by_itself(server, tmp_path):
    pytest.importorskip("ai_edge_litert")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    path = tmp_path / "net.tflite"
    dimorder.lower(model, (torch.randn(1, 3, 9, 11),), target="litert").save(path)
    labels = [node["label"] for node in ask(server, path, "builtin_tflite_flatbuffer").values()]
    assert "conv_2d" in [label.lower() for label in labels]


def test_a_damaged_file_is_refused(files):
    with pytest.raises(ContractError):
        graph_of_file(str(files / "cut.pte"))


@pytest.mark.parametrize("text", ['{"target": "torch", "cost": 0}', "[1]", "{"])
def test_json_that_is_no_graph_is_refused(text, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"(?s)plan\.json.*without graphs.*plan --explorer"):
        DimorderAdapter().convert(str(path), {})


def test_a_graph_that_cannot_be_written_is_refused_before_the_plan(capfd):
    assert "--explorer" in refused(capfd, [*PLAN, "--explorer", "/no/such/folder/plan.json"], 2)
