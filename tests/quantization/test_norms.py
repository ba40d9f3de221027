"""Test norms that Arm's quantizers do not know: instance norms, by root mean squares, and cosines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.norms import rewrite_cosines, rewrite_deviations, rewrite_norms
from dimorder.verification.relative_error import relative_error
from tests.quantization.rewriting import rewritten
from tests.small_networks import Net

NORMS = {
    "instance": nn.InstanceNorm2d(8),
    "instance, affine": nn.InstanceNorm2d(8, affine=True),
    "instance, running": nn.InstanceNorm2d(8, track_running_stats=True),
    "root mean square": nn.RMSNorm(10),
    "root mean square of planes": nn.RMSNorm((12, 10), eps=1e-3, elementwise_affine=False),
}


def perturbed(norm: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1.0, 0.2)
    return norm.eval()


@pytest.mark.parametrize("name", NORMS)
def test_rewritten_norms_compute_the_same(name: str) -> None:
    norm, x = perturbed(NORMS[name]), torch.randn(2, 8, 12, 10) + 0.5
    module = rewritten(norm, x, rewrite_norms)
    torch.testing.assert_close(module(x), norm(x))


@pytest.mark.parametrize("target", ["tosa", "ethos-u85-256"])
@pytest.mark.parametrize("name", [name for name in NORMS if "running" not in name])
def test_norms_are_computed_in_integers(name: str, target: str) -> None:
    norm = perturbed(NORMS[name])
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(8, 6, 3)).eval()
    examples = [torch.randn(1, 3, 12, 10) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target=target)
    with torch.no_grad():
        assert relative_error(quantized.module(examples[0]), net(examples[0])) < 0.05
    assert dimorder.lower(quantized, (examples[0],), target=target).max_rel_error == 0


class Cosines(nn.Module):
    """Similarities of a row with others, which are read from a smaller tensor."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear, self.dim = nn.Linear(12, 10), dim

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return nn.functional.cosine_similarity(x[:, 1:], x[:, :1], dim=self.dim)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rewritten_cosines_compute_the_same(dim: int) -> None:
    net, x = Cosines(dim), torch.randn(3, 5, 12)
    x[1, 2:] = 0
    module = rewritten(net, x, rewrite_cosines)
    torch.testing.assert_close(module(x), net(x))


@pytest.mark.parametrize("dim", [0, -1])
def test_cosines_are_computed_in_integers(dim: int) -> None:
    torch.manual_seed(4)
    net, examples = Cosines(dim).eval(), [torch.randn(3, 5, 12) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target="tosa"))
    assert found.snr_db is not None and found.snr_db > 28


DEVIATIONS = {
    "of planes": lambda m, x: x.std((2, 3)),
    "of channels, kept": lambda m, x: x.std(1, correction=0, keepdim=True),
    "of all elements": lambda m, x: x.std(),
    "variance of all elements": lambda m, x: x.var(),
    "by dimensions": lambda m, x: x.std((-1, 2), unbiased=False),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_rewritten_deviations_compute_the_same(name: str) -> None:
    net, x = Net(DEVIATIONS[name]), torch.randn(2, 8, 12, 10) + 0.5
    module = rewritten(net, x, rewrite_deviations)
    assert "std" not in module.code
    torch.testing.assert_close(module(x), net(x))


@pytest.mark.parametrize("name", DEVIATIONS)
def test_deviations_are_computed_in_integers(name: str) -> None:
    torch.manual_seed(6)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), Net(DEVIATIONS[name])).eval()
    examples = [torch.randn(2, 3, 12, 10) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target="tosa"))
    assert found.snr_db is not None and found.snr_db > 35
