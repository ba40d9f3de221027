"""Test that linears of attention become one matmul per head, and keep only the biases that are needed. Test
also that values keep the unit dimensions that views would add between dynamic sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import ExportedProgram

import dimorder
from dimorder.capture import check_captured
from dimorder.capture.captured import Captured, capture
from dimorder.capture.rewrite_linears import LinearLimits, rewrite_linears
from dimorder.capture.split_attention_heads import HeadLimits
from dimorder.physical.keep_unit_dims import keep_unit_dims
from dimorder.verification.relative_error import relative_error

aten = torch.ops.aten
BATCH, LENGTH, HEADS, SIZE = 3, 11, 2, 32


class Attention(nn.Module):
    """Attention whose weights pass through a function; each of its linears has a bias unlike 0."""

    def __init__(self, seen: Callable[[Tensor], Tensor], size: int = SIZE, **options: bool) -> None:
        super().__init__()
        self.seen, self.size, self.options = seen, size, options
        width = HEADS * size
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        for i, linear in enumerate((self.q, self.k, self.v, self.o)):
            linear.bias.data = torch.linspace(-1, 1.5 + i, width)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = (p(x).unflatten(-1, (HEADS, self.size)).transpose(1, 2) for p in (self.q, self.k, self.v))
        weights = self.seen(q @ k.transpose(-2, -1) * self.size**-0.5)
        y = self.o((weights @ v).transpose(1, 2).flatten(2))
        return (y, k) if self.options.get("gives_keys") else y


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def added(scores: Tensor) -> Tensor:
    return (scores + torch.linspace(-1, 2, LENGTH * LENGTH).view(LENGTH, LENGTH)).softmax(-1)


def hidden(scores: Tensor) -> Tensor:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & (scores > -9)
    return torch.where(mask, scores, torch.finfo(torch.float32).min).softmax(-1)


def scaled(scores: Tensor) -> Tensor:
    return scores.softmax(-1) * torch.linspace(0.5, 2, LENGTH).view(-1, 1)


def by_columns(scores: Tensor) -> Tensor:
    return scores.softmax(-2)


def clamped(scores: Tensor) -> Tensor:
    return scores.clamp(max=0.3).softmax(-1)


def rewritten(model: nn.Module, *args: Tensor) -> Captured:
    """A network in normal form with heads apart, held to its numbers before."""
    before = capture(model.eval(), args)
    (after,) = rewrite_linears([before], LinearLimits(16, HeadLimits(32, 32)))
    assert list(check_captured.captured_faults(after)) == []
    with torch.no_grad():
        pairs = zip(after.module(*args), before.module(*args), strict=True)
        assert max(relative_error(*pair) for pair in pairs) < 1e-5
    return after


def operators(program: Captured) -> Counter[str]:
    names = (str(node.target).split(".")[1] for node in program.nodes if node.op == "call_function")
    return Counter(name for name in names if name in ("linear", "matmul", "add", "permute"))


X = torch.randn(BATCH, LENGTH, HEADS * SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("seen", "sums"),
    [  # of a bias: that of queries; of values where rows do not add up to 1; of keys where it counts
        (softmax, 1),
        (added, 2),
        (scaled, 2),
        (by_columns, 3),
        (clamped, 2),
    ],
)
def test_heads_are_matrices_and_biases_go_where_they_cost_nothing(
    seen: Callable[[Tensor], Tensor], sums: int
) -> None:
    found = operators(rewritten(Attention(seen), X))
    assert found == {"linear": 1, "matmul": 5, "add": sums, "permute": 2}


def test_what_a_mask_hides_has_no_bias_either() -> None:
    assert operators(rewritten(Attention(hidden), X))["matmul"] == 5


def test_keys_that_are_given_have_their_bias() -> None:
    found = operators(rewritten(Attention(softmax, gives_keys=True), X))
    assert (found["matmul"], found["add"]) == (5, 2)


@pytest.mark.parametrize("size", [24, 48])
def test_heads_that_leave_a_kernel_idle_stay_together(size: int) -> None:
    x = torch.randn(BATCH, LENGTH, HEADS * size)
    assert operators(rewritten(Attention(softmax, size), x))["linear"] == 4


@pytest.mark.parametrize("batch", [1, BATCH])
def test_xnnpack_converts_what_attention_gives_alone(batch: int) -> None:
    module, x = nn.MultiheadAttention(HEADS * SIZE, HEADS, batch_first=True).eval(), X[:batch]
    lowered = dimorder.lower(module, (x, x, x), {"need_weights": False}, target="xnnpack")
    assert len(lowered.plan.conversions) == 1
    with torch.no_grad():
        wanted = module(x, x, x, need_weights=False)[0]
    assert relative_error(lowered.run(x, x, x, need_weights=False)[0], wanted) < 1e-5


def test_other_targets_turn_the_heads() -> None:
    plan = dimorder.plan(Attention(softmax), (X,), target="torch")
    assert len(plan.conversions) > 1


# -- ones


class Rows(nn.Module):
    """Rows of sequences, computed by all kinds of operators, that are read once with a 1 in their midst."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 6), nn.LayerNorm(6)
        self.register_buffer("row", torch.linspace(-1, 2, 6))
        self.register_buffer("rows", torch.linspace(-2, 2, count * 6).view(1, count, 6))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = self.norm(self.linear(x)) * self.row + self.rows
        z = torch.cat([z, z[:, :, 1:4].clone()], dim=-1).softmax(-2)
        centred = z - z.mean((-1,), keepdim=True)
        added = centred.view(x.shape[0], 1, x.shape[1], 9) * y
        return centred, added, F.relu(centred[:, :2]).sum((1,), keepdim=True)


def rows_at(n: int, count: int) -> tuple[ExportedProgram, tuple[Tensor, ...]]:
    args = torch.randn(n, count, 5), torch.randn(n, 4, count, 9)
    return torch.export.export(Rows(count).eval(), args), args


@pytest.mark.parametrize("other", [(2, 8), (2, 7), (3, 8)])
def test_values_keep_the_ones_beside_dynamic_sizes(other: tuple[int, int]) -> None:
    before = [rows_at(3, 7), rows_at(*other)]
    for after, (program, args) in zip(keep_unit_dims([each for each, _ in before]), before, strict=True):
        for got, wanted in zip(after.module()(*args), program.module()(*args), strict=True):
            assert got.shape == wanted.shape
            assert torch.allclose(got, wanted, atol=1e-6)
        reads = [node.args[0] for node in after.graph.nodes if node.target is aten.mul.Tensor]
        shape = (args[0].shape[0], 1, args[0].shape[1], 9)
        assert any(read.op == "call_function" and read.meta["val"].shape == shape for read in reads)


def test_they_do_not_where_no_size_is_dynamic() -> None:
    """Each point may have a size that equals a fixed one."""
    before = [rows_at(3, 7)[0] for _ in range(2)]
    for after, program in zip(keep_unit_dims(before), before, strict=True):
        assert str(after.graph) == str(program.graph)


class Sliced(nn.Module):
    """A slice of a transposed operand, which gets a view of its own, and a slice that keeps the ones."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 2, 1)[:, :, 1:4].clone()
        return torch.cat([y, y[:, 1:3].clone()], 1).view(-1, 1, 7, 3)


def test_a_call_that_reads_a_transposed_operand_gets_a_view_with_ones() -> None:
    x, other = torch.randn(3, 6, 5), torch.randn(2, 6, 5)
    before, *_ = programs = [torch.export.export(Sliced(), (each,)) for each in (x, other)]
    after = keep_unit_dims(programs)[0]
    assert torch.equal(after.module()(x), before.module()(x))
    views = [node.args[1] for node in after.graph.nodes if node.target is aten.view.default]
    assert [3, 1, 5, 3] in [list(shape) for shape in views]


class Joined(nn.Module):
    """Joined with rows that are picked from it, which keep their shape and read it as it was."""

    def forward(self, x: Tensor) -> Tensor:
        y = 2.5 - x
        picked = y.index_select(1, torch.tensor([4, 0, 0, 3]))
        return torch.cat([y, picked], 1).neg().view(-1, 1, 10, 5)


def test_a_call_that_keeps_its_shape_reads_the_value_without_ones() -> None:
    x, other = torch.randn(3, 6, 5), torch.randn(2, 6, 5)
    before, *_ = programs = [torch.export.export(Joined(), (each,)) for each in (x, other)]
    after = keep_unit_dims(programs)[0]
    assert torch.equal(after.module()(x), before.module()(x))
    (joined,) = after.graph.find_nodes(op="call_function", target=aten.cat.default)
    assert joined.meta["val"].shape == (3, 1, 10, 5)
