"""Keep sizes dynamic as a network is exported, where torch.export would fix them.

1. Equal parts of a dynamic size are a view. torch 2.13 divides by rounding: `chunk(2)` of 2·N elements takes
   parts of N, of which (3·N - 1) // N are needed. It cannot prove that these are 2 for every N, and fixes N.
   A network that stacks two batches, or that computes with and without guidance at once, would have one size
   of its batch.
2. The places of `torch.linspace` are those of `arange`, of which torch.export keeps the number dynamic.
3. A pool over a length is one over pictures of one row. torch's own check of it fixes the length.
4. A pool over one window of all elements is a mean or a maximum. torch fixes the sizes of a window.
5. `torch.cdist` computes by a matmul for more than 25 rows. It does so here if there always are so many, and
   else as for few rows, which is right for all of them.
6. `torch.take_along_dim` is a gather, of which torch.export keeps the sizes.
7. A padding by an amount that is below zero at some sizes alone is a cut and a padding, each by none or more.
   Kernels take no amount below zero, and planned points may not show it.
8. A padding of another mode by a dynamic amount reads the elements at places that are computed. The pieces
   that it would be cut into differ with the amount.
9. The larger of two numbers is the one that is larger at all sizes, if there is one. A same padding takes
   `max(padding, 0)`. torch proves nothing of it: each convolution would double the length of its sizes.
10. A tensor of dynamic sizes, as `torch.tensor` and `torch.as_tensor` make it, is a stack of scalars, each of
   which torch.export keeps dynamic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from torch import SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges

from dimorder.capture.claims import holds

_MOST_COMPARED = 2**11  # sizes at which two numbers are compared
_NEAR = 4  # sizes at each end of a range, at which the sign of a padding is looked up
_FEW_ROWS = 25  # of an operand of cdist, which computes by a matmul for more
_BY_NUMBER_OF_ROWS = "use_mm_for_euclid_dist_if_necessary"


class KeepDynamic(TorchFunctionMode):
    """Write some functions of dynamic sizes in others, which keep these sizes dynamic.

    >>> class Both(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.cat([x, -x]).relu().chunk(2)
    >>> sizes = ({0: torch.export.Dim("N", min=1, max=4)},)
    >>> with KeepDynamic():
    ...     program = torch.export.export(Both(), (torch.ones(2, 3),), dynamic_shapes=sizes)
    >>> targets = [str(node.target) for node in program.graph.nodes]
    >>> "aten.unbind.int" in targets, "aten.chunk.default" in targets
    (True, False)
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond
            return function(*args, **kwargs)
        if function in _DIVIDED_BY:
            x, count, dim = _DIVIDED_BY[function](*args, **kwargs)
            dim %= max(x.dim(), 1)
            if x.dim() and _is_known(x.shape[dim]) and count and x.shape[dim] % count == 0:
                return x.unflatten(dim, (count, x.shape[dim] // count)).unbind(dim)
        write = _WRITTEN_IN_OTHERS.get(function)
        written = None if write is None else write(*args, **kwargs)
        return function(*args, **kwargs) if written is None else written


def _line(
    start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any
) -> Tensor | None:
    """Return what `torch.linspace` does, if the number of its places is dynamic.

    One place is the start. `sym_max` says so: torch takes a size that may be 1 for at least 2.
    """
    dtype = dtype or torch.get_default_dtype()
    if not (_is_known(steps) and dtype.is_floating_point):
        return None
    places = torch.arange(steps, dtype=dtype, **options) * (end - start)
    line: Tensor = places / torch.sym_max(steps - 1, 1) + start
    return line


def _tensor(data: Any, dtype: torch.dtype | None = None, device: Any = None, **options: Any) -> Tensor | None:
    """Return what `torch.tensor` does, if some of its whole numbers are dynamic sizes."""
    numbers = pytree.tree_leaves(data)
    if options or not any(map(_is_known, numbers)) or not all(type(n) in (int, SymInt) for n in numbers):
        return None

    def stacked(part: Any) -> Tensor:
        if isinstance(part, (list, tuple)):
            return torch.stack([stacked(each) for each in part])
        return torch.scalar_tensor(part, dtype=dtype or torch.int64, device=device)

    return stacked(data)


def _max_pool(rank: int) -> Callable[..., Tensor | None]:
    """Return what writes a max-pool over so many dimensions that returns no indices.

    Its window is its whole operand, or it goes over a length. A size of the operand is dynamic.
    """

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor | None:
        if return_indices:
            return None
        if not padding and dilation == 1 and _is_whole(input, kernel_size, rank):
            return input.amax(tuple(range(-rank, 0)), keepdim=True)
        if rank > 1 or not any(map(_is_known, input.shape)):
            return None
        kernel, steps, pads, dilations = (
            (least, *each) if isinstance(each, (tuple, list)) else (least, each)
            for least, each in ((1, kernel_size), (1, stride or kernel_size), (0, padding), (1, dilation))
        )
        rows = torch.max_pool2d(input.unsqueeze(-2), kernel, steps, pads, dilations, ceil_mode)
        return rows.squeeze(-2)

    return pool


def _mean_pool(rank: int) -> Callable[..., Tensor | None]:
    """Return what writes a mean pool over so many dimensions, if its window is its whole operand."""

    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor | None:
        if padding or divisor_override is not None or not _is_whole(input, kernel_size, rank):
            return None
        return input.mean(tuple(range(-rank, 0)), keepdim=True)

    return pool


def _is_whole(input: Tensor, kernel_size: Any, rank: int) -> bool:
    """Return whether a window has the dynamic sizes of all that is pooled."""
    window = kernel_size if isinstance(kernel_size, (tuple, list)) else (kernel_size,) * rank
    is_equal = (statically_known_true(a == b) for a, b in zip(window, input.shape[-rank:], strict=True))
    return any(map(_is_known, window)) and all(is_equal)


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = _BY_NUMBER_OF_ROWS) -> Tensor | None:
    """Return what `torch.cdist` does, if a number of rows is dynamic and would decide how it computes."""
    rows = x1.shape[-2], x2.shape[-2]
    if compute_mode != _BY_NUMBER_OF_ROWS or not any(map(_is_known, rows)):
        return None
    are_many = any(statically_known_true(count > _FEW_ROWS) for count in rows)
    mode = "use_mm_for_euclid_dist" if are_many else "donot_use_mm_for_euclid_dist"
    return torch.cdist(x1, x2, p, mode)


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor | None:
    """Return what `torch.take_along_dim` does, if a size is dynamic and no dimension is broadcast."""
    if dim is None or input.dim() != indices.dim():
        return None
    dim %= max(input.dim(), 1)
    others = [pair for d, pair in enumerate(zip(input.shape, indices.shape, strict=True)) if d != dim]
    are_dynamic = any(map(_is_known, (*input.shape, *indices.shape)))
    return input.gather(dim, indices) if are_dynamic and all(a is b or a == b for a, b in others) else None


def _pad(
    input: Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None
) -> Tensor | None:
    """Return what a padding by dynamic amounts does, where torch's own call would not do at all sizes."""
    if mode in _BESIDE and any(map(_is_known, pad)):
        for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
            dim = input.dim() - 1 - place
            size = input.shape[dim]
            at = torch.arange(before + size + after, device=input.device) - before
            input = input.index_select(dim, _BESIDE[mode](at, size))
        return input
    varies = [mode == "constant" and _cuts_at_some_sizes(amount) for amount in pad]
    if not any(varies):
        return None
    cuts = [_or_none(-amount) if each else 0 for amount, each in zip(pad, varies, strict=True)]
    x = input
    for place, (low, high) in enumerate(zip(cuts[::2], cuts[1::2], strict=True)):
        dim = input.dim() - 1 - place
        if any(varies[2 * place : 2 * place + 2]):
            x = torch.ops.aten.slice.Tensor(x, dim, low, x.shape[dim] - high)
    rest = [_or_none(amount) if each else amount for amount, each in zip(pad, varies, strict=True)]
    return F.pad(x, rest, mode, value)


def _or_none(amount: Any) -> Any:
    """Return an amount, or 0 where it is below."""
    larger = _max(amount, 0)
    return torch.sym_max(amount, 0) if larger is None else larger


# By the mode of a padding: the places that it reads, of places that begin below 0 and end beyond a size.
_BESIDE: Mapping[str, Callable[[Tensor, Any], Tensor]] = MappingProxyType(
    {
        "reflect": lambda at, size: size - 1 - (size - 1 - at.abs()).abs(),
        "replicate": lambda at, size: at.clamp(0, size - 1),
        "circular": lambda at, size: at % size,
    }
)


def _cuts_at_some_sizes(amount: int | SymInt) -> bool:
    """Return whether an amount is below zero at some sizes near the ends of their ranges, but not at all."""
    if isinstance(amount, int) or not _is_known(amount) or statically_known_true(amount >= 0):
        return False
    expression, ranges = amount.node.expr, amount.node.shape_env.var_to_range
    near = [_near_the_ends(ranges[symbol]) for symbol in expression.free_symbols]
    points = (dict(zip(expression.free_symbols, point, strict=True)) for point in itertools.product(*near))
    return len({(expression.xreplace(point) < 0) == sympy.true for point in points}) > 1


def _near_the_ends(sizes: ValueRanges[Any]) -> set[Any]:
    """Return the first sizes of a range, and the last ones if there is a last one."""
    steps, high = range(_NEAR), sizes.upper
    first = {sizes.lower + step for step in steps}
    last = {high - step for step in steps} if high.is_Integer else set()
    return {size for size in first | last if sizes.lower <= size <= high}


def _max(a: Any, b: Any) -> Any:
    """Return the number that is larger at all sizes; None if there is none, or if it is not known."""
    return a if _is_never_less(a, b) else b if _is_never_less(b, a) else None


def _min(a: Any, b: Any) -> Any:
    """Return the number that is smaller at all sizes; None if there is none, or if it is not known."""
    return b if _is_never_less(a, b) else a if _is_never_less(b, a) else None


def _is_never_less(a: Any, b: Any) -> bool:
    """Return whether an integer is at least another one, at each size in its range."""
    dynamic = [each for each in (a, b) if isinstance(each, SymInt)]
    if not dynamic or not all(map(_is_known, dynamic)) or not all(type(n) in (int, SymInt) for n in (a, b)):
        return False
    ranges = {
        # torch takes a size that may be 1 for at least 2
        symbol: ValueRanges(1, own.upper) if own.lower == 2 else own
        for symbol, own in dynamic[0].node.shape_env.var_to_range.items()
    }
    first, other = (each.node.expr if isinstance(each, SymInt) else each for each in (a, b))
    return holds(sympy.Ge(first, other), ranges, most=_MOST_COMPARED)


def _is_known(size: int | SymInt) -> bool:
    """Return whether a size is dynamic, and is not decided by data."""
    return isinstance(size, SymInt) and not free_unbacked_symbols(size)


def _by_count(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, int, int]:
    return input, chunks, dim


def _by_size(tensor: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, int, int]:
    """Return the count of parts of a dynamic size; 0 for parts of a fixed size, and of several sizes."""
    if not isinstance(split_size, SymInt):
        return tensor, 0, dim
    return tensor, int(tensor.shape[dim] // split_size), dim


_DIVIDED_BY: Mapping[Any, Callable[..., tuple[Tensor, int, int]]] = MappingProxyType(
    {
        torch.chunk: _by_count,
        Tensor.chunk: _by_count,
        torch.split: _by_size,
        Tensor.split: _by_size,
    }
)

_WRITTEN_IN_OTHERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        torch.linspace: _line,
        torch.tensor: _tensor,
        torch.as_tensor: _tensor,
        torch.max_pool1d: _max_pool(1),
        F.max_pool1d: _max_pool(1),
        torch.max_pool2d: _max_pool(2),
        F.max_pool2d: _max_pool(2),
        F.avg_pool1d: _mean_pool(1),
        F.avg_pool2d: _mean_pool(2),
        F.avg_pool3d: _mean_pool(3),
        torch.cdist: _cdist,
        F.pad: _pad,
        torch.sym_max: _max,
        torch.sym_min: _min,
        torch.take_along_dim: _take_along_dim,
        Tensor.take_along_dim: _take_along_dim,
    }
)
