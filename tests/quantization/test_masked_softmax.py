"""Test softmaxes of masked scores in parts, which TOSA computes in integers."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.constants import without_writes_to_parts
from dimorder.quantization.masked_softmax import rewrite_masks
from dimorder.quantization.plain_calls import write_plainly
from tests.quantization.masked_networks import NETWORKS, Attention, example


@pytest.mark.parametrize("name", NETWORKS)
def test_the_parts_compute_the_same(name: str) -> None:
    torch.manual_seed(1)
    net, examples = NETWORKS[name]().eval(), [example() for _ in range(3)]
    exported = without_writes_to_parts(torch.export.export(net, examples[0]))
    model = exported.module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    write_plainly(model)
    rewrite_masks(model, examples)
    assert not any("softmax" in str(node.target) for node in model.graph.nodes)
    for inputs in examples:
        torch.testing.assert_close(model(*inputs), net(*inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_masked_scores_are_integers(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]().eval()
    quantized = dimorder.quantize(net, [example() for _ in range(4)], target="tosa")
    lowered = dimorder.lower(quantized, example(), target="tosa")
    assert lowered.max_rel_error == 0
    (fidelity,) = quantized.compare(lowered)
    assert fidelity.snr_db is not None and fidelity.snr_db > 28


def test_ethos_u_compiles_masks() -> None:
    torch.manual_seed(0)
    net = Attention("filled with -inf").eval()
    quantized = dimorder.quantize(net, [example() for _ in range(4)], target="ethos-u85-256")
    assert dimorder.lower(quantized, example(), target="ethos-u85-256").max_rel_error == 0


def test_a_row_that_hides_everything_gives_zeros() -> None:
    torch.manual_seed(0)
    net, (x, kept) = Attention("filled with -inf").eval(), example()
    model = torch.export.export(net, (x, kept)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    rewrite_masks(model, [(x, kept)])
    kept[1] = False
    y = model(x, kept)
    torch.testing.assert_close(y[0], net(x, kept)[0])
    torch.testing.assert_close(y[1], net.out.bias.expand_as(y[1]))
