"""Test that a watched run computes what an unwatched one does, also on what the trace cannot read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import dimorder
from dimorder.eager.inspection.trace import record_calls
from tests.small_networks import Net


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


IMAGE, MATRIX = _randn(2, 3, 5, 7), _randn(4, 6)
BIAS, COMPLEX = _randn(2), _randn(4, 6, dtype=torch.complex64)


READ: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "a sparse result": (lambda x: torch.sparse.mm(x.to_sparse(), x.mT), MATRIX),
    "a sparse operand": (
        lambda x: torch.sparse.sampled_addmm(torch.eye(4).to_sparse_csr(), x, x.mT).to_dense(), MATRIX
    ),
    "a nested result": (lambda x: torch.nested.as_nested_tensor([x, x[:2]]).to_padded_tensor(0.5), MATRIX),
    "conjugates": (lambda x: x @ x.conj().mT, COMPLEX),
    "a conjugate in a sum of products": (torch.cov, COMPLEX),
    "a number beside half precision": (lambda x: x * 57.29577, _randn(2, 3, 5, 7).bfloat16()),
    "a number before half precision": (lambda x: torch.xlogy(57.29577, x.abs()), IMAGE.half()),
    "a number beside float64": (lambda x: torch.where(x > 0, x, 57.29577), IMAGE.double()),
    "a number beside integers": (lambda x: (x * 9).int() * 0.3, IMAGE),
    "a power of a number, twice": (
        lambda x: (torch.ldexp(x, x), torch.ldexp(x.double(), x), torch.ldexp(x.half(), x)), IMAGE
    ),
    "a forward gradient of zeros": (  # that of the bias, which has no memory
        lambda x: torch.func.jvp(lambda y: F.conv2d(y, IMAGE[:, :, :2, :3], BIAS), (x,), (x,)), IMAGE
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
@pytest.mark.parametrize("name", READ)
def test_a_watched_run_computes_the_same(name: str) -> None:
    forward, x = READ[name]
    assert not dimorder.inspect(Net(lambda m, x: forward(x)), x, order=None).of("lost")
    with torch.no_grad():
        expected = forward(x)
        with record_calls(nn.Identity(), x) as calls:
            results = forward(x), forward(x)
    assert calls
    for result in results:
        pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected), strict=True)
        for got, wanted in pairs:
            assert got.dtype == wanted.dtype
            torch.testing.assert_close(got.to_dense(), wanted.to_dense(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_is_watched() -> None:
    """In eval mode, torch's encoder computes on nested tensors if it is given a padding mask."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    encoder = nn.TransformerEncoder(layer, 2)
    found = dimorder.inspect(encoder, (_randn(2, 5, 8),), {"src_key_padding_mask": mask})
    assert "aten._nested_tensor_from_mask" in {call.operator for call in found.calls}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_input_has_no_shape() -> None:
    images = torch.nested.nested_tensor([_randn(3, 5, 7), _randn(3, 5, 9)])
    found = dimorder.inspect(nn.ReLU(), images)
    assert found.keeps and found.inputs == () and [call.operator for call in found.calls] == ["aten.relu"]


def test_a_tensor_of_tensors_is_watched_by_its_parts() -> None:
    found = dimorder.inspect(nn.Softmax(1), TwoTensor(IMAGE, IMAGE + 1))
    assert [call.operator for call in found.calls] == ["aten._softmax"] * 2
    assert [finding.verdict for finding in found.of("lost")] == ["lost"] * 2


def _choose(m: Any, x: Tensor) -> Any:
    branches = (lambda a: m.conv(a).softmax(1).relu(), lambda a: m.conv(a).softmax(1) - 1)
    return torch.cond(x.sum() > 0, *branches, (x,))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_branch_that_torch_cond_takes_is_watched(sign: int) -> None:
    torch._dynamo.reset()  # a torch.cond of other sizes, seen before, would have dynamic ones
    model = Net(_choose, conv=nn.Conv2d(3, 4, 3))
    found = dimorder.inspect(model, sign * (IMAGE.abs() + 1))
    last = "aten.relu" if sign > 0 else "aten.sub"
    assert [call.operator for call in found.calls[-3:]] == ["aten.convolution", "aten._softmax", last]
    assert found.calls[-3].module == "conv" and [f.operator for f in found.of("lost")] == ["aten._softmax"]


def test_a_compiled_part_is_watched_as_written() -> None:
    part = nn.Sequential(nn.ReLU(), nn.Softmax(1))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), torch.compile(part, backend="eager", fullgraph=True))
    found = dimorder.inspect(model, IMAGE)
    assert [call.operator for call in found.calls] == ["aten.convolution", "aten.relu", "aten._softmax"]


def test_an_exported_module_is_watched() -> None:
    program = torch.export.export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), (IMAGE,))
    found = dimorder.inspect(program.module(), IMAGE)
    assert [f.operator for f in found.of("lost")] == ["aten._softmax"]
