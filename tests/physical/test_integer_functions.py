"""Test functions of one quantised value as tables of numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dimorder.graph.quantized import DEQUANTIZE, IntegerType
from dimorder.physical.integer_functions import computed, dequantized_numbers
from tests.small_networks import Net

TENTHS = IntegerType(torch.int8, 0.1, 0)
LEVELS = torch.arange(-128, 128).to(torch.int8)
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda x: x // 0.3,
    "quotient towards zero": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "remainder": lambda x: x % 0.3,
    "remainder of C": lambda x: x.fmod(0.3),
    "comparison": lambda x: x > 0.3,
}


@pytest.mark.parametrize("name", STEPS)
def test_numbers_at_a_step_are_on_the_side_where_pytorch_has_them(name: str) -> None:
    x = DEQUANTIZE(LEVELS, TENTHS.scale, TENTHS.zero_point, -128, 127, torch.int8)
    program = torch.export.export(Net(lambda m, x: STEPS[name](x)), (x,)).run_decompositions({})
    (call,) = [node for node in program.graph.nodes if node.op == "call_function"]
    (operand,) = call.all_input_nodes
    found = computed(call, {operand: dequantized_numbers(TENTHS)}, {})
    torch.testing.assert_close(found.to(call.meta["val"].dtype), STEPS[name](x), rtol=0, atol=1e-6)
