"""Quantised networks on target xnnpack: int8 nodes between converts, each held to its kernel's arithmetic bit
for bit (`targets/xnnpack/model.py`; a lowering whose file gives other bits is refused).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.lowering.operators.quantisation import DEQUANTIZE, QUANTIZE
from dimorder.targets.xnnpack.backend import XnnWriter

INT8 = (-128, 127, torch.int8)


def quantised(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return DEQUANTIZE(QUANTIZE(x, scale, zero_point, *INT8), scale, zero_point, *INT8)


class Between(nn.Module):
    """One operator between quantised values of awkward scales and zero points."""

    def __init__(self, compute: Callable[..., Tensor], result: tuple[float, int]) -> None:
        super().__init__()
        self.compute, self.result = compute, result

    def forward(self, *inputs: Tensor) -> Tensor:
        return quantised(self.compute(*(quantised(x, 0.0247, 5) for x in inputs)), *self.result)


def by_pt2e(model: nn.Module, x: Tensor) -> nn.Module:
    """As XNNPACKQuantizer quantises it, per channel."""
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as quantizer
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    chosen = quantizer.XNNPACKQuantizer()
    chosen.set_global(quantizer.get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(model.eval(), (x,)).module(), chosen)
    prepared(x)
    prepared(x.flip(-1) * 1.1)
    return convert_pt2e(prepared)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The kinds of the nodes in the graphs that are written."""
    found: Counter[str] = Counter()
    finish = XnnWriter.finish

    def finished(writer: XnnWriter) -> Any:
        blob = finish(writer)
        found.update(kind for kind, _, _ in writer.model().nodes)
        return blob

    monkeypatch.setattr(XnnWriter, "finish", finished)
    return found


X, Y = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
IN_INT8: dict[str, Any] = {
    "hardswish": (F.hardswish, (X,)),
    "sigmoid": (torch.sigmoid, (X,)),
    "tanh": (torch.tanh, (X,)),
    "gelu": (F.gelu, (X,)),
    "elu": (F.elu, (X,)),
    "exp": (torch.exp, (X,)),
    "abs": (torch.abs, (X,)),
    "square": (torch.square, (X,)),
    "sin": (torch.sin, (X,)),
    "add": (torch.add, (X, Y)),
    "sub": (torch.sub, (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "mul, broadcast": (torch.mul, (X, Y[:, :, :1, :1].contiguous())),
    "mean over space": (lambda x: x.mean((2, 3)), (X,)),
    "requantised": (lambda x: x, (X,)),
}


@pytest.mark.parametrize("result", [(0.0311, -7), (0.0089, 3)])
@pytest.mark.parametrize("name", IN_INT8)
def test_an_operator_between_quantised_values_computes_in_int8(
    name: str, result: tuple[float, int], kinds: Counter[str]
) -> None:
    compute, inputs = IN_INT8[name]
    lowered = dimorder.lower(Between(compute, result), inputs, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert kinds["Convert"] == len(inputs) + 1  # each input's, and the output's


def test_softmax_is_a_float_island(kinds: Counter[str]) -> None:
    lowered = dimorder.lower(Between(lambda x: x.softmax(1), (1 / 256, -128)), (X,), target="xnnpack")
    assert (lowered.artifact.delegates, kinds["Convert"]) == (1, 4)


class Net(nn.Module):
    """Convolutions, depthwise and transposed too, a residual, a cat of two scales, a pool, a linear."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.point = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = x + self.point(F.hardtanh(self.depthwise(x), 0.0, 6.0))
        y = F.max_pool2d(self.up(x), 2)
        return self.last(torch.cat([x, y], 1).mean((2, 3)))


@pytest.mark.parametrize(("order", "conversions"), [("NCHW", 1), ("NHWC", 0)])
def test_a_network_is_one_delegate_of_int8(order: str, conversions: int, kinds: Counter[str]) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    lowered = dimorder.lower(by_pt2e(Net(), x), (x,), target="xnnpack", input_orders=order)
    told = lowered.to_dict()
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert (told["optimal"], told["conversion_count"]) == (True, conversions)
    assert kinds["Convert"] == 2
    if conversions:
        assert told["cost"] == x.numel()  # int8: a byte for each element


def test_a_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.xnnpack import model

    right = model._scaled
    monkeypatch.setattr(model, "_scaled", lambda sums, scale, of: right(sums, scale * 1.01, of))
    with pytest.raises(VerificationError, match="are not what its integer kernels should give"):
        dimorder.lower(Between(torch.mul, (0.0311, -7)), (X, Y), target="xnnpack")
