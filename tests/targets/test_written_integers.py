"""Test that what is written for XNNPACK agrees with the physical program. The model of the kernels is made of
what was written, and would agree with anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError
from dimorder.verification.numerics import Float64Run

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.graph.quantized import QUANTIZE
from dimorder.targets.xnnpack import exact, passes
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.graph import XnnBytes, XnnGraph
from tests.targets.quantised import INT8, Difference

X, Y = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


Node = Callable[..., Any]
node, finish = XnnBuilder.node, passes.finish


def converts(**wrong: Callable[[Any], Any]) -> Node:
    """A writer of nodes that quantises by another type."""

    def written(writer: XnnBuilder, kind: str, shape: Any, *, result_type: Any = None, **fields: Any) -> Any:
        if kind == "Convert" and result_type is not None:
            changed = {name: change(getattr(result_type, name)) for name, change in wrong.items()}
            result_type = replace(result_type, **changed)
        return node(writer, kind, shape, result_type=result_type, **fields)

    return written


def swaps(writer: XnnBuilder, kind: str, shape: Any, **fields: Any) -> Any:
    if kind == "Subtract":
        fields |= {"input1_id": fields["input2_id"], "input2_id": fields["input1_id"]}
    return node(writer, kind, shape, **fields)


def lies_otherwise(writer: XnnBuilder, kind: str, shape: Any, **fields: Any) -> Any:
    if kind == "Subtract":  # 5 by 7 as 7 by 5
        first = node(
            writer,
            "StaticReshape",
            (2, 6, 7, 5),
            new_shape=[2, 6, 7, 5],
            num_dims=4,
            input_id=fields["input2_id"],
        )
        turned = node(writer, "StaticTranspose", shape, perm=[0, 1, 3, 2], num_dims=4, input_id=first.id)
        fields["input2_id"] = turned.id
    return node(writer, kind, shape, **fields)


def other_channels(graph: XnnGraph) -> Any:
    """The scales of a weight, each for the channel beside its own."""
    islands = finish(graph)
    for value in graph.values:
        if value.constant is not None and value.constant.scales is not None:
            rolled = value.constant.scales.values.roll(1)
            scales = replace(value.constant.scales, values=rolled, stored=XnnBytes.of(rolled))
            value.constant = replace(value.constant, scales=scales)
    return islands


def other_sequence(graph: XnnGraph) -> Any:
    islands = finish(graph)
    graph.outputs.reverse()
    return islands


WRONG: dict[str, tuple[str, Node, str]] = {
    "a scale": (
        "node",
        converts(scale=lambda scale: scale * 1.03),
        "quantize_per_tensor .* as it was written",
    ),
    "a zero point": (
        "node",
        converts(zero_point=lambda point: point + 1),
        "quantize_per_tensor .* off by up to 1,",
    ),
    "a swapped operand": ("node", swaps, "quantize_per_tensor .* as it was written"),
    "an operand that lies otherwise": ("node", lies_otherwise, "quantize_per_tensor .* as it was written"),
    "the scales of a weight": ("finish", other_channels, "quantize_per_tensor .* as it was written"),
    "outputs in another sequence": ("finish", other_sequence, "what was written for XNNPACK"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_writer_that_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, wrong, told = WRONG[name]
    monkeypatch.setattr(passes if method == "finish" else XnnBuilder, method, wrong)
    with pytest.raises(VerificationError, match=f"(?s){told}"):
        dimorder.lower(Difference(), (X, Y), target="xnnpack")
    monkeypatch.setattr(exact, "require_meant", lambda *each: None)
    dimorder.lower(Difference(), (X, Y), target="xnnpack")  # nothing else would find it


def test_each_value_that_is_quantised_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = list[str]()
    require = exact.require_meant

    def required(physical: Any, inputs: Any, results: Any, integers: Any, name: str) -> None:
        compared.extend(node.name for node in integers)
        require(physical, inputs, results, integers, name)

    monkeypatch.setattr(exact, "require_meant", required)
    lowered = dimorder.lower(Difference(), (X, Y), target="xnnpack", input_orders="NHWC")
    quantises = [n.name for n in lowered.physical.graph.nodes if n.target is QUANTIZE]
    assert compared == quantises and len(compared) == 4


def test_integers_that_lie_otherwise_in_the_graph_are_compared_as_the_program_has_them() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return QUANTIZE(x, 0.5, 3, *INT8).view(6)

    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(3))
    module = torch.export.export(Rows(), (x,)).module(check_guards=False)
    (wanted,) = Float64Run(module).tensors(x)
    name = next(node.name for node in module.graph.nodes if node.target is QUANTIZE)
    run = Float64Run(module, {name: wanted.reshape(2, 3).t().contiguous().t()})
    (got,) = run.tensors(x)
    assert torch.equal(got, wanted) and [each.off for each in run.differences.values()] == [0]
