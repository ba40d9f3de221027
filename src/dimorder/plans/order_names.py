"""Name the order of a value's axes for people, also where a dimension is cut."""

from __future__ import annotations

import itertools
import string
from collections.abc import Sequence

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.ops.problem_map import BufferInfo

LETTERS = {3: "NCL", 4: "NCHW", 5: "NCDHW"}  # the dimensions of images, by rank
_DIGITS, _SMALL = [str(i) for i in range(64)], string.ascii_lowercase


def order_name(info: BufferInfo, order: Sequence[int], *, is_image: bool | None = None) -> str:
    """Return the name of an order of a buffer's axes.

    It is a dim order if dimensions stay whole, else one letter per axis: `H W C1 C0, where C = 2·58`. The
    axes of a dimension that is cut are numbered from the outermost. Only images have letters. The order of
    any other value is numbers: `(1, 0)`, or `1b 1a 0, where 1 = 3·4`. `is_image` says whether the value is
    one; by default the network's kernels say it.
    """
    shape, owner, sizes = info.shape, info.tensor.dims, info.tensor.sizes
    is_image = _is_image(info) if is_image is None else is_image
    whole = whole_order(info, order)
    if whole is not None:
        whole = whole.canonical(shape)
        return (describe(whole) if is_image else str(whole.dims)) if shape else "scalar"
    dims = [owner[axis] for axis in order]
    letters, pieces = (
        (LETTERS[len(shape)], _DIGITS) if is_image and len(shape) in LETTERS else (_DIGITS, _SMALL)
    )
    cut = {d: axes for d in sorted(set(dims)) if len(axes := [a for a, o in enumerate(owner) if o == d]) > 1}
    names = (
        letters[d] + (pieces[cut[d].index(a)] if d in cut else "") for a, d in zip(order, dims, strict=True)
    )
    cuts = (f"{letters[d]} = {'·'.join(str(sizes[a]) for a in axes)}" for d, axes in cut.items())
    return f"{' '.join(names)}, where {', '.join(cuts)}"


def whole_order(info: BufferInfo, order: Sequence[int]) -> DimOrder | None:
    """Return an order of a buffer's axes as one of its dimensions, or None if a dimension is cut."""
    owner = info.tensor.dims
    dims = [owner[axis] for axis in order]
    runs = [d for i, d in enumerate(dims) if i == 0 or dims[i - 1] != d]
    in_order = all(a < b for a, b in itertools.pairwise(order) if owner[a] == owner[b])
    if not in_order or len(set(runs)) < len(runs):
        return None
    return DimOrder(*(d for d, size in enumerate(info.shape) if size == 1), *runs)


def _is_image(info: BufferInfo) -> bool:
    """Return whether dims are those of images: a batch, channels, and dims along which kernels move."""
    moved_along = {d for d, size in enumerate(info.shape) if d > 1 and size != 1}
    return len(info.shape) in LETTERS and bool(moved_along) and info.tensor.spatial == moved_along
