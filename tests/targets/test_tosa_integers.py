"""Test quantised networks on target tosa: Arm's reference model gives the bits of our model of TOSA's
arithmetic (`targets/tosa/integers/model.py`). Our model is compared with the exact numbers in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.integers.forms import Forms
from dimorder.targets.tosa.integers.numbers import numbers
from dimorder.targets.tosa.integers.ops import OPERATORS as INTEGERS
from dimorder.targets.tosa.integers.sums import as_sum
from dimorder.targets.tosa.target import TARGET, emit_integers
from dimorder.targets.tosa.target import target as tosa
from tests.targets.quantised import Between, Net, Product, by_arm, by_xnnpack, quantised

aten = torch.ops.aten
X, Y, Z = (  # of which many are beyond what their int8 values reach
    2 * torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2, 3)
)
RESULTS = ((0.0311, -7), (0.0089, 3), (0.0247, 6))


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "neg": torch.neg,
    "square": torch.square,
    "reciprocal": lambda x: (x.abs() + 0.7).reciprocal(),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.7).rsqrt(),
    "exp": torch.exp,
    "log": lambda x: (x.abs() + 0.7).log(),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": F.elu,
    "leaky relu": lambda x: F.leaky_relu(x, 0.13),
    "power": lambda x: x**3,
    "relu": torch.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.51, 0.77),
    "clamp": lambda x: x.clamp(-0.51, 0.77),
    "clamp_min": lambda x: x.clamp_min(-0.51),
    "clamp_max": lambda x: x.clamp_max(0.77),
    "requantised": lambda x: x,
    "add a number": lambda x: x + 0.37,
    "subtract it": lambda x: x - 0.37,
    "subtract from it": lambda x: aten.rsub.Scalar(x, 0.37, 2),
    "times a number": lambda x: x * -1.83,
    "divided by one": lambda x: x / 1.83,
    "a gate of itself": lambda x: x * torch.sigmoid(x * 1.7) + 0.1,
}
# Of these, the ones that stand for all where they are lowered in another way.
FEW_UNARY = ("square", "sigmoid", "gelu", "leaky relu", "relu", "clamp", "requantised", "add a number")
BETWEEN: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{name: (compute, (X,)) for name, compute in UNARY.items()},
    "add": (torch.add, (X, Y)),
    "add, alpha": (lambda x, y: torch.add(x, y, alpha=-0.3), (X, Y)),
    "add, broadcast": (torch.add, (X, Y[:, :1, :1].contiguous())),
    "add of three": (lambda x, y, z: x + y + z, (X, Y, Z)),
    "add of a constant": (lambda x: x + Y[0, :, :1, :1], (X,)),
    "add, then relu": (lambda x, y: torch.relu(x + y), (X, Y)),
    "add, then clamp, then add": (lambda x, y: (x + y).clamp(-0.3, 0.8) + x, (X, Y)),
    "relu, then add": (lambda x, y: torch.relu(x) + y, (X, Y)),
    "sigmoid, then add": (lambda x, y: torch.sigmoid(x) + y, (X, Y)),
    "sub": (torch.sub, (X, Y)),
    "sub, swapped": (lambda x, y: torch.rsub(x, y, alpha=0.7), (X, Y)),
    "mul": (torch.mul, (X, Y)),
    "mul, broadcast": (torch.mul, (X, Y[:, :, :1, :1].contiguous())),
    "mul by a constant": (lambda x: x * Y[0, :, :1, :1], (X,)),
    "mul of a sum": (lambda x, y, z: (x + y) * z, (X, Y, Z)),
    "mul by a gate": (lambda x, y: x * torch.sigmoid(y), (X, Y)),
    "div by int8 of each channel": (lambda x: x / quantised(Y[0, :, :1, :1].abs() + 0.9, 0.0213, -4), (X,)),
    "mul by next to nothing": (
        lambda x: x * torch.tensor([1.0, 1e-14, -0.3, 0.0, 2.0, 1e-30])[:, None, None],
        (X,),
    ),
    "mul of a vector": (lambda x: x[0, 0, 0] * Y[0, 0, 0], (X,)),
    "add, flattened, then relu": (lambda x: torch.relu((x + Y[0, :, :1, :1]).flatten(1) * 0.5)[:, 3:], (X,)),
    "div": (lambda x, y: x / (y.abs() + 0.9), (X, Y)),
    "maximum": (torch.maximum, (X, Y)),
    "minimum": (torch.minimum, (X, Y)),
    "maximum, one scale": (lambda x: torch.maximum(x, x.flip(2)), (X,)),
    "prelu": (lambda x: F.prelu(x, Y[0, :, 0, 0]), (X,)),
    "prelu, channels last": (lambda x: F.prelu(x.transpose(1, 3), Y[0, 0, 0]).transpose(1, 3), (X,)),
    "numbers as scalars": (
        lambda x: aten.div.Scalar(aten.mul.Scalar(aten.sub.Scalar(aten.add.Scalar(x, 2), 1), 3), 2),
        (X,),
    ),
    "sum": (lambda x: x.sum((1, 3)) * 0.3, (X,)),
    "mean over space": (lambda x: x.mean((2, 3)), (X,)),
    "mean over space, kept": (lambda x: x.mean((2, 3), keepdim=True), (X,)),
    "mean over channels": (lambda x: x.mean(1), (X,)),
    "mean over the last": (lambda x: x.mean(-1), (X,)),
    "mean of a product": (lambda x, y: (x * y).mean((2, 3)), (X, Y)),
    "amax": (lambda x: x.amax((2, 3)), (X,)),
    "amin": (lambda x: x.amin(1), (X,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (X,)),
    "max pool, dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, 2), (X,)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), (X,)),
    "average pool, uncounted": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (X,)),
    "average pool, ceil": (lambda x: F.avg_pool2d(x, (2, 3), 2, ceil_mode=True), (X,)),
    "average pool, divisor": (lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5), (X,)),
    "bilinear": (lambda x: F.interpolate(x, (9, 10), mode="bilinear"), (X,)),
    "bilinear, aligned": (
        lambda x: F.interpolate(x, (8, 12), mode="bilinear", align_corners=True),
        (Y,),
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (X,)),
    "cast to half precision": (lambda x: x.half().flip(2), (X,)),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 1)), (X,)),
    "reflect pad": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), (X,)),
    "transpose": (lambda x: x.transpose(1, 3), (X,)),
    "view": (lambda x: x.reshape(2, 3, 2, 35), (X,)),
    "slice": (lambda x: x[:, 1:4, :, 2:], (X,)),
    "flip": (lambda x: x.flip(2, 3), (X,)),
    "repeat": (lambda x: x.repeat(1, 2, 1, 3), (X,)),
    "index": (lambda x: x[:, [3, 0, 5, 0]], (X,)),
    "expand": (lambda x: x[:, :, :1].expand(-1, -1, 3, -1), (X,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "cat of sums": (lambda x, y: torch.cat([x + y, x], 1) * (0.2 * Y[0, :1]), (X, Y)),
    "moved floats": (lambda x, y: (x + y).transpose(1, 2)[:, 1:].flip(2).reshape(2, 4, 42), (X, Y)),
    "padded floats": (lambda x, y: F.pad(x + y, (1, 0, 2, 1)), (X, Y)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "log_softmax": (lambda x: x.log_softmax(-1), (X,)),
    "softmax over channels": (lambda x: (x * 0.3).softmax(1), (X,)),
    "layer norm": (lambda x: F.layer_norm(x, (7,)), (X,)),
    "layer norm, affine": (lambda x: F.layer_norm(x, (5, 7), Y[0, 0], Z[0, 0], 1e-3), (X,)),
    "layer norm of rows that are nearly constant": (lambda x: F.layer_norm(x, (7,)), (X * 0.01,)),
    "product of matrices": (lambda x, y: x @ y.transpose(2, 3), (X, Y)),
}


FEW_BETWEEN = BETWEEN.keys() - UNARY.keys() | set(FEW_UNARY)
PRODUCTS: dict[str, Any] = {
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)), (12, 6, 3, 2)),
    "of one scale and a zero point": (lambda x, w, b: F.conv2d(x, w, b, 1, 1), (12, 6, 3, 3), 0, 3),
    "without a bias": (lambda x, w, b: F.conv2d(x, w, b, 3, (0, 1)), (12, 6, 2, 2), 0, None, False),
    "grouped": (lambda x, w, b: F.conv2d(x, w, b, 1, (0, 1), 1, 2), (12, 3, 3, 5)),
    "depthwise": (lambda x, w, b: F.conv2d(x, w, b, (1, 2), (1, 2), 1, 6), (12, 1, 3, 5)),
    "transposed": (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (0, 1)), (6, 12, 3, 2), 1),
    "linear": (F.linear, (12, 7)),
    "in three dimensions": (lambda x, w, b: F.conv3d(x[:, :, None], w, b, 1, (1, 0, 2)), (12, 6, 2, 3, 3)),
    "of what is padded": (
        lambda x, w, b: F.conv2d(quantised(F.pad(x, (1, 2, 0, 1)), 0.0247, 5), w, b, (2, 1), 1),
        (12, 6, 3, 4),
    ),
    "dilated, as far apart as it reaches": (
        lambda x, w, b: F.conv2d(F.pad(x, (0, 1, 0, 3)), w, b, 4, 0, 3),
        (12, 6, 2, 2),
    ),
    "in one dimension": (lambda x, w, b: F.conv1d(x.flatten(2), w, b, 2, 1), (12, 6, 3)),
}
LARGEST = "argmax"


class Largest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return quantised(x, 0.0247, 5).argmax(1)


CASES = (*BETWEEN, *PRODUCTS, LARGEST)


@cache
def lowered(name: str) -> Lowered:
    if name == LARGEST:
        return lower(Largest(), (X,))
    if name in PRODUCTS:
        return lower(Product(*PRODUCTS[name]), (X,))
    compute, inputs = BETWEEN[name]
    return lower(Between(compute, *RESULTS), inputs)


def lower(module: nn.Module, inputs: tuple[Tensor, ...]) -> Lowered:
    made = dimorder.lower(module, inputs, target="tosa", run_artifact=True)
    found = inspect_tosa(made.artifact.data)
    assert {tensor.dtype for tensor in found.inputs} == {"INT8"}
    assert {tensor.dtype for tensor in found.outputs} <= {"INT8", "INT32"}
    assert found.transposes == len(made.plan.conversions)
    return made


@pytest.mark.parametrize("name", CASES)
def test_an_operator_between_quantised_values(name: str) -> None:
    assert lowered(name).verified.artifact_ran


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_rescaled_and_clamped_once(name: str) -> None:
    found = inspect_tosa(lowered(name).artifact.data).operators
    assert (found["RESCALE"], found["CLAMP"], found["PAD"]) == (1, 1, 0)


def test_a_constant_matrix_on_the_right() -> None:
    module = Between(lambda x: x @ quantised(Y[0, 0].t(), 0.0311, 0), (0.0911, -7))
    assert lower(module, (X,)).verified.artifact_ran


def test_a_weight_on_the_left_whose_scales_are_those_of_rows() -> None:
    """Features first: the plan takes the linear's result transposed."""
    product = Product(lambda x, w, b: F.linear(x.flatten(2).transpose(1, 2), w, b).transpose(1, 2), (12, 6))
    made = lower(product, (X[:1],))
    found = inspect_tosa(made.artifact.data)
    assert (found.operators["MATMUL"], found.transposes) == (1, 0)


# What Vela makes the most of: function of x (N, C, H, W), its results, the operators that they have and lack.
CHANNELS = Y[0, :, :1, :1]
FORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[float, int], ...], set[str], set[str]]] = {
    "times a constant of each channel": (
        lambda x: x * CHANNELS,
        ((0.0911, -7), (0.0213, 90)),
        {"DEPTHWISE_CONV2D"},
        {"MUL"},
    ),
    "times nothing in a channel": (
        lambda x: x * (CHANNELS * (CHANNELS > 0)),
        ((0.0911, -7),),
        {"DEPTHWISE_CONV2D"},
        {"MUL"},
    ),
    "times int8 of each channel": (
        lambda x: x * quantised(CHANNELS, 0.0213, -4),
        ((0.0911, -7),),
        {"MUL"},
        {"DEPTHWISE_CONV2D"},
    ),
    "plus int8 of each channel": (
        lambda x: quantised(CHANNELS, 0.0213, -4) + x,
        ((0.0911, -7),),
        {"ADD"},
        {"DEPTHWISE_CONV2D"},
    ),
    "plus a constant of each channel": (
        lambda x: x + CHANNELS,
        ((0.0911, -7),),
        {"DEPTHWISE_CONV2D"},
        {"ADD"},
    ),
    "less a constant of each channel": (
        lambda x: x - 0.7 * CHANNELS,
        ((0.0911, -7),),
        {"DEPTHWISE_CONV2D"},
        {"SUB", "ADD"},
    ),
    # Constants near a level of x need a finer grid than a weight has, for levels this fine.
    "plus constants, finely": (
        lambda x: x + 0.0247 * torch.linspace(0.003, 0.0045, 6)[:, None, None],
        ((0.0003, -7),),
        {"ADD"},
        {"DEPTHWISE_CONV2D"},
    ),
    "a mean of the integers' own scale": (
        lambda x: x.mean((2, 3)),
        ((0.0247, -9),),
        {"AVG_POOL2D"},
        {"DEPTHWISE_CONV2D"},
    ),
    "a resize of the integers' own scale": (
        lambda x: F.interpolate(x, (9, 10), mode="bilinear"),
        ((0.0247, 5),),
        {"RESIZE"},
        {"SUB"},
    ),
    "pools of the integers' own scale": (
        lambda x: F.avg_pool2d(x, (3, 3), (1, 2)),
        ((0.0247, 5), (0.031, 5)),
        {"AVG_POOL2D", "DEPTHWISE_CONV2D"},
        set(),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_that_vela_makes_the_most_of(name: str) -> None:
    compute, results, having, lacking = FORMS[name]
    module = Between(compute, *results)
    orders = "NHWC" if module(X)[0].dim() == 4 else None
    made = dimorder.lower(
        module, (X,), target="tosa", input_orders="NHWC", output_orders=orders, run_artifact=True
    )
    found = set(inspect_tosa(made.artifact.data).operators)
    assert having <= found
    assert not lacking & found


@pytest.mark.parametrize("name", ["times int8 of each channel", "plus int8 of each channel"])
def test_a_constant_of_each_channel_as_a_convolution(name: str) -> None:
    compute, results, lacking, having = FORMS[name]
    target = replace(
        TARGET,
        quantized=replace(
            TARGET.quantized, emit=partial(emit_integers, forms=Forms(multiplies_constants=False))
        ),
    )
    made = dimorder.lower(
        Between(compute, *results),
        (X,),
        target=target,
        input_orders="NHWC",
        output_orders="NHWC",
        run_artifact=True,
    )
    found = set(inspect_tosa(made.artifact.data).operators)
    assert having <= found
    assert not lacking & found


def test_scales_of_channels_survive_a_view() -> None:
    """One RESCALE, of as many factors as there are channels; a product of int32 would be an operator more."""
    product = Product(lambda x, w, b: F.conv2d(x, w, b).permute(0, 2, 3, 1).flatten(1, 2), (12, 6, 2, 3))
    made = dimorder.lower(product, (X,), target="tosa", input_orders="NHWC", run_artifact=True)
    found = inspect_tosa(made.artifact.data).operators
    assert (found["CONV2D"], found["RESCALE"], found["MUL"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("kernel", "stride", "shape", "side_by_side"),
    [
        ((4, 5), (4, 5), (2, 6, 12, 15), True),
        ((4, 5), (4, 5), (2, 6, 13, 16), True),  # without what no window reaches
        ((2, 3), (2, 3), (1, 6, 8, 9), False),  # strides that hardware has
        ((4, 5), (4, 4), (1, 6, 12, 13), False),
    ],
)
def test_windows_side_by_side_are_images_of_their_own(
    kernel: tuple[int, int], stride: tuple[int, int], shape: tuple[int, ...], side_by_side: bool
) -> None:
    product = Product(lambda x, w, b: F.conv2d(x, w, b, stride), (12, 6, *kernel))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    made = dimorder.lower(product, (x,), target="tosa", input_orders="NHWC", run_artifact=True)
    (conv,) = [node for node in made.artifact.model.nodes if node.kind == "CONV2D"]
    assert (conv.attributes["stride"] == [1, 1]) == side_by_side
    assert inspect_tosa(made.artifact.data).transposes == len(made.plan.conversions)


REFUSED: dict[str, tuple[nn.Module, tuple[Tensor, ...], str]] = {
    "a float weight": (
        Between(lambda x: F.conv2d(x, Y[:, :, :3, :2]), (0.0911, -7)),
        (X,),
        "dimorder.conv2d_nhwc.default, a weight that is not quantised",
    ),
    "a sum between": (
        Between(lambda x, y: torch.sigmoid(x + y), (0.0911, -7)),
        (X, Y),
        "aten.sigmoid.default, a function of a sum that is not quantised",
    ),
    "a product of what is not quantised": (
        Between(lambda x: F.conv2d(torch.sigmoid(x), quantised(Y[:, :, :3, :2], 0.01, 0)), (0.0911, -7)),
        (X,),
        "dimorder.conv2d_nhwc.default, a function of it that is not quantised",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_in_integers_is_refused_with_its_place(name: str) -> None:
    module, inputs, told = REFUSED[name]
    operator, reason = told.split(", ")
    for refuse in (dimorder.plan, dimorder.lower):
        with pytest.raises(dimorder.DimorderError) as raised:
            refuse(module, inputs, target="tosa")
        where, found, fix = str(raised.value).splitlines()
        assert where.startswith(f"{operator} (quantised.py:")
        assert found == f"  found: {reason}"
        told_fix = (
            "quantise its operands and its result, as dimorder.quantize does, replace it in the module, or "
            "choose another target"
        )
        assert fix == f"  fix: {told_fix}"


def test_a_refusal_comes_before_anything_is_emitted() -> None:
    module, inputs, _ = REFUSED["a sum between"]
    target = replace(TARGET, quantized=replace(TARGET.quantized, emit=None))
    with pytest.raises(UnsupportedError, match="a function of a sum that is not quantised"):
        dimorder.lower(module, inputs, target=target)


def test_a_row_that_does_not_do_what_the_plan_has_fails() -> None:
    row = replace(INTEGERS.rows[aten.sigmoid.default], build=lambda w, a: as_sum(w, numbers(w, a.self)))
    table = replace(INTEGERS, rows={**INTEGERS.rows, aten.sigmoid.default: row})
    with pytest.raises(AssertionError, match=r"gives Accumulator, where the plan has How\.FUNCTION"):
        dimorder.lower(Between(torch.sigmoid, RESULTS[0]), (X,), target=tosa(integers=table))


class Floats(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return quantised(x, 0.0247, 5) * y


def test_the_place_of_the_largest_is_found_in_integers() -> None:
    made = lowered(LARGEST)
    (x,), (y,) = made.contract.inputs, made.contract.outputs
    assert (x.dtype, y.dtype) == ("int8", "int64")
    assert torch.equal(made.run(x.quantized(X)), Largest()(X))


def test_floats_at_the_boundary_are_refused() -> None:
    with pytest.raises(dimorder.DimorderError) as raised:
        dimorder.lower(Floats(), (X, Y), target="tosa")
    assert str(raised.value).splitlines() == [
        "input 'y'",
        "  found: floats, where a graph of integers takes and gives integers",
        "  fix: quantise inputs first thing and outputs last thing, or choose another target",
    ]


@pytest.mark.parametrize(("taken", "given"), [("uint8", None), (None, "uint8"), ("uint8", "uint8")])
def test_bytes_at_the_boundary(taken: str | None, given: str | None) -> None:
    made = dimorder.lower(
        Between(torch.tanh, RESULTS[0]),
        (X,),
        target="tosa",
        input_types=taken,
        output_types=given,
        run_artifact=True,
    )
    (x,), (y,) = made.contract.inputs, made.contract.outputs
    assert (x.dtype, y.dtype) == (taken or "int8", given or "int8")
    real = torch.tanh(quantised(X, 0.0247, 5))
    (given_back,) = made.run(x.quantized(X))
    got = y.real(given_back)
    assert float((got - real.clamp(y.real(torch.tensor(0 if given else -128)))).abs().max()) <= 0.0311


@pytest.mark.parametrize("quantise", [by_xnnpack, by_arm])
@pytest.mark.parametrize(("order", "transposes"), [("NCHW", 1), ("NHWC", 0)])
def test_a_network_of_either_quantizer(
    quantise: Callable[[nn.Module, Tensor], nn.Module], order: str, transposes: int
) -> None:
    x = torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(3))
    made = dimorder.lower(quantise(Net(), x), (x,), target="tosa", input_orders=order, run_artifact=True)
    found = inspect_tosa(made.artifact.data)
    assert (found.transposes, made.to_dict()["optimal"]) == (transposes, True)
    assert found.transpose_bytes == transposes * x.numel()  # a byte for each element


def test_a_wrong_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.tosa.integers import sums

    right = sums.rescale
    monkeypatch.setattr(
        sums, "rescale", lambda w, x, factors, *a, **k: right(w, x, [f * 1.01 for f in factors], *a, **k)
    )
    with pytest.raises(VerificationError, match="quanta from what it stands for"):
        dimorder.lower(Between(torch.mul, RESULTS[0]), (X, Y), target="tosa")


def test_a_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dimorder.errors import VerificationError
    from dimorder.targets.tosa.integers import model as int_model

    right = int_model.COMPUTE["RESCALE"]
    wrong = {**int_model.COMPUTE, "RESCALE": lambda n, x, *rest: right(n, x, *rest) + (x == x.max())}
    monkeypatch.setattr(int_model, "COMPUTE", wrong)
    with pytest.raises(VerificationError):
        dimorder.lower(Between(torch.mul, RESULTS[0]), (X, Y), target="tosa", run_artifact=True)


def test_heads_of_learned_queries() -> None:
    class LearnedQueries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.keys = nn.Parameter(torch.randn(3, 5, 8)), nn.Linear(24, 24)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            keys = self.keys(x).view(2, 7, 3, 8).transpose(1, 2)
            return (self.queries @ keys.transpose(-2, -1)).softmax(-1), keys @ self.queries.transpose(-2, -1)

    x = torch.randn(2, 7, 24)
    quantized = dimorder.quantize(LearnedQueries().eval(), [x, x * 0.9], target="tosa")
    assert dimorder.lower(quantized, (x,), target="tosa").max_rel_error == 0
