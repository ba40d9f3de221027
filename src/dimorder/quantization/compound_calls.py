"""Write distances, losses and largest elements with their places in calls that Arm's quantizers know.

They observe no call that they do not know, so what its parts compute would not be quantised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dimorder.graph.nodes import bound, is_getitem, replace_node, tensor_of
from dimorder.graph.prediction import computed_before, without_data
from dimorder.ops.parts_indexed import places_among
from dimorder.quantization.constants import insert_constant
from dimorder.quantization.losses import LOSSES, LOSSES_OF_CLASSES

aten = torch.ops.aten


def write_compound_calls(model: GraphModule) -> None:
    """Write each compound call of floats in simpler calls, in place.

    >>> class Best(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.max(1)
    >>> model = torch.export.export(Best(), (torch.ones(2, 5),)).module(check_guards=False)
    >>> write_compound_calls(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"]
    ['aten.amax.default', 'aten.argmax.default']
    """
    left = list(model.graph.nodes)
    while left:
        node = left.pop()
        of_floats, at_places = _FUNCTIONS.get(node.target), _AT_PLACES.get(node.target)
        if of_floats is not None and _computes_floats(node.all_input_nodes):
            left += _write(model, node, of_floats)
        elif at_places is not None and _computes_floats(node.all_input_nodes[:1]):
            left += _write(model, node, at_places)
    model.graph.eliminate_dead_code()


def write_embedding_bags(model: GraphModule) -> None:
    """Write each bag of equally many embeddings as an embedding and its reduction, in place.

    >>> class Bag(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.bag = torch.nn.EmbeddingBag(7, 3, mode="max")
    ...     def forward(self, x):
    ...         return self.bag(x)
    >>> model = torch.export.export(Bag(), (torch.ones(2, 5, dtype=int),)).module(check_guards=False)
    >>> write_embedding_bags(model)
    >>> [str(node.target) for node in model.graph.nodes if node.op == "call_function"][1:]
    ['aten.reshape.default', 'aten.embedding.default', 'aten.amax.default']
    """
    for target in (aten.embedding_bag.default, aten.embedding_bag.padding_idx):
        for node in model.graph.find_nodes(op="call_function", target=target):
            given = bound(target, node.args, node.kwargs)
            length = _length_of_bags(given["offsets"], *tensor_of(given["indices"]).shape)
            others = given["per_sample_weights"], given.get("padding_idx"), given["include_last_offset"]
            read = {reader.args[1] for reader in node.users if is_getitem(reader) and reader.users}
            if not length or any(each not in (None, False) for each in others) or read - {0}:
                continue
            bags = computed_before(node, aten.reshape.default, given["indices"], [-1, length])
            x = computed_before(node, aten.embedding.default, given["weight"], bags)
            reduction = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default)[given["mode"]]
            y = computed_before(node, reduction, x, [1])
            for reader in filter(is_getitem, list(node.users)):
                if reader.args[1] == 0:
                    replace_node(reader, y)
    model.graph.eliminate_dead_code()


def _length_of_bags(offsets: Node, count: Any) -> int:
    """Return the length of all bags if they are equally long and together have all indices, else 0."""
    if offsets.target is not aten.arange.start_step or not isinstance(count, int):
        return 0
    given = bound(offsets.target, offsets.args, offsets.kwargs)
    start, end, step = (given[name] for name in ("start", "end", "step"))
    is_whole = all(isinstance(each, int) for each in (start, end, step))
    return step if is_whole and (start, end) == (0, count) and count % step == 0 else 0


def _computes_floats(operands: Sequence[Node]) -> bool:
    """Return whether operands are floats of fixed sizes."""
    values = [tensor_of(each) for each in operands]
    sizes = [size for value in values for size in value.shape]
    return all(each.is_floating_point() for each in values) and all(isinstance(size, int) for size in sizes)


_VIEWS = (aten.view.default, aten._unsafe_view.default)  # of operands that are traced as dense


def _write(model: GraphModule, node: Node, function: Callable[..., Any]) -> list[Node]:
    """Replace a call by what a function computes of its arguments, and return the new calls.

    The call stays if the function returns NotImplemented.
    """
    given = bound(node.target, node.args, node.kwargs)
    leaves, tree = pytree.tree_flatten(given)
    operands = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def compute(*tensors: Tensor) -> Any:
        left = iter(tensors)
        held = [next(left) if isinstance(leaf, Node) else leaf for leaf in leaves]
        made = function(**pytree.tree_unflatten(held, tree))
        results.append(made)
        return tensors[0] if made is NotImplemented else made

    results: list[Any] = []
    traced = make_fx(compute)(*(without_data(tensor_of(each)) for each in operands))
    if results[-1] is NotImplemented:
        return []
    read = iter(operands)
    values: dict[Node, Node] = {}
    for each in traced.graph.nodes:
        if each.op == "placeholder":
            values[each] = next(read)
        elif each.op == "get_attr":
            values[each] = insert_constant(model, "number", getattr(traced, str(each.target)), node)
        elif each.op == "call_function":
            args, kwargs = pytree.tree_map_only(Node, values.__getitem__, (each.args, each.kwargs))
            options = {name: value for name, value in kwargs.items() if name != "device"}  # it has no data
            target = aten.reshape.default if each.target in _VIEWS else each.target
            values[each] = computed_before(node, target, *args, **options)
    (written,) = traced.graph.output_node().args
    if isinstance(written, Node):
        replace_node(node, values[written])
    else:
        for reader in filter(is_getitem, list(node.users)):
            replace_node(reader, values[written[reader.args[1]]])  # type: ignore[index]
        node.graph.erase_node(node)
    return [value for each, value in values.items() if each.op == "call_function"]


# -- functions of the arguments, by their names ------------------------------------------------------------


def _norm(x: Tensor, ord: float, dim: Sequence[int] | None, keepdim: bool) -> Tensor:
    """Return the norm of vectors, as torch.linalg.vector_norm does."""
    dims = list(range(x.dim()) if dim is None else dim)
    if math.isinf(ord):
        return x.abs().amax(dims, keepdim) if ord > 0 else x.abs().amin(dims, keepdim)
    if ord == 1:
        return x.abs().sum(dims, keepdim)
    if ord == 2:
        return (x * x).sum(dims, keepdim).sqrt()
    return x.abs().pow(ord).sum(dims, keepdim).pow(1 / ord)


def _vector_norm(self: Tensor, ord: float, dim: Any, keepdim: bool, dtype: Any) -> Any:
    """Write the norms that Arm's pass lacks."""
    return NotImplemented if ord in (0, 1, 2) or dtype is not None else _norm(self, ord, dim, keepdim)


def _pairwise_distance(x1: Tensor, x2: Tensor, p: float, eps: float, keepdim: bool) -> Any:
    return NotImplemented if p == 0 else _norm(x1 - x2 + eps, p, [-1], keepdim)


def _distances(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Any:
    """Return the distance of each row of one matrix from each of another's."""
    return NotImplemented if p == 0 else _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, [-1], False)


def _hypot(self: Tensor, other: Tensor) -> Tensor:
    return (self * self + other * other).sqrt()


def _log_sum(self: Tensor, other: Tensor) -> Tensor:
    """Return log(exp(x) + exp(y)), without large exponents."""
    return torch.maximum(self, other) + torch.log1p((-(self - other).abs()).exp())


def _divided(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float) -> Tensor:
    quotient = tensor1 / tensor2
    return self + (quotient if value == 1 else quotient * value)


def _relu6(self: Tensor) -> Tensor:
    return torch.nn.functional.hardtanh(self, 0.0, 6.0)


def _largest(self: Tensor, dim: int, keepdim: bool) -> Any:
    return (self.amax(dim, keepdim), self.argmax(dim, keepdim)) if self.dim() else NotImplemented


def _least(self: Tensor, dim: int, keepdim: bool) -> Any:
    return (self.amin(dim, keepdim), (-self).argmax(dim, keepdim)) if self.dim() else NotImplemented


def _least_place(self: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    return (-self).argmax(dim, keepdim)


def _deviation_and_mean(
    self: Tensor, dim: Any = None, correction: Any = None, unbiased: bool = True, keepdim: bool = False
) -> Any:
    dims = dim or list(range(self.dim()))
    less = unbiased if correction is None else correction
    return torch.std(self, dims, correction=less, keepdim=keepdim), self.mean(dims, keepdim)


def _middle(self: Tensor) -> Tensor:
    return self.reshape(-1).kthvalue((self.numel() + 1) // 2)[0]


def _middle_of(self: Tensor, dim: int, keepdim: bool) -> Any:
    if not self.dim():
        return NotImplemented
    return tuple(self.kthvalue((self.shape[dim] + 1) // 2, dim, keepdim))


def _running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Return a function that combines each element with all before it: those of 1, 2, 4, … places before."""

    def running(self: Tensor, dim: int, dtype: Any = None) -> Any:
        if not self.dim() or dtype is not None:
            return NotImplemented
        size, step, found = self.shape[dim], 1, self
        while step < size:
            first, others = found.narrow(dim, 0, step), found.narrow(dim, step, size - step)
            found = torch.cat([first, combine(others, found.narrow(dim, 0, size - step))], dim)
            step *= 2
        return found

    return running


def _angle(self: Tensor, other: Tensor) -> Tensor:
    """Return the angle of points: an arctangent from 0 to 1, turned into its eighth of the circle."""
    above, right = self.abs(), other.abs()
    longer = torch.maximum(above, right).clamp(min=torch.finfo(self.dtype).tiny)
    angle = torch.atan(torch.minimum(above, right) / longer)
    angle = torch.where(above > right, math.pi / 2 - angle, angle)
    angle = torch.where(other < 0, math.pi - angle, angle)
    return torch.where(self < 0, -angle, angle)


def _added_at(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float) -> Any:
    """Write the sums of the rows for each place as a matmul with a matrix of truth values."""
    if not self.dim() or not index.dim():
        return NotImplemented
    places = torch.arange(self.shape[dim], dtype=index.dtype, device=index.device)
    chosen = (index == places.unsqueeze(-1)).to(self.dtype)
    rows = source.movedim(dim, 0)
    sums = (chosen @ rows.reshape(rows.shape[0], -1)).reshape(self.shape[dim], *rows.shape[1:])
    sums = sums.movedim(0, dim)
    return self + (sums if alpha == 1 else sums * alpha)


def _added_at_each(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """Write the sum for each place as a sum of the elements that a comparison finds for it."""
    if not self.dim():
        return NotImplemented
    chosen, src = _chosen_at_each(self, dim, index, src)
    sums = torch.where(chosen, src, 0.0).sum(-1).movedim(-1, dim)
    sizes = zip(reversed(self.shape), reversed(sums.shape), strict=True)
    missing = [side for size, own in sizes for side in (0, size - own)]
    return self + (torch.nn.functional.pad(sums, missing) if any(missing) else sums)


def _chosen_at_each(self: Tensor, dim: int, index: Tensor, src: Tensor) -> tuple[Tensor, Tensor]:
    """Return which elements each place gets, and the elements; both are last."""
    src = src[tuple(map(slice, index.shape))].movedim(dim, -1)
    places = torch.arange(self.shape[dim], dtype=index.dtype, device=index.device)
    return index.movedim(dim, -1).unsqueeze(-2) == places.unsqueeze(-1), src.unsqueeze(-2)


def _reduced_at_each(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Any:
    """Write the sum, mean, maximum or minimum of the elements for each place, which stays if it gets none."""
    if reduce == "sum" and include_self:
        return _added_at_each(self, dim, index, src)
    sizes = [[size for d, size in enumerate(x.shape) if d != dim % max(x.dim(), 1)] for x in (self, index)]
    if not self.dim() or reduce == "prod" or sizes[0] != sizes[1]:
        return NotImplemented
    chosen, src = _chosen_at_each(self, dim, index, src)
    own, count = self.movedim(dim, -1), chosen.to(src.dtype).sum(-1)
    if reduce in ("sum", "mean"):
        found = torch.where(chosen, src, 0.0).sum(-1)
        found, count = (own + found, count + 1) if include_self else (found, count)
        found = found / count.clamp(min=1) if reduce == "mean" else found
    else:
        largest, least, larger = _EXTREMES[reduce]
        found = largest(torch.where(chosen, src, least(src, -1, True)), -1)
        found = larger(found, own) if include_self else found
    return torch.where(count > 0, found, own).movedim(-1, dim)


_EXTREMES: Mapping[str, tuple[Callable[..., Tensor], ...]] = MappingProxyType(
    {
        "amax": (torch.amax, torch.amin, torch.maximum),
        "amin": (torch.amin, torch.amax, torch.minimum),
    }
)


def _place_among(
    sorted_sequence: Tensor,
    self: Tensor,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    if sorter is not None:
        return NotImplemented
    dtype = torch.int32 if out_int32 else torch.int64
    return places_among(self, sorted_sequence, right or side == "right", dtype)


def _bucket(self: Tensor, boundaries: Tensor, out_int32: bool, right: bool) -> Any:
    return _place_among(boundaries, self, out_int32, right)


def _shortened(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Divide each slice by its norm, or by the largest norm that is allowed if that is more."""
    others = [d for d in range(self.dim()) if d != dim % self.dim()]
    return self * (maxnorm / _norm(self, p, others, True).clamp(min=maxnorm))


def _quantile(self: Tensor, q: float, dim: int | None, keepdim: bool, interpolation: str) -> Any:
    """Return a number between two elements in order."""
    if not self.dim() or (dim is None and keepdim):
        return NotImplemented
    x, dim = (self.reshape(-1), 0) if dim is None else (self, dim)
    rank = _ROUNDED.get(interpolation, float)(q * (x.shape[dim] - 1))
    low, high = math.floor(rank), math.ceil(rank)
    below, above = (x.kthvalue(place + 1, dim, keepdim)[0] for place in (low, high))
    share = 0.5 if interpolation == "midpoint" else rank - low
    return below + (above - below) * share if low < high else below


_ROUNDED: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {"lower": math.floor, "higher": math.ceil, "nearest": round}
)


def _remainder(self: Tensor, other: Tensor) -> Tensor:
    """Return the remainder of the lengths, with the sign of what is divided."""
    left = torch.remainder(self.abs(), other.abs())
    return torch.where(self < 0, -left, left)


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.linalg_vector_norm.default: _vector_norm,
        aten.pairwise_distance.default: _pairwise_distance,
        aten.cdist.default: _distances,
        aten._cdist_forward.default: _distances,
        aten.hypot.default: _hypot,
        aten.logaddexp.default: _log_sum,
        aten.addcdiv.default: _divided,
        aten.relu6.default: _relu6,
        aten.max.dim: _largest,
        aten.min.dim: _least,
        aten.argmin.default: _least_place,
        aten.std_mean.default: _deviation_and_mean,
        aten.std_mean.dim: _deviation_and_mean,
        aten.std_mean.correction: _deviation_and_mean,
        aten.median.default: _middle,
        aten.median.dim: _middle_of,
        aten.cumprod.default: _running(torch.mul),
        aten.logcumsumexp.default: _running(_log_sum),
        aten.atan2.default: _angle,
        aten.renorm.default: _shortened,
        aten.quantile.scalar: _quantile,
        aten.fmod.Tensor: _remainder,
        aten.bucketize.Tensor: _bucket,
        aten.searchsorted.Tensor: _place_among,
        **LOSSES,
    }
)
# Functions of floats and of places in them.
_AT_PLACES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.index_add.default: _added_at,
        aten.scatter_add.default: _added_at_each,
        aten.scatter_reduce.two: _reduced_at_each,
        **LOSSES_OF_CLASSES,
    }
)
