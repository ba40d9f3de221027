"""Reshapes that split and merge attention heads become slices where two sizes are dynamic."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from dimorder.capture.captured import Captured, capture
from dimorder.capture.slice_attention_heads import slice_attention_heads

X = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(0))
VARYING = {2, 7}


class Heads(nn.Module):
    """Heads that are split and moved by each of several permutes, computed, moved back and merged."""

    def __init__(self, *orders: tuple[int, ...]) -> None:
        super().__init__()
        self.orders = orders

    def forward(self, x: Tensor) -> list[Tensor]:
        heads = x.view(x.shape[0], x.shape[1], 3, 4)
        return [heads.permute(order).exp() for order in self.orders]


class Merged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 3, 7, 4).exp().transpose(1, 2).reshape(2, 7, 12)


class Repeated(nn.Module):
    """Each of `heads` heads is read twice, as attention with fewer heads of keys does."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        size = 12 // self.heads
        heads = x.view(2, self.heads, 1, 7, size).exp()
        return heads.expand(2, self.heads, 2, 7, size).reshape(2, 2 * self.heads, 7, size)


def rewritten(net: nn.Module, most: int = 32) -> tuple[Captured, list[str]]:
    program = capture(net, (X,))
    wanted = program.module(X)
    slice_attention_heads(program.module, most, VARYING)
    program.module.recompile()
    for got, each in zip(program.module(X), wanted, strict=True):
        assert torch.equal(got, each)
    calls = (str(n.target).split(".")[1] for n in program.module.graph.nodes if n.op == "call_function")
    return program, [name for name in calls if name != "exp"]


SLICES = ["slice"] * 3


@pytest.mark.parametrize(
    ("orders", "calls"),
    [
        ([(0, 2, 1, 3)], ["reshape", *SLICES, "cat"]),
        ([(0, 2, 1, 3), (0, 2, 3, 1)], ["reshape", *SLICES, "cat", "permute"]),
        ([(2, 0, 1, 3)], ["reshape", *SLICES, "cat", "permute"]),
        ([(0, 1, 3, 2)], ["reshape", "permute"]),  # rows come before heads
        ([(0, 2, 1, 3), (0, 1, 2, 3)], ["reshape", "permute"]),  # one reader has rows before heads
    ],
)
def test_heads_are_split_by_slices(orders: list[tuple[int, ...]], calls: list[str]) -> None:
    assert rewritten(Heads(*orders))[1] == calls


def test_heads_are_merged_by_slices() -> None:
    assert rewritten(Merged())[1] == ["reshape", *SLICES, "cat", "reshape"]


@pytest.mark.parametrize(
    ("heads", "calls"), [(3, ["reshape", "reshape", *SLICES, "cat"]), (1, ["reshape", "reshape", "cat"])]
)
def test_heads_are_repeated_by_slices(heads: int, calls: list[str]) -> None:
    assert rewritten(Repeated(heads))[1] == calls


@pytest.mark.parametrize("net", [Heads((0, 2, 1, 3)), Merged(), Repeated(3)])
def test_many_heads_stay(net: nn.Module) -> None:
    assert "cat" not in rewritten(net, most=2)[1]


class Attention(nn.Module):
    """Attention that many networks write, without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = (p(x).view(n, length, 4, 6).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = (q @ k.transpose(2, 3) / 6**0.5).softmax(-1) @ v
        return cast(Tensor, self.out(y.transpose(1, 2).reshape(n, length, 24)))


def attention() -> nn.Module:
    torch.manual_seed(0)
    return Attention().eval()


class Grouped(Attention):
    """The same with half as many heads of keys, each of which two heads of queries read."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(24, 12), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = self.q(x).view(n, length, 4, 6).transpose(1, 2)
        pair = (p(x).view(n, length, 2, 6).transpose(1, 2) for p in (self.k, self.v))
        k, v = (each[:, :, None].expand(n, 2, 2, length, 6).reshape(n, 4, length, 6) for each in pair)
        y = (q @ k.transpose(2, 3) / 6**0.5).softmax(-1) @ v
        return cast(Tensor, self.out(y.transpose(1, 2).reshape(n, length, 24)))


ROWS = ({0: Dim("N", min=1, max=6), 1: Dim("L", min=2, max=20)},)


@pytest.mark.parametrize(
    "kind", ["float16", "dynamic int8", pytest.param("static int8", marks=pytest.mark.slow)]
)
def test_attention_over_a_batch_and_a_length_is_one_delegate(kind: str) -> None:
    pytest.importorskip("executorch")
    pytest.importorskip("torchao")
    import dimorder
    from tests.targets.quantised import by_xnnpack, by_xnnpack_dynamically

    x, net = torch.randn(3, 7, 24), attention()
    given, made = (x.half(), net.half()) if kind == "float16" else (x, net)
    if kind != "float16":
        made = (by_xnnpack if kind == "static int8" else by_xnnpack_dynamically)(net, x, dims=ROWS)
    lowered = dimorder.lower(made, (given,), dynamic_shapes=ROWS, target="xnnpack")
    assert lowered.artifact.delegates == 1
    assert "aten::permute_copy.out" not in lowered.artifact.outside
    for shape in ((1, 2, 24), (6, 20, 24), (2, 9, 24)):
        x = torch.randn(shape)
        with torch.no_grad():
            wanted = attention()(x) if kind == "float16" else made(x)  # integers saturate where floats do not
        assert (lowered.run(x.to(given.dtype)) - wanted).norm() <= 0.05 * wanted.norm()


def test_what_a_batch_repeats_is_no_head() -> None:
    pytest.importorskip("executorch")
    import dimorder

    class Prompt(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            batch, length, size = y.shape
            return x[:, None].expand(-1, batch, -1, -1).reshape(batch, length, size) * y

    length, sizes = Dim("L", min=2, max=20), torch.randn(1, 7, 24)
    dims = ({1: length}, {0: Dim("N", min=1, max=6), 1: length})
    lowered = dimorder.lower(Prompt(), (sizes, torch.randn(3, 7, 24)), dynamic_shapes=dims, target="xnnpack")
    x, y = torch.randn(1, 5, 24), torch.randn(4, 5, 24)
    assert torch.equal(lowered.run(x, y), x * y)


def test_repeated_rows_are_no_heads() -> None:
    pytest.importorskip("executorch")
    import dimorder

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin().repeat(2, 1)

    dims = ({0: Dim("N", min=2, max=9)},)
    lowered = dimorder.lower(Twice(), (torch.randn(3, 5),), dynamic_shapes=dims, target="xnnpack")
    x = torch.randn(4, 5)
    assert torch.allclose(lowered.run(x), x.sin().repeat(2, 1))


def test_attention_with_fewer_heads_of_keys_is_one_delegate() -> None:
    pytest.importorskip("executorch")
    import dimorder

    net = Grouped().eval()
    lowered = dimorder.lower(net, (torch.randn(3, 7, 24),), dynamic_shapes=ROWS, target="xnnpack")
    assert lowered.artifact.delegates == 1
    for shape in ((1, 2, 24), (6, 20, 24)):
        torch.testing.assert_close(lowered.run(x := torch.randn(shape)), net(x), rtol=1e-4, atol=1e-5)
