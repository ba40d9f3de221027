"""Test what XNNPACK refuses, and the three lines that say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("executorch")


from dimorder import lower
from dimorder.errors import UnsupportedError
from dimorder.executorch.pte import method_of
from dimorder.targets.xnnpack.emit import emit
from dimorder.targets.xnnpack.ops import OPERATORS
from tests.targets.cases import D, Net, r


def node_of(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> torch.fx.Node:
    program = torch.export.export(Net(function), inputs)
    return [node for node in program.graph.nodes if node.op == "call_function"][-1]


FLOAT64 = "torch.float64 where this target computes in torch.float32; convert with .float()"


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (torch.relu, r(3, 7), None),
        (lambda x: torch.cumsum(x, 1), r(3, 7), "XNNPACK has no aten.cumsum.default"),
        (lambda x: torch.softmax(x, 0), r(3, 7), "softmax over dimension 0 of 2, not the last"),
        (lambda x: x[::2], r(3, 7), "a slice of step 2; XNNPACK has step 1"),
        (torch.relu, r(3, 7).double(), FLOAT64),
        (torch.relu, r(1, 2, 1, 2, 1, 2, 3), "7 dimensions where XNNPACK has at most 6"),
        (torch.relu, torch.empty(0, 3), "the empty shape (0, 3)"),
        (
            lambda x: D.upsample_nearest2d_nhwc(x, [5, 9], None, None),
            r(1, 3, 7, 2),
            "a nearest resize from 3 to 5, which is no whole multiple",
        ),
        (lambda x: torch.topk(x, 2)[0], r(3, 7), "its source: XNNPACK has no aten.topk.default"),
    ],
)
def test_supports_says_why_not(function: Callable[..., Any], x: Tensor, reason: str | None) -> None:
    assert OPERATORS.supports(node_of(function, (x,)), ()) == reason


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


def refusal(program: torch.export.ExportedProgram) -> str:
    with pytest.raises(UnsupportedError) as caught:
        emit(program)
    return str(caught.value)


def test_state_of_a_program_of_another_origin_is_kept() -> None:
    program = torch.export.export(Counter(), (r(3),)).run_decompositions({})
    started = method_of(emit(program).data)
    assert [started([torch.zeros(3)])[0].tolist() for _ in range(3)] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]


def test_input_that_is_no_tensor_is_refused() -> None:
    program = torch.export.export(Net(lambda x, n: x * n), (r(3), 2))
    assert refusal(program).startswith("input 'inputs_1'\n  found: ")


def test_an_empty_output_is_refused() -> None:
    with pytest.raises(UnsupportedError) as caught:
        lower(Net(lambda x: x[:0]), (r(2, 3),), target="xnnpack")
    assert str(caught.value).startswith("output 'output0'\n  found: the empty shape (0, 3)\n")


def test_symbolic_shape_is_refused() -> None:
    module = torch.nn.ReLU()
    program = torch.export.export(module, (r(3, 7),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert refusal(program).startswith("input 'input'\n  found: the symbolic shape (")


def test_refusal_names_the_operator_that_has_no_kernel_alone() -> None:
    program = torch.export.export(Net(lambda x: torch.max_pool3d(torch.cumsum(x, 1), 2)), (r(2, 3, 4, 5, 6),))
    message = refusal(program)
    assert message.startswith("aten.max_pool3d.default (cases.py:")
    assert "cumsum" not in message


def test_operator_without_any_kernel_is_refused_by_name_and_line() -> None:
    program = torch.export.export(Net(lambda x: torch.linalg.inv(x) * 2), (r(3, 3),))
    message = refusal(program)
    assert "linalg_inv" in message
    assert "(cases.py:" in message


@pytest.mark.parametrize(
    ("function", "inputs", "operator", "found"),
    [
        (lambda x: x.unfold(0, 1, 1), (torch.tensor(3.0),), "aten.unfold.default", "ends the process"),
        (lambda x: torch.fft.rfft(x).abs(), (torch.randn(2, 8),), "aten.fft_rfft.default", "complex numbers"),
        (
            lambda x: x.log_softmax(1, dtype=torch.float64),
            (torch.randn(2, 8),),
            "aten.log_softmax.int",
            "refuses torch.float64",
        ),
    ],
)
def test_operator_whose_kernel_is_wrong_is_refused(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], operator: str, found: str
) -> None:
    message = refusal(torch.export.export(Net(function), inputs))
    assert message.startswith(f"{operator} (")
    assert found in message
