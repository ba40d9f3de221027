"""Test how `fuse_quantized` annotates each call of a quantised program, for a target of a few kernels."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE, IntegerType
from dimorder.ops.dialect import OPS
from dimorder.physical.annotations import Annotation, FusedProgram, How
from dimorder.physical.fuse_quantized import MOVE, IntegerKernel, WideKernel, fuse_quantized
from dimorder.targets.program_io import read_signature

aten = torch.ops.aten
INT8 = (-128, 127, torch.int8)
SOURCE = Path(__file__).parents[2] / "src" / "dimorder"


def quantised(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return QUANTIZE(x, scale, zero_point, *INT8)


def dequantised(x: Tensor, scale: float, zero_point: int) -> Tensor:
    return DEQUANTIZE(x, scale, zero_point, *INT8)


def _unmet(operands: Sequence[IntegerType], result: IntegerType) -> str | None:
    return "a coarse operand" if any(of.scale > 1 for of in operands) else None


def _by_rows(tokens: Tensor) -> str | None:
    return None if bool((tokens == tokens[..., :1]).all()) else "tokens that are not rows"


RULES = {
    aten.linear.default: IntegerKernel(_unmet, ("weight", "bias"), clamps=True, unmet_dynamic=_by_rows),
    aten.add.Tensor: lambda a: IntegerKernel(_unmet, clamps=True) if a.alpha == 1 else None,
    aten.sigmoid.default: IntegerKernel(_unmet),
    aten.relu.default: IntegerKernel(_unmet),
    aten.maximum.default: IntegerKernel(_unmet, chooses=True),
    aten.pow.Tensor_Scalar: lambda a: MOVE if a.exponent == 1 else None,
    aten.softmax.int: "Toy has no softmax",
}


def constant_type(constant: Tensor) -> IntegerType | None:
    return IntegerType(torch.int8, float(constant.max()), 0) if constant.unique().numel() == 1 else None


def _exact(operands: Mapping[Any, Annotation]) -> str | None:
    exact = all(each.exact_type is not None for each in operands.values())
    return None if exact else "a function without exact integers"


def _one_value(operands: Mapping[Any, Annotation]) -> str | None:
    is_sum = any(each.how is How.WIDE for each in operands.values())
    return "a function of a sum" if is_sum else "a function of two values"


# Of a target that follows functions of one value, and quantizes sums later.
WIDE_RULES: Mapping[Any, Any] = {
    aten.linear.default: WideKernel(_exact),
    aten.maximum.default: WideKernel(lambda operands: None, follows=True),
    aten.amax.default: WideKernel(_exact, keeps=True),
    aten.argmax.default: WideKernel(_exact),
    **dict.fromkeys((aten.add.Tensor, aten.mul.Tensor), WideKernel(lambda operands: None, follows=True)),
    **dict.fromkeys((aten.sigmoid.default, aten.relu.default), WideKernel(_one_value, follows=True)),
}


def annotated(forward: Callable[..., Any], *inputs: Tensor, rules: Mapping[Any, Any] = RULES) -> FusedProgram:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(35.0).reshape(5, 7))
            self.register_buffer("halves", torch.full((1, 7), 0.5))

        def forward(self, *inputs: Tensor) -> Tensor:
            return forward(self, *inputs)

    program = torch.export.export(Net(), inputs)
    constants = read_signature(program).constants
    calls = [node for node in program.graph.nodes if node.op == "call_function" and node not in constants]
    parts = {node: 0 for node in calls if node.target is not aten.log1p.default}
    return fuse_quantized(program.graph, constants, parts, rules, constant_type)


X = torch.ones(3, 7)
Q = torch.ones(3, 7, dtype=torch.int8)


def product(net: nn.Module, x: Tensor) -> Tensor:
    y = F.linear(dequantised(x, 0.5, 3), net.weight)
    return quantised(F.hardtanh(y.view(15), -1.0, 2.0).relu(), 0.25, -8)


def sums(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = dequantised(x, 0.5, 3)
    y = dequantised(quantised((x + 0.125).relu(), 0.25, -8), 0.25, -8)
    return quantised(x.sigmoid().relu(), 0.25, -8), x + y


def moves(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = dequantised(x, 0.5, 3)
    y = torch.cat([x.flip(1), torch.maximum(x, x.flip(0))]).pow(1)
    beside_constant = torch.cat([x, net.halves])
    return quantised(y.sigmoid(), 0.25, -8), quantised(beside_constant.sigmoid(), 0.25, -8)


def islands(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    coarse, fine = dequantised(x, 2.0, 3), dequantised(x, 0.5, 3)
    return (
        quantised(coarse.softmax(1), 0.25, -8),
        quantised(coarse.sigmoid(), 0.25, -8),
        quantised((torch.maximum(coarse, fine)).exp(), 0.25, -8),
        quantised(fine.log1p().sigmoid(), 0.25, -8),
        quantised(torch.add(fine, coarse, alpha=2), 0.25, -8),
    )


def clamped_island(net: nn.Module, x: Tensor) -> Tensor:
    return quantised((x + 0.125).relu(), 0.25, -8)


def dynamic(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = OPS.fake_quantize_dynamic(x, [1], -128, 127, 1e-9, "asymmetric")
    return F.linear(x.flip(0), net.weight), F.linear(x.view(7, 3).t().reshape(3, 7), net.weight)


CASES = {
    product: """\
dequantize_per_tensor  dequantized: int8, scale 0.5, zero point 3
linear                 in integers: int8, scale 0.25, zero point -8, clamped to [0, 2]
view                   by the kernel before
hardtanh               by the kernel before
relu                   by the kernel before
quantize_per_tensor    by the kernel before""",
    sums: """\
dequantize_per_tensor    dequantized: int8, scale 0.5, zero point 3
add                      in integers: int8, scale 0.25, zero point -8, clamped to [0, inf]
relu                     by the kernel before
quantize_per_tensor      by the kernel before
dequantize_per_tensor_1  dequantized: int8, scale 0.25, zero point -8
sigmoid                  in floats: a result that is not quantised
relu_1                   in floats: an operand that is not quantised
add_1                    in floats: a result that is not quantised""",
    moves: """\
dequantize_per_tensor  dequantized: int8, scale 0.5, zero point 3
flip                   dequantized: int8, scale 0.5, zero point 3
flip_1                 dequantized: int8, scale 0.5, zero point 3
maximum                dequantized: int8, scale 0.5, zero point 3
cat                    dequantized: int8, scale 0.5, zero point 3
pow_1                  dequantized: int8, scale 0.5, zero point 3
sigmoid                in integers: int8, scale 0.25, zero point -8
quantize_per_tensor    by the kernel before
sigmoid_1              in floats: an operand that is not quantised""",
    islands: """\
dequantize_per_tensor    dequantized: int8, scale 2, zero point 3
dequantize_per_tensor_1  dequantized: int8, scale 0.5, zero point 3
softmax                  in floats: Toy has no softmax
sigmoid                  in floats: a coarse operand
maximum                  in floats: a result that is not quantised
exp                      in floats: no int8 kernel computes it alone
sigmoid_1                in floats: an operand that is not quantised
add                      in floats: no int8 kernel computes it alone""",
    clamped_island: """\
add   in floats: an operand that is not quantised
relu  in floats, by the call before""",
    dynamic: """\
fake_quantize_dynamic  floats that a reader may quantize dynamically
flip                   floats that a reader may quantize dynamically
linear                 in dynamically quantized integers
view                   floats that a reader may quantize dynamically
t                      floats that a reader may quantize dynamically
reshape                floats that a reader may quantize dynamically
linear_1               in floats: tokens that are not rows""",
}


@pytest.mark.parametrize("forward", CASES, ids=lambda forward: forward.__name__)
def test_each_call_is_annotated(forward: Callable[..., Any]) -> None:
    given = X if forward in (clamped_island, dynamic) else Q
    assert str(annotated(forward, given)) == CASES[forward]


# -- functions of one value, and sums in wider integers


def functions(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = dequantised(x, 0.5, 3)
    gate = x * (x + 2.0).sigmoid()
    moved = x.view(7, 3).relu() + x.view(7, 3)
    returned = x.view(21).view(3, 7) * x
    return tuple(quantised(y, 0.25, -8) for y in (gate, moved, returned, (x * 4.0).amax(1)))


def wide(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = dequantised(x, 0.5, 3)
    turned = x + x.flip(1)
    shifted = x * net.halves
    flat = F.linear(x, net.weight).view(15)
    return (*(quantised(y, 0.25, -8) for y in (turned, shifted, flat)), (x + 0.5).argmax(1))


def not_wide(net: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = dequantised(x, 0.5, 3)
    of_sum = (x + x.flip(1)).sigmoid()
    inexact = F.linear(x.sigmoid(), net.weight)
    return quantised(of_sum, 0.25, -8), quantised(inexact, 0.25, -8), x.sigmoid().argmax(1)


OF_ONE = "a number for each integer of one value: int8, scale 0.5, zero point 3"
WIDE_CASES = {
    functions: f"""\
dequantize_per_tensor  dequantized: int8, scale 0.5, zero point 3
add                    {OF_ONE}
sigmoid                {OF_ONE}
mul                    {OF_ONE}
view                   dequantized: int8, scale 0.5, zero point 3
relu                   {OF_ONE}
view_1                 dequantized: int8, scale 0.5, zero point 3
add_1                  {OF_ONE}
view_2                 dequantized: int8, scale 0.5, zero point 3
view_3                 dequantized: int8, scale 0.5, zero point 3
mul_1                  {OF_ONE}
mul_2                  {OF_ONE}
amax                   dequantized: int8, scale 2, zero point 3""",
    wide: f"""\
dequantize_per_tensor  dequantized: int8, scale 0.5, zero point 3
flip                   dequantized: int8, scale 0.5, zero point 3
add                    in wider integers
mul                    in wider integers
linear                 in wider integers
view                   in wider integers
add_1                  {OF_ONE}
argmax                 in floats: a function without exact integers""",
    not_wide: f"""\
dequantize_per_tensor  dequantized: int8, scale 0.5, zero point 3
flip                   dequantized: int8, scale 0.5, zero point 3
add                    in wider integers
sigmoid                in floats: a function of a sum
sigmoid_1              {OF_ONE}
linear                 in floats: a function without exact integers
sigmoid_2              {OF_ONE}
argmax                 in floats: a function without exact integers""",
}


@pytest.mark.parametrize("forward", WIDE_CASES, ids=lambda forward: forward.__name__)
def test_functions_are_followed_and_sums_stay_wide(forward: Callable[..., Any]) -> None:
    assert str(annotated(forward, Q, rules=WIDE_RULES)) == WIDE_CASES[forward]


def test_a_function_is_the_result_for_each_integer() -> None:
    fused = annotated(functions, Q, rules=WIDE_RULES)
    numbers = {node.name: each.numbers for node, each in fused.annotations.items()}
    x = (torch.arange(-128, 128, dtype=torch.float64) - 3) * 0.5
    assert torch.equal(numbers["dequantize_per_tensor"], x)
    assert torch.equal(numbers["mul"], x * (x + 2).sigmoid())
    assert torch.equal(numbers["add_1"], x.relu() + x)
    assert torch.equal(numbers["mul_1"], x * x)


# -- there is one fuser


def fusers(source: str) -> list[str]:
    """The functions that look for what quantises the values that they read or that others read."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            names = {getattr(part, "attr", getattr(part, "id", "")) for part in ast.walk(function)}
            if names & {"users", "readers"} and names & {"QUANTIZE", "DEQUANTIZE", "integer_type"}:
                found.append(function.name)
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(node):\n return any(user.target is QUANTIZE for user in node.users)", ["f"]),
        ("def f(graph, x):\n (r,) = graph.readers()[x]\n return graph.values[r].integer_type", ["f"]),
        ("def f(node):\n return node.target is QUANTIZE", []),
        ("def f(node):\n return len(node.users)", []),
    ],
)
def test_the_finder_of_fusers_finds(source: str, found: list[str]) -> None:
    assert fusers(source) == found


def test_no_target_fuses_what_is_quantised_anew() -> None:
    files = (SOURCE / "targets").rglob("*.py")
    assert {file.name: found for file in files if (found := fusers(file.read_text()))} == {}
