"""Biases of quantised networks: they take back what rounded weights add to the means of a channel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.quantization import quantize as quantizing
from tests.marks import slow_but


class Depthwise(nn.Module):
    """Convolutions, one of few weights a channel, with a norm and without, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, (3, 2), groups=8)
        self.third = nn.Linear(8, 5)
        self.last = nn.Linear(5, 7, bias=False)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(torch.relu(self.norm(self.first(x)))).mean((2, 3))
        return self.last(torch.relu(self.third(x)))


class Recurrent(nn.Module):
    """A recurrent layer, which Arm's quantizer writes out as linears, and a linear of the same sizes."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recurrent = kind(11, 11, batch_first=True)
        self.last = nn.Linear(11, len(self.recurrent.bias_ih_l0))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.recurrent(x)[0]).mean(1)


def inputs(count: int, *sizes: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [1 + torch.randn(2, *sizes, generator=draw) for _ in range(count)]


def means(run: nn.Module, examples: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.stack([run(x) for x in examples]).mean((0, 1))


@pytest.mark.parametrize("target", slow_but(["xnnpack", "tosa"], ["tosa"]))
def test_the_means_of_a_quantised_network_are_nearer_to_the_float_ones(monkeypatch, target: str) -> None:
    if target == "tosa":
        pytest.importorskip("ethosu")
    net, examples = Depthwise().eval(), inputs(8, 3, 9, 11)
    held = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    corrected = dimorder.quantize(net, examples, target=target)
    assert all(torch.equal(tensor, held[name]) for name, tensor in net.state_dict().items())
    with monkeypatch.context() as patch:
        patch.setattr(quantizing, "correct_biases", lambda *_: None)
        plain = dimorder.quantize(net, examples, target=target)
    wanted = means(net, examples)
    assert torch.equal(means(corrected.original, examples), wanted)
    off = [(means(made.module, examples) - wanted).abs().mean() for made in (corrected, plain)]
    assert off[0] < 0.6 * off[1]
    lowered = dimorder.lower(corrected, target=target)
    assert lowered.verified.max_rel_error < 0.05


@pytest.mark.parametrize("kind", slow_but([nn.LSTM, nn.GRU], [nn.LSTM]))
def test_linears_of_a_recurrent_layer_are_not_taken_for_the_networks_own(kind: type[nn.RNNBase]) -> None:
    pytest.importorskip("ethosu")
    net, examples = Recurrent(kind).eval(), inputs(4, 5, 11)
    wanted = means(net, examples)
    off = (means(dimorder.quantize(net, examples, target="tosa").module, examples) - wanted).abs()
    assert off.max() < 0.02 * wanted.abs().max()


UNBATCHED = {
    "1-D": (nn.Conv1d(3, 5, 3), (3, 11)),
    "2-D": (nn.Conv2d(3, 5, (3, 2), groups=1), (3, 8, 9)),
    "3-D": (nn.Conv3d(3, 5, 2), (3, 4, 6, 7)),
}


@pytest.mark.parametrize("target", ["xnnpack", "tosa"])
@pytest.mark.parametrize("name", UNBATCHED)
def test_a_convolution_of_one_image_without_a_batch(name: str, target: str) -> None:
    pytest.importorskip("ethosu")
    conv, sizes = UNBATCHED[name]
    net, examples = nn.Sequential(conv, nn.ReLU()).eval(), [inputs(4, *sizes)[i][0] for i in range(4)]
    wanted = torch.stack([net(x).detach() for x in examples])
    found = torch.stack([dimorder.quantize(net, examples, target=target).module(x) for x in examples])
    assert (found - wanted).abs().max() < 0.05 * wanted.abs().max()
