"""Name the order of a value's axes for people, also where a dimension is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.ops.problem_map import BufferInfo

_LETTERS = {3: "NCL", 4: "NCHW", 5: "NCDHW"}


def order_name(info: BufferInfo, order: Sequence[int]) -> str:
    """Return the name of an order of a buffer's axes.

    It is a dim order if dimensions stay whole, else one letter per axis. The axes of a dimension that is cut
    are numbered from the outermost: `H W C1 C0, where C = 2·58`.
    """
    shape, owner, sizes = info.shape, info.tensor.dims, info.tensor.sizes
    dims = [owner[axis] for axis in order]
    runs = [d for i, d in enumerate(dims) if i == 0 or dims[i - 1] != d]
    in_order = all(a < b for a, b in itertools.pairwise(order) if owner[a] == owner[b])
    if in_order and len(runs) == len(set(runs)):
        ones = [d for d, size in enumerate(shape) if size == 1]
        return describe(DimOrder(*ones, *runs).canonical(shape)) if shape else "scalar"
    letters = _LETTERS.get(len(shape)) or [f"d{d}_" for d in range(len(shape))]
    pieces = {d: [axis for axis in range(len(owner)) if owner[axis] == d] for d in sorted(set(dims))}
    axes = (
        f"{letters[owner[a]]}{pieces[owner[a]].index(a) if len(pieces[owner[a]]) > 1 else ''}" for a in order
    )
    cuts = (
        f"{letters[d]} = {'·'.join(str(sizes[axis]) for axis in axes_)}"
        for d, axes_ in pieces.items()
        if len(axes_) > 1
    )
    return f"{' '.join(axes)}, where {', '.join(cuts)}"
