"""Test the calls that are written for quantizers: linears, sums, fills, and complex numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.quantization.plain_calls import write_plainly
from tests.marks import require_runtime


class Products(nn.Module):
    def __init__(self, product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.product = product
        self.weight, self.bias = nn.Parameter(torch.randn(24, 11)), nn.Parameter(torch.randn(11))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.weight, self.bias)


PRODUCTS = {
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
    "mm": lambda x, w, b: torch.mm(x, w) + b,
    "matmul": lambda x, w, b: x[None] @ w + b,
}


@pytest.mark.parametrize("target", ["xnnpack", "litert", "tosa"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_parameter_has_int8_weights(name: str, target: str) -> None:
    if target == "tosa":
        pytest.importorskip("tosa_serializer")
    else:
        require_runtime(target)
    torch.manual_seed(0)
    net, examples = Products(PRODUCTS[name]).eval(), [torch.randn(5, 24) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, target=target)
    assert torch.int8 in {tensor.dtype for tensor in quantized.module.state_dict().values()}
    (fidelity,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target=target))
    assert fidelity.snr_db is not None and fidelity.snr_db > 30


@pytest.mark.parametrize("recipe", ["int8", "int8-dynamic"])
def test_scores_by_the_transposed_table_of_embeddings_have_int8_weights(recipe: str) -> None:
    require_runtime("xnnpack")
    torch.manual_seed(0)
    net = Products(lambda x, w, b: x[:, :11] @ w.t()).eval()
    examples = [torch.randn(5, 24) for _ in range(3)]
    quantized = dimorder.quantize(net, examples, recipe, target="xnnpack")
    weights = [each for each in quantized.module.state_dict().values() if each.dtype == torch.int8]
    assert [tuple(each.shape) for each in weights] == [(24, 11)]
    (fidelity,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target="xnnpack"))
    assert fidelity.snr_db is not None and fidelity.snr_db > 30


class Filled(nn.Module):
    def __init__(self, reads_before: bool) -> None:
        super().__init__()
        self.reads_before = reads_before

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = y.view(-1) if self.reads_before else y
        y.masked_fill_(x > 0, -1.0)
        return z + 1


@pytest.mark.parametrize("reads_before", [False, True])
def test_a_fill_in_place_is_a_new_value_if_nothing_else_reads_it(reads_before: bool) -> None:
    net, x = Filled(reads_before), torch.randn(3, 5)
    model = torch.export.export(net, (x,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    write_plainly(model)
    assert torch.equal(model(x), net(x))


def test_scaled_sums_stay() -> None:
    net = Products(lambda x, w, b: torch.addmm(b, x, w, beta=0.5)).eval()
    x = torch.randn(5, 24)
    model = torch.export.export(net, (x,)).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    write_plainly(model)
    assert torch.equal(model(x), net(x))
    assert any("addmm" in str(node.target) for node in model.graph.nodes)


class Spectrum(nn.Module):
    """Makes a signal of magnitudes and phases, as vocoders do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.magnitude, self.phase = nn.Linear(12, 9), nn.Linear(12, 9)

    def forward(self, x: Tensor) -> Tensor:
        size, angle = self.magnitude(x).exp(), self.phase(x)
        y: Tensor = torch.fft.irfft(size * (torch.cos(angle) + 1j * torch.sin(angle)))
        return y


@pytest.mark.parametrize("target", ["xnnpack", "litert"])
def test_a_complex_number_stays_complex(target: str) -> None:
    require_runtime(target)
    net, x = Spectrum().eval(), torch.randn(5, 12)
    quantized = dimorder.quantize(net, [torch.randn(5, 12) for _ in range(4)] + [x], target=target)
    lowered = dimorder.lower(quantized, target=target)
    with torch.no_grad():
        torch.testing.assert_close(lowered(x), net(x), rtol=0.1, atol=0.1)
