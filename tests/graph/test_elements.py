"""Each operator does to elements what its trait says; the moves are listed once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dimorder.graph.elements import MOVERS, Elements, function_moves
from dimorder.graph.quantized import DEQUANTIZE, QUANTIZE
from dimorder.ops.dialect import ELEMENTS, OPS
from dimorder.ops.operator import Operator, spelling
from dimorder.ops.table import OPERATORS, elements_of

aten = torch.ops.aten
SOURCE = Path(__file__).parents[2] / "src" / "dimorder"


def distinct(*shape: int, first: int = 0) -> Tensor:
    """Distinct whole numbers from `first` on, in no order."""
    count = torch.Size(shape).numel()
    mixed = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return (mixed + first).reshape(shape).to(torch.float64)


X = distinct(2, 4, 6, 8, first=-190)
OTHER = distinct(2, 4, 6, 8, first=1000)
LINE = distinct(2, 4, 6)
CUBE = distinct(1, 2, 3, 4, 5)
# A call of each operator: its arguments, floats first.
CALLS: Mapping[Any, tuple[Any, ...]] = {
    # relabels
    **dict.fromkeys(
        (
            *(aten.alias.default, aten.clone.default, aten.contiguous.default, aten.detach.default),
            *(aten.detach_.default, aten.lift_fresh_copy.default, aten.mT.default, aten.squeeze.default),
        ),
        (X,),
    ),
    **dict.fromkeys((aten.reshape.default, aten.view.default, aten._unsafe_view.default), (X, [8, 2, 3, 8])),
    aten.flatten.using_ints: (X, 1, 2),
    aten.unflatten.int: (X, 2, [3, 2]),
    aten.unsqueeze.default: (X, 1),
    aten.squeeze.dim: (X[:, :1], 1),
    aten.squeeze.dims: (X[:, :1], [1, 2]),
    aten.permute.default: (X, [2, 0, 3, 1]),
    **dict.fromkeys(
        (aten.transpose.int, aten.movedim.int, aten.moveaxis.int, aten.swapaxes.default), (X, 1, 3)
    ),
    aten.swapdims.default: (X, 0, 2),
    aten.t.default: (X[0, 0],),
    **dict.fromkeys((aten.movedim.intlist, aten.moveaxis.intlist), (X, [1, 2], [3, 0])),
    **dict.fromkeys(
        (
            *(aten.pixel_shuffle.default, aten.pixel_unshuffle.default),
            *(aten.channel_shuffle.default, aten.native_channel_shuffle.default),
        ),
        (X, 2),
    ),
    # moves
    aten.slice.Tensor: (X, 2, 1, 6, 2),
    aten.select.int: (X, 1, 2),
    aten.narrow.default: (X, 1, 1, 2),
    aten.chunk.default: (X, 2, 2),
    aten.split.Tensor: (X, 4, 3),
    aten.split_with_sizes.default: (X, [1, 3, 2], 2),
    aten.unbind.int: (X, 1),
    aten.cat.default: ([X, OTHER], 1),
    aten.stack.default: ([X, OTHER], 1),
    aten.flip.default: (X, [1, 3]),
    aten.roll.default: (X, [1, 3], [1, 3]),
    OPS.slice_constant.default: (X, 1, 1, 3),
    # repeats
    aten.expand.default: (X[:, :1], [2, 3, 6, 8]),
    aten.broadcast_to.default: (X[:, :1], [2, 3, 6, 8]),
    aten.expand_as.default: (X[:, :1], X),
    aten.repeat.default: (X, [1, 2, 1, 1]),
    aten.tile.default: (X, [2, 1]),
    aten.repeat_interleave.self_int: (X, 2, 1),
    aten.index_select.default: (X, 1, torch.tensor([3, 0, 3])),
    aten.unfold.default: (X, 2, 3, 1),
    **dict.fromkeys((aten.reflection_pad1d.default, aten.replication_pad1d.default), (LINE, [2, 1])),
    **dict.fromkeys((aten.reflection_pad2d.default, aten.replication_pad2d.default), (X, [2, 1, 1, 3])),
    **dict.fromkeys(
        (aten.reflection_pad3d.default, aten.replication_pad3d.default), (CUBE, [2, 1, 1, 3, 0, 1])
    ),
    # gathers, scatters, pads, selects
    aten.gather.default: (X, 1, torch.tensor([3, 0, 3]).view(1, 3, 1, 1).expand(2, 3, 6, 8)),
    aten.embedding.default: (X[0, 0], torch.tensor([[5, 0], [5, 1]])),
    aten.index.Tensor: (X, [torch.tensor([1, 0, 1]), torch.tensor([3, 3, 2])]),
    aten.index_put.default: (X, [torch.tensor([1]), torch.tensor([3])], OTHER[0, 0]),
    aten.constant_pad_nd.default: (X, [1, 2, 0, 1], 0.0),
    aten.max_pool2d.default: (X, [3, 2], [2, 2], [1, 0]),
    aten.max_pool3d.default: (CUBE, [2, 3, 1], [1, 1, 2]),
    OPS.max_pool2d_nhwc.default: (X, [2, 3], [1, 2], [0, 1], [1, 1], False),
    aten.upsample_nearest2d.vec: (X, [9, 5], None),
    aten.upsample_nearest3d.vec: (CUBE, [5, 3, 8], None),
    OPS.upsample_nearest2d_nhwc.default: (X, [9, 5], None, None),
    # clamps
    aten.relu.default: (X,),
    aten.relu6.default: (X,),
    aten.hardtanh.default: (X, -20.0, 31.0),
    aten.clamp.default: (X, -20.0, 31.0),
    aten.clamp_min.default: (X, -20.0),
    aten.clamp_max.default: (X, 31.0),
    # pointwise
    aten._to_copy.default: (X,),
    **dict.fromkeys(
        (aten.bitwise_left_shift.Tensor, aten.bitwise_right_shift.Tensor), (X.long(), torch.tensor(1))
    ),
    aten.where.self: (X > 3, X, OTHER),
    aten.where.Scalar: (X > 3, 1.0, 2.0),
    aten.where.ScalarOther: (X > 3, X, 2.0),
    aten.where.ScalarSelf: (X > 3, 1.0, X),
    aten.masked_fill.Scalar: (X, X > 3, 1.0),
    aten.masked_fill.Tensor: (X, X > 3, torch.tensor(1.0, dtype=torch.float64)),
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor), (X, OTHER)),
    aten.pow.Tensor_Tensor: (X, OTHER),
    aten.floor_divide.default: (X, OTHER),
    aten.floor_divide.Scalar: (X, 3),
    aten.hardswish.default: (X,),
    aten.log_sigmoid.default: (X,),
    aten.rsub.Tensor: (X, OTHER),
    aten.pow.Tensor_Scalar: (X, 3),
    aten._prelu_kernel.default: (X, OTHER),
    QUANTIZE: (X.float(), 0.5, 3, -128, 127, torch.int8),
    DEQUANTIZE: (X.to(torch.int8), 0.5, 3, -128, 127, torch.int8),
    OPS.prelu_last.default: (X[0, 0, 0], torch.tensor([0.25], dtype=torch.float64)),
    # reduces: the dimension is 1
    **dict.fromkeys(
        (
            *(aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default),
            *(aten.any.dims, aten.all.dims),
        ),
        (X, [1]),
    ),
    **dict.fromkeys((aten.prod.dim_int, aten.argmax.default, aten.argmin.default), (X, 1)),
    # mixes: the dimension is the last one
    aten.layer_norm.default: (X, [8]),
    OPS.fake_quantize_dynamic.default: (X, [3], -128, 127, 1e-6, "asymmetric"),
    **dict.fromkeys(
        (aten.softmax.int, aten.log_softmax.int, aten.cumsum.default, aten.cumprod.default), (X / 90, 3)
    ),
    # filters
    aten.avg_pool2d.default: (X, [3, 2], [2, 2]),
    aten.avg_pool3d.default: (CUBE, [2, 3, 1], [1, 1, 2]),
    aten.adaptive_avg_pool2d.default: (X, [4, 3]),
    aten.adaptive_avg_pool3d.default: (CUBE, [2, 4, 3]),
    OPS.avg_pool2d_nhwc.default: (X, [2, 3], [1, 2], [0, 1], False, False, None),
    **dict.fromkeys(
        (
            *(aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.vec),
            *(aten._upsample_bilinear2d_aa.vec, aten._upsample_bicubic2d_aa.vec),
        ),
        (X, [9, 5], False, None),
    ),
    aten.upsample_trilinear3d.vec: (CUBE, [5, 3, 8], True, None),
    OPS.upsample_bilinear2d_nhwc.default: (X, [9, 5], False, None, None),
    # contracts
    aten.linear.default: (X, distinct(5, 8)),
    aten.matmul.default: (X, distinct(8, 5)),
    aten.convolution.default: (
        *(X, distinct(6, 4, 3, 2), None, [1, 2], [1, 0], [1, 1], False),
        *([0, 0], 1),
    ),
    OPS.conv2d_nhwc.default: (X, distinct(5, 3, 2, 8), None, [1, 1], [1, 0, 0, 2], [1, 1], 1),
    OPS.conv3d_ndhwc.default: (
        *(CUBE, distinct(6, 2, 1, 2, 5), None),
        *([1, 1, 1], [0] * 6, [1, 1, 1], 1),
    ),
    OPS.conv_transpose2d_nhwc.default: (
        *(X, distinct(5, 3, 2, 8), None),
        *([2, 1], [1, 0], [1, 0], [1, 1], 1),
    ),
    OPS.conv_transpose3d_ndhwc.default: (
        *(CUBE, distinct(6, 2, 1, 2, 5), None),
        *([1, 2, 1], [0] * 3, [0] * 3, [1] * 3, 1),
    ),
}
KNOWN = [
    *MOVERS,
    *ELEMENTS,
    *(n for n, operator in OPERATORS.items() if operator.elements is not Elements.UNKNOWN),
]


def run(target: Any, arguments: Any) -> Tensor:
    """The results of a call, in one tensor."""
    # Detached in place, a tensor of the tests would be another one for later tests.
    made = target(*pytree.tree_map_only(Tensor, Tensor.clone, arguments))
    results = made if isinstance(made, (list, tuple)) else [made]
    return results[0] if len(results) == 1 else torch.cat([each.flatten() for each in results])


def mapped(function: Callable[[Tensor], Tensor], arguments: Any) -> Any:
    """Arguments in which the function has been applied to each number in float64."""
    return pytree.tree_map_only(Tensor, lambda x: function(x) if x.dtype == torch.float64 else x, arguments)


def shuffled(x: Tensor) -> Tensor:
    """Each number as another one, in no order; 0 stays 0."""
    return (x * 7919) % 10007


def operands(arguments: Any) -> Tensor:
    return torch.cat([x.flatten() for x in pytree.tree_leaves(arguments) if isinstance(x, Tensor)])


def only(*elements: Elements) -> Any:
    targets = sorted({t for t in KNOWN if elements_of(t) in elements and t in CALLS}, key=str)
    return pytest.mark.parametrize("target", targets, ids=str)


def test_each_operator_that_gives_elements_has_a_call_here() -> None:
    """Passes move integers and conversions through these; nothing rests on what the others do."""
    computing = {Elements.REDUCES, Elements.MIXES, Elements.FILTERS, Elements.CONTRACTS}
    assert [str(t) for t in KNOWN if elements_of(t) not in computing and t not in CALLS] == []


@only(Elements.RELABELS)
def test_a_relabel_gives_each_element_once(target: Any) -> None:
    given = CALLS[target]
    assert torch.equal(run(target, given).flatten().sort()[0], given[0].flatten().sort()[0])


@only(Elements.MOVES)
def test_a_move_gives_each_element_at_most_once(target: Any) -> None:
    result, given = run(target, CALLS[target]).flatten(), operands(CALLS[target])
    assert len(result.unique()) == len(result)
    assert torch.isin(result, given).all()


@only(Elements.RELABELS, Elements.MOVES, Elements.REPEATS, Elements.GATHERS, Elements.SCATTERS, Elements.PADS)
def test_no_value_decides_which_elements_a_move_gives(target: Any) -> None:
    """It commutes with any function of each element."""
    given = CALLS[target]
    assert torch.equal(run(target, mapped(shuffled, given)), shuffled(run(target, given)))


@only(Elements.RELABELS, Elements.MOVES, Elements.REPEATS)
def test_torch_moves_integers_as_it_moves_floats(target: Any) -> None:
    given = mapped(lambda x: x % 100, CALLS[target])
    moved = run(target, mapped(lambda x: x.to(torch.int8), given))
    assert moved.dtype == torch.int8
    assert torch.equal(moved.to(torch.float64), run(target, given))
    assert function_moves(target) or target not in MOVERS


@only(Elements.SELECTS)
def test_a_selection_gives_elements_of_its_operand_by_their_sequence(target: Any) -> None:
    """It commutes with any increasing function, and gives what some moves would."""
    given = CALLS[target]
    result = run(target, given)
    assert torch.isin(result, given[0]).all()
    assert torch.equal(run(target, mapped(lambda x: x**3, given)), result**3)


@only(Elements.CLAMPS)
def test_a_clamp_gives_elements_or_bounds(target: Any) -> None:
    x, *bounds = CALLS[target]
    result = run(target, (x, *bounds))
    kept = result == x
    assert 0 < kept.sum() < x.numel()
    assert result[~kept].unique().tolist() == [
        b for b in sorted(bounds or [0.0, 6.0]) if (result[~kept] == b).any()
    ]
    assert torch.equal(run(target, (result, *bounds)), result)
    assert (result.flatten()[x.flatten().argsort()].diff() >= 0).all()


@only(Elements.CLAMPS, Elements.POINTWISE)
def test_a_pointwise_operator_commutes_with_permutations(target: Any) -> None:
    def turned(value: Any) -> Any:
        return value.flip(0).mT if isinstance(value, Tensor) and value.dim() > 1 else value

    if target is OPS.prelu_last.default:  # its weight is along the last dimension
        pytest.skip("it is pointwise but for its weight")
    given = CALLS[target]
    assert torch.equal(run(target, pytree.tree_map(turned, given)), turned(run(target, given)))


@only(Elements.REDUCES)
def test_a_reduction_gives_one_element_of_all_in_any_sequence(target: Any) -> None:
    result = run(target, CALLS[target])
    turned = run(target, (X.flip(1), *CALLS[target][1:]))
    assert result.shape == (2, 6, 8)
    if target in (aten.argmax.default, aten.argmin.default):
        turned = 3 - turned
    assert torch.allclose(result.double(), turned.double())


@only(Elements.MIXES)
def test_each_element_of_a_mixture_depends_on_others_in_its_row(target: Any) -> None:
    x, *rest = CALLS[target]
    other = x.clone()
    other[..., 0] += 50
    changed = run(target, (other, *rest)) != run(target, (x, *rest))
    assert changed.shape == x.shape
    assert changed[..., 1:].any()
    other = x.clone()
    other[1] += 50
    assert torch.equal(run(target, (other, *rest))[0], run(target, (x, *rest))[0])


@only(Elements.FILTERS, Elements.CONTRACTS)
def test_a_filter_and_a_contraction_are_linear_in_their_first_operand(target: Any) -> None:
    x, *rest = CALLS[target]
    other = x.flip(-1) * 3
    total = run(target, (x + other, *rest))
    assert torch.allclose(total, run(target, (x, *rest)) + run(target, (other, *rest)))


@only(Elements.FILTERS)
def test_a_filter_keeps_what_is_the_same_everywhere(target: Any) -> None:
    x, *rest = CALLS[target]
    result = run(target, (torch.full_like(x, 7.0), *rest))
    assert torch.allclose(result, torch.full_like(result, 7.0))


@only(Elements.CONTRACTS)
def test_a_contraction_is_linear_in_its_second_operand(target: Any) -> None:
    x, weight, *rest = CALLS[target]
    total = run(target, (x, weight + weight.flip(0), *rest))
    assert torch.allclose(total, run(target, (x, weight, *rest)) + run(target, (x, weight.flip(0), *rest)))


def test_what_an_operator_does_is_said_once() -> None:
    with pytest.raises(ValueError, match="different things to elements"):
        Operator((aten.view.default,), spelling=lambda n, x: x, elements=Elements.MOVES)
    with pytest.raises(ValueError, match="different things to elements"):
        spelling(lambda n, x: x, aten.view.default, aten.exp.default)
    with pytest.raises(ValueError, match="nothing says what it does to elements"):
        softmax = OPERATORS[aten.softmax.int]
        Operator((aten.softmax.int,), softmax.relate, softmax.implementations)


# -- there is one list

_NAMES = {
    "reshape",
    "view",
    "permute",
    "transpose",
    "expand",
    "repeat",
    "slice",
    "select",
    "cat",
    "flip",
    "clone",
}


def _listed(node: ast.AST) -> set[str]:
    """The operators of torch that a collection names, and those that its nested collections name."""
    if isinstance(node, ast.Starred):
        return _listed(node.value)
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return set().union(*map(_listed, node.elts))
    if isinstance(node, ast.Constant) and node.value in _NAMES:
        return {str(node.value)}
    names = [part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    is_operator = isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
        ("aten.", "torch.ops.aten.")
    )
    return {name for name in names if name in _NAMES} if is_operator else set()


def lists_of_moves(source: str) -> list[int]:
    """The lines of collections that name three or more operators that move elements."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and len(_listed(node)) > 2
    ]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("M = (aten.view.default, aten.permute.default, aten.cat.default)", [1]),
        ("M = frozenset((*(aten.view.default, aten.flip.default), aten.cat.default))", [1]),
        ("M = {'view', 'slice', 'cat'}", [1]),
        ("M = (aten.view.default, aten.permute.default, aten.exp.default)", []),
    ],
)
def test_the_finder_of_lists_finds(source: str, found: list[int]) -> None:
    assert lists_of_moves(source) == found


def test_the_moves_are_listed_once() -> None:
    apart = {"eager", "executorch", "cli"}  # other products, which know no operators of the compiler
    files = {
        str(file.relative_to(SOURCE)): lists_of_moves(file.read_text())
        for file in SOURCE.rglob("*.py")
        if file.relative_to(SOURCE).parts[0] not in apart
    }
    assert [name for name, lines in files.items() if lines] == ["graph/elements.py"]
