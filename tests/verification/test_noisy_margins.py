"""Test that a margin of roundings is that of an element: no other channel is excused, and it moves along."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.graph.exported import graph_with_tensors
from dimorder.graph.nodes import args_of
from dimorder.graph.quantized import QUANTIZE
from dimorder.verification.numerics import Float64Run
from dimorder.verification.quantized_values import DRAWS, _QuantizedRun, rounding_errors


def test_each_element_has_a_margin_of_its_own() -> None:
    """Channel 3 is 100 everywhere, so its norm divides roundings by nearly 0."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(8, 8), nn.ReLU(), nn.Conv2d(8, 6, 3)
    ).eval()
    with torch.no_grad():
        net[0].weight[3], net[0].bias[3] = 0.0, 100.0
    x = torch.randn(1, 3, 10, 9)
    quantized = dimorder.quantize(net, [x, x * 0.9], target="xnnpack")
    program = torch.export.export(quantized.module, (x,))
    run = _QuantizedRun(graph_with_tensors(program))
    run.run(x)
    margins = rounding_errors(program, (x,), run.quantized, draws=DRAWS[1]).read
    norm = next(n for n in program.graph.nodes if "relu" in str(n.target))
    (quantize,) = norm.users
    margin = margins[quantize.name]
    assert isinstance(margin, Tensor)
    in_quanta = margin / args_of(quantize)[1]
    others = torch.cat([in_quanta[:, :3], in_quanta[:, 4:]], 1)
    assert float(in_quanta[:, 3].max()) > 1 > 100 * float(others.max())


def test_margins_move_with_the_elements() -> None:
    """The network quantises what is moved; the program moves what is quantised."""

    class Moves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = QUANTIZE(x, 0.5, 0, -128, 127, torch.int8).permute(1, 0)
            return y

    x = torch.randint(-40, 40, (3, 5)).float()
    program = torch.export.export(Moves(), (x,)).module()
    (moved,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.permute.default)
    wanted, margin = (2 * x).to(torch.int8).T.clone(), torch.zeros(5, 3)
    wanted[1, 2] += 7
    for share, most in ((1.0, 7), (2.0, 1)):  # in units of x, of which a quantum is a half
        margin[1, 2] = share
        run = Float64Run(program, {moved.name: wanted}, margins={moved.name: margin})
        run.run(x)
        assert run.differences[moved].most == most
