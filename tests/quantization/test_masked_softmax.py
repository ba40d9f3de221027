"""Test softmaxes of masked scores in parts, which TOSA computes in integers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.constants import without_writes_to_parts
from dimorder.quantization.masked_softmax import rewrite_masks
from dimorder.quantization.plain_calls import write_plainly
from tests.quantization.masked_networks import BATCH, LENGTH, NETWORKS, RARE, WIDTH, Attention, example
from tests.small_networks import Net


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


@pytest.mark.parametrize("name", [*NETWORKS, *RARE])
def test_masked_scores_are_integers(name: str) -> None:
    torch.manual_seed(0)
    net = {**NETWORKS, **RARE}[name]().eval()
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


class Biased(Attention):
    """Attention whose scores are shifted and filled by numbers that no mask would have."""

    def __init__(self, shift: float, fill: float) -> None:
        super().__init__("")
        self.fill = fill
        self.register_buffer("shift", torch.full((1,), shift))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        q, k, v = (f(x).view(BATCH, LENGTH, 3, 8).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / 8 + self.shift
        y = scores.masked_fill(~kept[:, None, None, :], self.fill).softmax(-1) @ v
        out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return out


@pytest.mark.parametrize(("shift", "fill"), [(-50.0, -1e9), (-1000.0, -900.0), (-200.0, -150.0)])
def test_a_fill_hides_only_what_is_above_it(shift: float, fill: float) -> None:
    """A fill above the scores gets all the weight, and a shift of all scores hides none."""
    torch.manual_seed(0)
    net, examples = Biased(shift, fill).eval(), [example() for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    for inputs in examples:
        expected = net(*inputs)
        assert (quantized.module(*inputs) - expected).norm() < 0.05 * expected.norm()


def test_a_float_mask_may_be_an_input() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            q, k, v = (part.view(BATCH, LENGTH, 3, 8).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            out: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
            return out

    torch.manual_seed(0)
    examples = [(x, torch.where(kept[:, None, None, :], 0.0, -1e9)) for x, kept in (example(), example())]
    quantized = dimorder.quantize(Given().eval(), examples, target="tosa")
    (fidelity,) = quantized.compare(dimorder.lower(quantized, examples[0], target="tosa"))
    assert fidelity.snr_db is not None and fidelity.snr_db > 28


class Counting(Attention):
    def __init__(self) -> None:
        super().__init__("filled with -inf")
        self.register_buffer("sum", torch.zeros(WIDTH))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        self.sum.mul_(0.5).add_(x.mean((0, 1)))
        self.calls.add_(1)
        return super().forward(x + self.sum, kept)


@pytest.mark.parametrize("target", ["tosa", "xnnpack"])
def test_the_networks_state_stays(target: str) -> None:
    torch.manual_seed(0)
    net, examples = Counting().eval(), [example() for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target=target)
    assert not any(buffer.any() for each in (net, quantized.original) for buffer in each.buffers())


class Choice(nn.Module):
    """The logarithms of the weights of actions, of which some are forbidden."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 11)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        return self.linear(x).masked_fill(~allowed, -1e9).log_softmax(-1)


def test_logarithms_of_weights_that_count_are_kept() -> None:
    torch.manual_seed(0)
    net, examples = Choice().eval(), [(torch.randn(3, 24), torch.rand(3, 11) > 0.4) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    assert dimorder.lower(quantized, examples[0], target="tosa").max_rel_error < 0.02
    for x, allowed in examples:
        expected, y = net(x, allowed)[allowed], quantized.module(x, allowed)[allowed]
        assert (y - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize("known", ["query", "key"])
def test_attention_of_learned_queries_or_keys(known: str) -> None:
    """Arm's pass for attention multiplies each of both by a number, and a later pass takes no constant."""
    torch.manual_seed(0)
    learned = nn.Parameter(torch.randn(1, 3, 5, 8))

    def attend(net: Net, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (3, 8)).transpose(1, 2) for each in (net.query, net.key, net.value))
        q, k, v = (learned, k, v) if known == "query" else (q, learned, v[:, :, :5])
        return functional.scaled_dot_product_attention(q, k, v, scale=0.4)

    net = Net(attend, **{name: nn.Linear(10, 24) for name in ("query", "key", "value")}).eval()
    examples = [torch.randn(1, 7, 10) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    (fidelity,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target="tosa"))
    assert fidelity.snr_db is not None and fidelity.snr_db > 25
