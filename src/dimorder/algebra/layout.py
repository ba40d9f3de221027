"""Define blocked layouts, such as nChw16c: a dim order with pieces of some dims moved to the inside."""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import UsageError, as_int, require_type

_DIMS = "gnoicdhwl"  # of activations and of weights, each in logical order
_TAG = re.compile(r"(?P<outer>[a-zA-Z]*)(?P<inner>(\d+[a-z])*)")


@dataclass(frozen=True)
class Layout:
    """A dim order and `blocks`, which lie inside all its dims.

    Each blocked dim is padded with zeros to a multiple of its blocks and cut into them. The pieces make a
    dense row-major tensor of `physical_shape`. These are the blocked formats of oneDNN, with its tags.

    Args:
        order: the order of the dims, slowest first.
        blocks: pairs of a dim and a block size of 2 or more, slowest first.

    Raises:
        UsageError: if the order is no `DimOrder`, or if a block is along a dim that does not exist or is
            smaller than 2.

    >>> layout = Layout.parse("nChw16c", 4)
    >>> layout
    Layout(order=DimOrder(0, 1, 2, 3), blocks=((1, 16),))
    >>> layout.physical_shape((2, 35, 5, 7))
    (2, 3, 5, 7, 16)
    """

    order: DimOrder
    blocks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.order, DimOrder):
            raise UsageError(
                "a layout",
                f"the order {self.order!r}, no DimOrder",
                "write Layout(DimOrder(0, 2, 3, 1)), or Layout.parse('nChw16c', 4)",
            )
        fix = "give each block as a pair of a dim and a size: ((1, 16),)"
        require_type(self.blocks, (tuple, list), "the blocks of a layout", fix)
        for block in self.blocks:
            if not isinstance(block, (tuple, list)) or [type(each) for each in block] != [int, int]:
                raise UsageError("the blocks of a layout", f"{block!r:.60}", fix)
        for dim, size in self.blocks:
            if dim not in range(len(self.order)) or size < 2:
                raise UsageError(
                    f"a layout of {len(self.order)} dims",
                    f"a block of {size} along dim {dim}",
                    f"block dims 0 to {len(self.order) - 1}, by 2 or more",
                )

    @staticmethod
    def parse(tag: str, rank: int) -> Layout:
        """Return the layout that a oneDNN tag means for `rank` dims.

        Args:
            tag: the dims as letters: N, C, D, H, W, L, or O, I, … for a weight, or a, b, c. A dim that is cut
                is a capital. Its blocks follow: nChw16c.
            rank: the number of dimensions.

        Raises:
            UsageError: if the tag means no layout of that rank.

        >>> Layout.parse("OIhw4i16o4i", 4) == Layout.parse("ABcd4b16a4b", 4)
        True
        """
        rank = as_int(rank, f"layout {tag!r:.60}", "give the number of dims as the second argument")
        match = _TAG.fullmatch(tag) if isinstance(tag, str) else None
        outer, inner = match.group("outer", "inner") if match else ("", "")
        letters = outer.lower()
        alphabet = string.ascii_lowercase[:rank] if "a" in letters else _DIMS
        blocks = [(letter, int(size)) for size, letter in re.findall(r"(\d+)([a-z])", inner)]
        cut = {letter.lower() for letter in outer if letter.isupper()}
        known = set(letters) <= set(alphabet) and len(set(letters)) == len(letters) == rank
        if not known or cut != {letter for letter, _ in blocks}:
            raise UsageError(
                f"layout {tag!r}",
                f"no layout of {rank} dims",
                "write a dim that is cut as a capital, and its blocks behind: nChw16c, OIhw16i16o, aBcd8b",
            )
        logical = sorted(letters, key=alphabet.index)
        return Layout(
            DimOrder(*map(logical.index, letters)),
            tuple((logical.index(letter), size) for letter, size in blocks),
        )

    def physical_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes of the physical tensor, slowest first: the cut dims, rounded up, then the blocks.

        >>> Layout.parse("OIhw4i16o4i", 4).physical_shape((40, 33, 3, 5))
        (3, 3, 3, 5, 4, 16, 4)
        """
        outer = [-(-size // self._block(dim)) for dim, size in enumerate(shape)]
        return *self.order.apply(outer), *(size for _, size in self.blocks)

    def padded_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the logical sizes, each rounded up to a multiple of its blocks.

        >>> Layout.parse("nChw16c", 4).padded_shape((2, 35, 5, 7))
        (2, 48, 5, 7)
        """
        return tuple(-(-size // self._block(dim)) * self._block(dim) for dim, size in enumerate(shape))

    def split_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes of all pieces in logical order: each dim's outer piece, then its blocks.

        A padded tensor viewed in this shape, and permuted by `pieces`, has the physical shape.

        >>> Layout.parse("nChw16c", 4).split_shape((2, 35, 5, 7))
        (2, 3, 16, 5, 7)
        """
        return self.pieces.inverse.apply(self.physical_shape(shape))

    @property
    def pieces(self) -> DimOrder:
        """Return the order in which the pieces of `split_shape` lie in memory.

        >>> Layout.parse("nChw16c", 4).pieces
        DimOrder(0, 1, 3, 4, 2)
        """
        physical = [*self.order, *(dim for dim, _ in self.blocks)]
        # A stable sort: the blocks of a dim follow it as they do in memory.
        return DimOrder(*sorted(range(len(physical)), key=physical.__getitem__)).inverse

    def offset(self, index: Sequence[int], shape: Sequence[int]) -> int:
        """Return the offset of a logical index in the physical tensor, in elements from the start.

        >>> Layout.parse("nChw16c", 4).offset((0, 17, 0, 1), (2, 35, 5, 7))
        577
        """
        split = self.split_shape(shape)
        flat = DimOrder.contiguous(len(index)).offset(index, self.padded_shape(shape))
        steps = DimOrder.contiguous(len(split)).strides(split)
        places = [flat // step % size for step, size in zip(steps, split, strict=True)]
        return self.pieces.offset(places, split)

    def __str__(self) -> str:
        """Return the tag, with the dims named a, b, c, …"""
        letters = string.ascii_lowercase
        cut = {dim for dim, _ in self.blocks}
        outer = (letters[dim].upper() if dim in cut else letters[dim] for dim in self.order)
        return "".join(itertools.chain(outer, (f"{size}{letters[dim]}" for dim, size in self.blocks)))

    def _block(self, dim: int) -> int:
        return math.prod(size for blocked, size in self.blocks if blocked == dim)
