"""Test zeros, infinities, NaN, subnormal and huge numbers in every operator, on each target and in torch.
Differences are listed with their reasons; a list that is too long fails."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

from dimorder.targets.tosa import logic, pointwise
from dimorder.targets.xnnpack import pointwise as xnnpack
from dimorder.targets.xnnpack import run
from tests.targets import tosa_runs, xnnpack_runs
from tests.targets.cases import D, Net, aten

SPECIAL = {
    "0": 0.0,
    "-0": -0.0,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
    "1e-41": 1e-41,  # subnormal
    "1e30": 1e30,
    "-1e30": -1e30,
    "1.5": 1.5,
    "-2.5": -2.5,
}
VALUES = torch.tensor(list(SPECIAL.values()))
LEFT, RIGHT = (grid.contiguous() for grid in torch.meshgrid(VALUES, VALUES, indexing="ij"))

# What follows the tensors of a call, where something must.
REST: dict[Any, tuple[Any, ...]] = {
    aten.clamp.default: (-1.0, 2.0),
    aten.clamp_min.default: (-1.0,),
    aten.clamp_max.default: (2.0,),
    aten.hardtanh.default: (-1.0, 2.0),
    **{getattr(aten, name).Scalar: (1.5,) for name in ("add", "sub", "rsub", "mul", "div")},
    **{getattr(aten, name).Scalar: (1.5,) for name in ("eq", "ne", "gt", "lt", "ge", "le")},
}
# Those that have exponents, roundings and masks of their own, or compute on truths.
APART: dict[str, Callable[..., Tensor]] = {
    **{f"pow {e}": lambda x, e=e: x**e for e in (-3, -2, -1, -0.5, 0.5, 1, 1.5, 2, 3)},
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "prelu": lambda x: D.prelu_last(x.view(-1, 1), torch.tensor([0.25])).view(-1),
}
NO_NUMBERS = {
    "logical",
    "bitwise",
    "where",
    "masked",
    "_to",
    "div.Tensor_mode",
    "div.Scalar_mode",
    "clamp.Tensor",
}


def calls(rows: Any) -> dict[str, Callable[..., Tensor]]:
    """A function of one or two tensors for each row."""
    found = dict(APART)
    for operator in rows:
        name = str(operator).removeprefix("aten.").removesuffix(".default")
        if operator.namespace == "aten" and "pow" not in name and not name.startswith(tuple(NO_NUMBERS)):
            rest = REST.get(operator, ())
            found[name] = lambda *x, operator=operator, rest=rest: operator(*x, *rest)
    return found


def _image() -> Tensor:
    """NaN and infinities in the corners of an image, and side by side, in each channel others."""
    x = torch.randn(1, 7, 8, 3, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0], x[0, 6, 7] = (
        torch.tensor([math.inf, -math.inf, math.nan]),
        torch.tensor([math.nan, 1, math.inf]),
    )
    x[0, 3, 3], x[0, 3, 4] = (
        torch.tensor([math.inf, math.nan, 1.0]),
        torch.tensor([-math.inf, 2.0, -math.inf]),
    )
    return x


def _convolution(kernel: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    weight = torch.full((3, *kernel, 1), 0.5)
    return lambda x: D.conv2d_nhwc(x, weight, None, [1, 1], [0] * 4, [1, 1], 3)


def _mean(kernel: list[int], *rest: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: D.avg_pool2d_nhwc(x, kernel, [2, 2], [1, 1], *rest)


# What computes on planes, and where XNNPACK differs on x86: in how far the reason is not that of a row above.
MAX_DROPS_NAN = "the maximum of NaN and a number is the number"
MEAN_DROPS_NAN = "the node for means ends in a maximum with -inf; of 4, 9 and 25 taps it is a convolution"
TAPS_FILLED_UP = "kernels have 3, 4, 9 or 25 taps: what is left reads another pixel, times 0"
LINES = "from one pixel towards the next by a part of their difference, which is NaN for an infinity"
ON_X86_ALONE = {MAX_DROPS_NAN, MEAN_DROPS_NAN}  # on Arm a maximum keeps NaN
PLANES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "max pool": (lambda x: D.max_pool2d_nhwc(x, [2, 2], [2, 2], [0, 0], [1, 1], False), MAX_DROPS_NAN),
    "max pool, one pixel": (lambda x: D.max_pool2d_nhwc(x, [1, 1], [2, 3], [0, 0], [1, 1], False), ""),
    "average pool, 2x2": (_mean([2, 2], False, True, None), ""),
    "average pool, 3x3": (_mean([3, 3], True, False, None), ""),
    "average pool, divisor": (_mean([2, 2], True, True, 3), ""),
    "average pool, one pixel": (
        lambda x: D.avg_pool2d_nhwc(x, [1, 1], [2, 3], [0, 0], False, True, None),
        "",
    ),
    "average pool, 2x3": (_mean([2, 3], False, True, None), MEAN_DROPS_NAN),
    "depthwise, 3x3": (_convolution((3, 3)), ""),
    "depthwise, 2x3": (_convolution((2, 3)), TAPS_FILLED_UP),
    "nearest": (lambda x: D.upsample_nearest2d_nhwc(x, [14, 16], None, None), ""),
    "bilinear": (lambda x: D.upsample_bilinear2d_nhwc(x, [14, 16], False, None, None), LINES),
    "mean of planes": (lambda x: x.mean((1, 2)), ""),
    "mean of channels": (lambda x: x.mean(3), ""),
    "sum": (lambda x: x.sum((1, 3)), ""),
    "softmax": (lambda x: x.softmax(3), ""),
    "layer norm": (lambda x: F.layer_norm(x, (3,)), ""),
}


def inputs_of(name: str, rows: Any) -> tuple[Tensor, ...]:
    schema = next((o._schema for o in rows if str(o).removesuffix(".default") == f"aten.{name}"), None)
    tensors = 1 if schema is None else sum(str(a.type) == "Tensor" for a in schema.arguments)
    return (VALUES,) if tensors == 1 else (LEFT, RIGHT)


def differing(got: Tensor, wanted: Tensor, inputs: tuple[Tensor, ...]) -> set[str]:
    """The numbers for which a target gives something else; the sign of zero does not count."""
    if wanted.is_floating_point():
        same = torch.isclose(got, wanted, rtol=1e-4, atol=1e-30, equal_nan=True)
    else:
        same = got == wanted
    names = list(SPECIAL)
    places = (~same).nonzero().tolist()
    return {" ".join(names[i] for i in place) for place in places}


# XNNPACK's threads take subnormal numbers for zero, and TOSA's reference model does as good as that.
SUBNORMAL = {"1e-41"}
SUBNORMAL_DIVISOR = {"-0 1e-41", "0 1e-41", "1e-41 1e-41"}
SUBNORMAL_FACTOR = {f"{a} 1e-41" for a in ("inf", "-inf", "1e30", "-1e30")}
SUBNORMAL_FACTOR |= {f"1e-41 {a}" for a in ("inf", "-inf", "1e30", "-1e30")}
# On x86 a maximum is what comes second where one is NaN.
NAN_FIRST = {f"nan {name}" for name in SPECIAL if name != "nan"}
# XNNPACK's root is the number times its reciprocal root: inf · 0.
ROOT = {"inf", *SUBNORMAL}
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"  # its kernels are others
# XNNPACK's sigmoid is NaN from 1e27 on, its sine and cosine from 1e9 on.
HUGE = {"1e30", "-1e30"}
SIGMOID = HUGE if HAS_AVX512 else set()
# Where torch's own kernel makes NaN of infinity.
GELU = {"inf"} if HAS_AVX512 else set()
LOG = SUBNORMAL if HAS_AVX512 else {*SUBNORMAL, "inf", "nan"}
LOG_ON_ARM = {*SUBNORMAL, "inf", "nan"}
DEVIATIONS: dict[str, dict[str, set[str]]] = {
    "xnnpack": {
        "mul.Tensor": SUBNORMAL_FACTOR,
        "div.Tensor": {*SUBNORMAL_DIVISOR, "1e-41 -0", "1e-41 0"},
        "maximum": NAN_FIRST,
        "minimum": NAN_FIRST,
        "sqrt": ROOT,
        "rsqrt": ROOT,
        "pow 0.5": ROOT,
        "pow -0.5": ROOT,
        "pow 1.5": {"inf", "-inf"},
        "sigmoid": SIGMOID,
        "silu": SIGMOID,
        "sin": HUGE,
        "cos": HUGE,
        "gelu": GELU,
        "exp": {"nan"},  # its kernel bounds the number first, as the maximum does
        **dict.fromkeys(("log", "log2", "log10"), LOG),
        "ceil": SUBNORMAL,
    },
    "tosa": {"div.Tensor": SUBNORMAL_DIVISOR, "gelu": GELU},
    # A maximum keeps NaN there, and the root of infinity is infinity (tests/device/test_kernels.py).
    "xnnpack on Arm": {
        "mul.Tensor": SUBNORMAL_FACTOR,
        "div.Tensor": {*SUBNORMAL_DIVISOR, "1e-41 -0", "1e-41 0"},
        **dict.fromkeys(("sqrt", "rsqrt", "pow 0.5", "pow -0.5", "ceil"), SUBNORMAL),
        "pow 1.5": {"-inf"},
        **dict.fromkeys(("sin", "cos"), HUGE),
        "gelu": GELU,
        **dict.fromkeys(("log", "log2", "log10"), LOG_ON_ARM),
    },
}
# TOSA's POW takes no negative base: these are refused, and the third stops the reference model.
NO_BASE = {"pow -3", "pow -2", "pow 1.5"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the list is of x86")
@pytest.mark.parametrize("name", calls(xnnpack.ROWS))
def test_xnnpack(name: str) -> None:
    function, inputs = calls(xnnpack.ROWS)[name], inputs_of(name, xnnpack.ROWS)
    file = xnnpack_runs.emitted(Net(function), inputs)
    (got,) = run(file.data, list(inputs))
    assert differing(got, function(*inputs), inputs) == DEVIATIONS["xnnpack"].get(name, set())


TOSA = {**pointwise.ROWS, **logic.ROWS}


@pytest.mark.parametrize("name", sorted(set(calls(TOSA)) - NO_BASE))
def test_tosa(name: str) -> None:
    function, inputs = calls(TOSA)[name], inputs_of(name, TOSA)
    (got,) = tosa_runs.emitted(Net(function), inputs).run(list(inputs))
    assert differing(got, function(*inputs), inputs) == DEVIATIONS["tosa"].get(name, set())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the list is of x86")
@pytest.mark.parametrize("name", PLANES)
def test_xnnpack_on_planes(name: str) -> None:
    function, reason = PLANES[name]
    x = _image()
    (got,) = run(xnnpack_runs.emitted(Net(function), (x,)).data, [x])
    alike = torch.allclose(got, function(x), rtol=1e-4, atol=1e-6, equal_nan=True)
    assert alike == (not reason), reason
