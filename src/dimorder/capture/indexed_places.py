"""Read which places a call selects or writes: those under a mask, or the coordinates of these.

`rows, columns = torch.where(mask)` are coordinates of the mask's places, as those of `nonzero`. `x[mask]` and
`x[rows, columns]` are the same. `x[rows]` has a row once for each of its places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node, map_arg

from dimorder.capture.refusals import sized_by_data
from dimorder.graph.elements import AT_THEIR_PLACES
from dimorder.graph.nodes import VALUE, add_call, are_equal_shapes, bound, drop_meta, is_getitem, tensor_of

aten = torch.ops.aten

RESHAPES = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints),
        *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unflatten.int),
    }
)
READS = (aten.index.Tensor, aten.index_select.default, aten.masked_select.default)
# Writes of values at places, and the place of the values among the arguments.
WRITES: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.index_put.default, aten.masked_scatter.default), 2),
        **dict.fromkeys((aten.index_copy.default, aten.index_add.default), 3),
    }
)
_INDICES = (torch.int64, torch.int32)
_COORDINATES = (
    *(aten.where.default, aten.nonzero_numpy.default),
    *(aten.nonzero.default, aten.argwhere.default),
)
_TRANSPOSES = (aten.t.default, aten.numpy_T.default, aten.transpose.int, aten.permute.default)
SOURCES = (*READS, *_COORDINATES)  # calls whose results have sizes that data decide
_BY_MASK = (aten.masked_select.default, aten.masked_scatter.default)
_BY_LIST = (aten.index.Tensor, aten.index_put.default)
_ALONG_ONE = (aten.index_select.default, aten.index_copy.default, aten.index_add.default)


@dataclass(frozen=True)
class Places:
    """The places under a mask, by coordinates.

    Attributes:
        mask: The mask.
        along: The mask's dimensions that have these coordinates, in the order of the call. A mask has all.
    """

    mask: Node
    along: tuple[int, ...]

    @property
    def repeated(self) -> list[int]:
        """The mask's other dimensions: coordinates are repeated for all places along these."""
        return [dim for dim in range(tensor_of(self.mask).dim()) if dim not in self.along]


@dataclass(frozen=True)
class Indexed:
    """The operand of a call at places.

    Attributes:
        x: The operand that is read there, or written.
        dim: The first dimension of `x` with coordinates.
        places: The places.
    """

    x: Node
    dim: int
    places: Places

    @property
    def after(self) -> int:
        """The number of dimensions after those with coordinates."""
        return tensor_of(self.x).dim() - self.dim - len(self.places.along)


def coordinates_in(graph: Graph) -> dict[Node, Places]:
    """Return the values of a graph that are coordinates of places. Make masks of numbers truth values."""
    found: dict[Node, Places] = {}
    for node in list(graph.nodes):
        source: Any = node.args[0] if node.args else None
        if node.target in _COORDINATES and tensor_of(source).dim() and not sized_by_data(source):
            is_mask = tensor_of(source).dtype == torch.bool
            mask = source if is_mask else write_call(node, aten.ne.Scalar, (source, 0))
            found[node] = Places(mask, tuple(range(tensor_of(mask).dim())))
        elif isinstance(source, Node) and source in found:
            along = _coordinates(node, source, found[source].along)
            if along is not None:
                found[node] = Places(found[source].mask, along)
    return found


def _coordinates(node: Node, source: Node, along: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return which coordinates a call has of those that it reads."""
    args: Any = node.args
    if is_getitem(node):
        return (along[args[1]],)
    if node.target in AT_THEIR_PLACES:
        return along if tensor_of(node).dtype in _INDICES else None
    sizes = tensor_of(source).shape if isinstance(source.meta[VALUE], torch.Tensor) else ()
    if len(sizes) == 2 and node.target in _TRANSPOSES:
        return along
    if len(sizes) == 2 and node.target in (aten.select.int, aten.unbind.int):
        if not isinstance(sizes[bound(node.target, args, {})["dim"]], int):  # a row is one place
            return None
        return (along[args[2]],) if node.target is aten.select.int else along
    return along if node.target in RESHAPES and tensor_of(node).dim() == len(along) == 1 else None


def indexed(node: Node, coordinates: Mapping[Node, Places], equal: Mapping[str, str]) -> Indexed | None:
    """Return the first operand of a call at places, if it is read or written there.

    Args:
        node: the call.
        coordinates: the values that are coordinates of places.
        equal: for each value the first one that is the same, by name.
    """
    args: Any = node.args
    if node.target in _BY_MASK and tensor_of(args[0]).shape == tensor_of(args[1]).shape:
        indices = [args[1]]
    elif node.target in _BY_LIST:
        indices = [*args[1]]
    elif node.target in _ALONG_ONE:
        indices = [*[None] * (args[1] % tensor_of(args[0]).dim()), args[2]]
    else:
        return None
    dim = next((dim for dim, index in enumerate(indices) if index is not None), len(indices))
    places = _places(indices[dim:], coordinates, equal)
    if places is None:
        return None
    sizes = [tensor_of(places.mask).shape[each] for each in places.along]
    is_along = are_equal_shapes(tensor_of(args[0]).shape[dim : dim + len(sizes)], sizes)
    return Indexed(args[0], dim, places) if is_along else None


def _places(
    indices: Sequence[Any], coordinates: Mapping[Node, Places], equal: Mapping[str, str]
) -> Places | None:
    """Return the places that indices of adjacent dimensions name together."""
    if not indices or not all(isinstance(index, Node) for index in indices):
        return None
    mask = indices[0]
    if len(indices) == 1 and tensor_of(mask).dtype == torch.bool and not sized_by_data(mask):
        return Places(mask, tuple(range(tensor_of(mask).dim())))
    if not all(index in coordinates and tensor_of(index).dim() == 1 for index in indices):
        return None
    read = [coordinates[index] for index in indices]
    along = tuple(each.along[0] for each in read)
    is_one = len({equal[each.mask.name] for each in read}) == 1 and len({*along}) == len(along)
    return Places(read[0].mask, along) if is_one else None


def spread(place: Node, found: Indexed) -> Node:
    """Return the operand with all dimensions of the mask. Those have size 1 along which it is repeated.

    Args:
        place: the node before which this is written.
        found: the operand.
    """
    along, dim = found.places.along, found.dim
    whole = _permuted(place, found.x, dim, sorted(range(len(along)), key=along.__getitem__))
    for repeated in found.places.repeated:
        whole = write_call(place, aten.unsqueeze.default, (whole, dim + repeated))
    return whole


def gathered(place: Node, found: Indexed, whole: Node, after: int) -> Node:
    """Return a value without repeated dimensions of the mask with its coordinates in the operand's order.

    Args:
        place: the node before which this is written.
        found: the operand.
        whole: the value.
        after: the number of the value's dimensions after those with coordinates.
    """
    along = found.places.along
    order = [sorted(along).index(each) for each in along]
    return _permuted(place, whole, tensor_of(whole).dim() - after - len(along), order)


def _permuted(place: Node, x: Node, dim: int, order: Sequence[int]) -> Node:
    """Permute the dimensions of a value from one on."""
    if [*order] == sorted(order):
        return x
    rest = range(dim + len(order), tensor_of(x).dim())
    dims = [*range(dim), *(dim + each for each in order), *rest]
    return write_call(place, aten.permute.default, (x, dims))


def write_call(place: Node, target: Any, args: Any, kwargs: Any = None) -> Node:
    """Write a call before a node, with its value."""
    values: Any = map_arg((args, kwargs or {}), lambda node: node.meta[VALUE])
    mode = detect_fake_mode((values, place.meta[VALUE]))
    assert mode is not None
    with mode:
        value = target(*values[0], **values[1])
    with place.graph.inserting_before(place):
        call = add_call(place.graph, target, args, kwargs, like=place, value=value)
    drop_meta(call, "unbacked_bindings")  # torch's key: the sizes that data decide in a node's own result
    return call
