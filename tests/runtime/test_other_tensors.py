"""Calling a program with tensors of other classes, and with tensors that have no memory of their own."""

from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import ContractError
from dimorder.runtime.program import Program

NCHW, NHWC = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1)


def laid(*shape, order):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return torch.empty_strided(shape, order.strides(shape)).copy_(x)


class Picture(torch.Tensor):
    """A subclass with a name alone, as torchvision's tensors are."""


@pytest.mark.parametrize("size", [2, "n"])
@pytest.mark.parametrize("order", [NCHW, NHWC])
def test_a_subclass_that_has_its_numbers_in_memory_is_passed_on_as_a_tensor(size, order):
    spec = TensorSpec("x", (size, 3, 5, 7), "float32", NHWC)
    seen = []
    program = Program(Path("net.pte"), Contract((spec,), ()), lambda x: seen.extend(x) or [], "adapt", "it")
    x = laid(2, 3, 5, 7, order=order)
    program(x.as_subclass(Picture))
    assert type(seen[0]) is torch.Tensor
    assert torch.equal(seen[0], x)


def grads(program, x):
    return torch.func.grad(lambda x: program(x)[0].sum())(x)


@pytest.mark.parametrize("size", [2, "n"])
@pytest.mark.parametrize("order", [NCHW, NHWC])
@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda program, x: program(freed(x)), "without memory"),
        (lambda program, x: program(torch._efficientzerotensor(x.shape)), "without memory"),
        (lambda program, x: program(torch._to_functional_tensor(x)), "without memory"),
        (lambda program, x: program(FakeTensorMode().from_tensor(x)), "a FakeTensor"),
        (lambda program, x: torch.vmap(program)(torch.stack([x, x])), "torch.func transforms"),
        (lambda program, x: torch.func.jvp(program, (x,), (x,)), "torch.func transforms"),
        (grads, "torch.func transforms"),
    ],
)
def test_a_tensor_without_memory_is_refused(call, found, size, order):
    spec = TensorSpec("x", (size, 3, 5, 7), "float32", NHWC)
    program = Program(Path("net.pte"), Contract((spec,), (spec,)), lambda x: x, "adapt", "a runtime")
    with pytest.raises(ContractError, match=rf"{found}.*\n.*plain torch.Tensor"):
        call(program, laid(2, 3, 5, 7, order=order))


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x
