"""Test that results are compared with those of the network as it was given."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

import dimorder
from dimorder.capture import export
from dimorder.errors import VerificationError
from dimorder.graph.construct import replace_parts
from tests.small_networks import Net


@pytest.mark.parametrize("is_saved", [False, True])
def test_an_exported_program_is_the_reference_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    def exchange(program: ExportedProgram) -> ExportedProgram:
        """Write another function into the program, as a pass that is wrong would."""
        graph = copy.deepcopy(program.graph_module)
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default
        return replace_parts(program, root=graph, graph=graph.graph)

    network: ExportedProgram | Path = torch.export.export(
        Net(lambda module, x: x.sin() * 2), (torch.randn(2, 3, 5),)
    )
    if is_saved:
        torch.export.save(network, tmp_path / "net.pt2")
        network = tmp_path / "net.pt2"
    dimorder.lower(network, target="torch")
    monkeypatch.setattr(export, "compute_under_masks", exchange)
    with pytest.raises(VerificationError):
        dimorder.lower(network, target="torch")
