"""Define linear and matmul; constant weights are permuted at compile time to fit any order of channels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dimorder.graph.elements import Elements
from dimorder.graph.nodes import args_of, dynamic_dims
from dimorder.graph.tracing import Tracer, Value, shape_of
from dimorder.ops.call import Call
from dimorder.ops.dialect import OPS
from dimorder.ops.moves import permute, view
from dimorder.ops.operator import Implementation, Operator, ordered_operands, spelling
from dimorder.ops.relation import Dims, Relation, Token, dims_of

aten = torch.ops.aten

_WEIGHTS = ("weight", "bias")


def _linear_of(n: Tracer, x: Value, w: Value, bias: Value = None) -> Value:
    """Write a linear; a computed weight or a vector becomes a matmul, a computed bias an addition."""
    computed_weight, computed_bias = (isinstance(value, torch.fx.Node) for value in (w, bias))
    if len(shape_of(w)) == 1:
        y = matmul(n, x, w)
    elif not (computed_weight or computed_bias):
        return n.emit(aten.linear.default, x, w, *([] if bias is None else [bias]))
    else:
        y = matmul(n, x, permute(n, w, [1, 0])) if computed_weight else n.emit(aten.linear.default, x, w)
    return y if bias is None else n.write(aten.add.Tensor, y, bias)


def _addmm(n: Tracer, bias: Value, x: Value, w: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    if (alpha, beta) == (1, 1) and len(shape_of(bias)) == 1 and isinstance(w, torch.Tensor):
        return _linear_of(n, x, w.t(), bias)
    y = _times(n, matmul(n, x, w), alpha)
    return y if beta == 0 else n.write(aten.add.Tensor, y, _times(n, bias, beta))


def matmul(n: Tracer, a: Value, b: Value) -> Value:
    """Write a matmul; a constant matrix on the right becomes a linear, and a vector becomes a matrix."""
    rank_a, rank_b = len(shape_of(a)), len(shape_of(b))
    if isinstance(b, torch.Tensor) and rank_b == 2:
        return n.emit(aten.linear.default, a, b.t())
    if rank_a == 2 and rank_b == 1:
        return _matrix_vector(n, a, b)
    if min(rank_a, rank_b) < 2:
        rows = view(n, a, [1, -1]) if rank_a == 1 else a
        columns = view(n, b, [-1, 1]) if rank_b == 1 else b
        batch = shape_of(a if rank_b == 1 else b)[:-2]
        free = [*shape_of(rows)[-2:-1] * (rank_a > 1), *shape_of(columns)[-1:] * (rank_b > 1)]
        return view(n, matmul(n, rows, columns), [*batch, *free])
    rank = max(rank_a, rank_b)
    a, b = (view(n, x, (1,) * (rank - len(shape_of(x))) + shape_of(x)) for x in (a, b))
    return n.emit(aten.matmul.default, a, b)


def _times(n: Tracer, x: Value, factor: float) -> Value:
    return x if factor == 1 else n.write(aten.mul.Tensor, x, factor)


def _add_product(multiply: Callable[[Tracer, Value, Value], Value]) -> Callable[..., Value]:
    """Return the spelling of beta · x + alpha · (a times b), with `multiply` for a times b."""

    def spell(n: Tracer, x: Value, a: Value, b: Value, *, beta: float = 1, alpha: float = 1) -> Value:
        product = _times(n, multiply(n, a, b), alpha)
        return product if beta == 0 else n.write(aten.add.Tensor, _times(n, x, beta), product)

    return spell


def _matrix_vector(n: Tracer, a: Value, b: Value) -> Value:
    """Write a linear if the matrix is a constant, else a matmul."""
    if isinstance(a, torch.Tensor):
        return n.write(aten.linear.default, b, a)
    column = n.write(aten.matmul.default, a, view(n, b, [-1, 1]))
    return view(n, column, [shape_of(a)[0]])


def _matrices(n: Tracer, a: Value, b: Value) -> Value:
    return n.write(aten.matmul.default, a, b)


def _sum_of_matrices(n: Tracer, a: Value, b: Value) -> Value:
    """Write Σ aᵢ bᵢ as one matmul: of the aᵢ side by side and the bᵢ on top of each other."""
    batch, rows, inner = shape_of(a)
    beside = view(n, n.write(aten.transpose.int, a, 0, 1), [rows, batch * inner])
    return n.write(aten.matmul.default, beside, view(n, b, [batch * inner, -1]))


def _relate_linear(node: torch.fx.Node) -> Relation | str:
    if len(ordered_operands(node, _WEIGHTS)) != 1:
        return "a weight or a bias that is computed"
    reads, writes = (
        dims_of([*((f"d.{i}", size) for i, size in enumerate(shape[:-1])), ("k", shape[-1])])
        for shape in (shape_of(args_of(node)[0]), shape_of(node))
    )
    return Relation("contraction", (reads,), (writes,), absorbed=frozenset({"k"}))


def _relate_matmul(node: torch.fx.Node) -> Relation:
    a, b, out = shape_of(args_of(node)[0]), shape_of(args_of(node)[1]), shape_of(node)
    batch = [f"b.{i}" for i in range(len(out) - 2)]

    def dims(shape: tuple[int, ...], *last: str) -> Dims:
        head = [
            (name, size if size == full else 1) for name, size, full in zip(batch, shape, out, strict=False)
        ]
        return dims_of([*head, *zip(last, shape[-2:], strict=True)])

    return Relation("contraction", (dims(a, "m", "k"), dims(b, "k", "n")), (dims(out, "m", "n"),))


def _relaid(c: Call) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the constant weight (outputs, inputs) and bias for channels in the planned orders."""
    weight, bias = c.weight(1), c.weight(2)
    assert weight is not None
    rows, columns = c.permutation(c.result, "k"), c.permutation(0, "k")
    return weight[rows][:, columns], None if bias is None else bias[rows]


def _linear(c: Call) -> None:
    """Lower to x Wᵀ, with the channels innermost."""
    weight, bias = _relaid(c)
    groups = c.ending_in("k")
    c.give(c.b.call(c.target, c.take(0, groups), c.constant(weight, 1), c.constant(bias, 2)), groups)


def _linear_as_matmul(c: Call) -> None:
    """Lower to x times the transposed weight, with the channels innermost."""
    weight, bias = _relaid(c)
    groups = c.ending_in("k")
    if len(groups) == 1:
        groups = [[], *groups]  # a row of a matrix, for no target multiplies a vector
    y = c.b.call(aten.matmul.default, c.take(0, groups), c.constant(weight.t(), 1))
    if bias is not None:
        y = c.b.call(aten.add.Tensor, y, c.constant(bias, 2))
    c.give(y, groups)


def _linear_as_convolution(c: Call) -> None:
    """Lower to a convolution of one tap over the rows, with the channels innermost."""
    weight, bias = _relaid(c)
    groups = c.ending_in("k")
    shape = [c.size(0, group) for group in groups]
    pixels = shape if len(shape) == 4 else [1, math.prod(shape[:-1]), 1, shape[-1]]
    x = c.take(0, groups)
    if pixels != shape:
        x = c.b.call(aten.view.default, x, pixels)
    taps = weight.reshape(weight.shape[0], 1, 1, weight.shape[1])
    y = c.b.call(
        OPS.conv2d_nhwc.default, x, c.constant(taps, 1), c.constant(bias, 2), [1, 1], [0] * 4, [1, 1], 1
    )
    if pixels != shape:
        y = c.b.call(aten.view.default, y, [*shape[:-1], weight.shape[0]])
    c.give(y, groups)


def _linear_features_first(c: Call) -> None:
    """Lower to W x, with the channels outermost."""
    weight, bias = _relaid(c)
    k = c.labelled("k")
    groups = [k, [token for token in c.arrangement.tokens if token not in k]]
    y = c.b.call(aten.matmul.default, c.constant(weight, 1), c.take(0, groups))
    if bias is not None:
        y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(-1, 1), 2))
    c.give(y, groups)


def _has_one_column(node: torch.fx.Node) -> bool:
    return shape_of(node)[-1] == 1


def _multiply(c: Call) -> None:
    """Lower a matmul, in the order of its arrangement.

    The dimensions of the batch stay as the operands have them, and are parted where an operand broadcasts.
    A batch that the right operand lacks becomes more rows of the left. If the arrangement puts n before m,
    this is (AB)ᵀ = BᵀAᵀ: the operands change sides.
    """
    batch = c.labelled("b")
    m, k, n = c.by_label("m", "k", "n")
    outer = [group for group in c.split(alone=batch) if group and group[0] in batch] or [[]]
    place = {token: p for p, token in enumerate(c.arrangement.tokens)}

    def precedes(a: list[Token], b: list[Token], unless: bool) -> bool:
        return place[a[0]] < place[b[0]] if a and b else unless

    straight = precedes(m, n, precedes(m, k, True))  # without columns, the order k m is transposed
    a_first, b_first = precedes(m, k, straight), precedes(k, n, straight)
    if straight and len(c.site.reads) == 2 and batch and not any(c.has(t, 1) for t in batch):
        outer, m = [], [*batch, *m]
    sides = ([*outer, m, k] if a_first else [*outer, k, m], [*outer, k, n] if b_first else [*outer, n, k])
    taken = c.operands_in(sides)
    if not straight:
        taken, (a_first, b_first) = taken[::-1], (not b_first, not a_first)
    rank = len(outer) + 2
    swap = [*range(rank - 2), rank - 1, rank - 2]
    left, right = (
        node if first else c.b.call(aten.permute.default, node, swap)
        for node, first in zip(taken, (a_first, b_first), strict=True)
    )
    c.give(c.b.call(aten.matmul.default, left, right), [*outer, m, n] if straight else [*outer, n, m])


_MATMUL = (aten.matmul.default,)
_MATMUL_AND_ADD = (aten.matmul.default, aten.add.Tensor)


def few_features_first(most: int) -> Implementation:
    """Return the implementation of linears of at most `most` features on each side: features outermost.

    A target whose matmul is slower than its linear lists it as its own, with the size up to which both take
    as long. Attention that mixes its heads by a linear is an example.
    """

    def applies(node: torch.fx.Node) -> bool:
        x, weight = node.args[:2]
        assert isinstance(x, torch.fx.Node) and isinstance(weight, torch.fx.Node)
        is_float32 = weight.op == "get_attr" and weight.meta["val"].dtype == torch.float32
        is_dynamic = x.target is OPS.fake_quantize_dynamic.default  # a linear of integers, a matmul of floats
        return is_float32 and not is_dynamic and max(shape_of(weight)) <= most

    return Implementation("few features first", "k *", _linear_features_first, _MATMUL_AND_ADD, applies)


def has_two_dynamic_rows(graph: torch.fx.Graph) -> bool:
    """Return whether a linear has several dynamic sizes besides its features, which "features first" merges.

    No target splits them again inside a delegate.
    """
    linears = graph.find_nodes(op="call_function", target=aten.linear.default)
    return any(len(set(dynamic_dims(node)) - {len(shape_of(node)) - 1}) > 1 for node in linears)


OPERATORS = (
    Operator(
        (aten.linear.default,),
        _relate_linear,
        (
            Implementation("features last", "* k", _linear, (aten.linear.default,)),
            Implementation("as a convolution", "* k", _linear_as_convolution, (OPS.conv2d_nhwc.default,)),
            Implementation("as a matmul", "* k", _linear_as_matmul, _MATMUL_AND_ADD),
            Implementation("features first", "k *", _linear_features_first, _MATMUL_AND_ADD),
        ),
        spelling=_linear_of,
        weights=_WEIGHTS,
        fresh=True,
        plain=("features last", "features first"),
        elements=Elements.CONTRACTS,
    ),
    Operator(
        (aten.matmul.default,),
        _relate_matmul,
        (
            Implementation("row-major", "b m k n", _multiply, _MATMUL),
            Implementation("right transposed", "b m n k", _multiply, _MATMUL),
            Implementation("transposed", "b n k m", _multiply, _MATMUL),
            Implementation("one column transposed", "b k m", _multiply, _MATMUL, _has_one_column),
        ),
        spelling=matmul,
        plain=("row-major", "right transposed", "transposed", "one column transposed"),
        elements=Elements.CONTRACTS,
    ),
    spelling(matmul, aten.bmm.default, aten.mm.default),
    spelling(_addmm, aten.addmm.default),
    spelling(_matrix_vector, aten.mv.default),
    spelling(
        lambda n, a, b: n.write(aten.sum.dim_IntList, n.write(aten.mul.Tensor, a, b), [0]), aten.dot.default
    ),
    spelling(
        lambda n, a, b: n.write(aten.mul.Tensor, view(n, a, [-1, 1]), view(n, b, [1, -1])), aten.outer.default
    ),
    spelling(_add_product(_matrix_vector), aten.addmv.default),
    spelling(_add_product(_matrices), aten.baddbmm.default),
    spelling(_add_product(_sum_of_matrices), aten.addbmm.default),
)
