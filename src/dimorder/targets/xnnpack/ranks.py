"""Remove reshapes of a written graph that only add or drop leading dimensions of 1.

XNNPACK aligns operands at their last dimension, so most readers can read the reshape's operand directly. A
multiplication with a 1 of higher rank adds dimensions. A reshape can derive at most one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as schema

from dimorder.targets.xnnpack.fusion import XnnFusion
from dimorder.targets.xnnpack.graph import XnnValue, reads_of
from dimorder.targets.xnnpack.integers import READS

# Their results have the rank of their operands, and depend only on the last dimensions.
_OF_ANY_RANK = (schema.XNNNode1x1, schema.XNNFullyConnected, schema.XNNLeakyReLU, schema.XNNELU)
_Sizes = list[int]


class XnnRanks(XnnFusion):
    """A graph whose values may have another rank than they were written with."""

    def drop_ones(self) -> None:
        """Let nodes read the operand of such a reshape in place of its result, if all nodes after it can."""
        for node in list(self._nodes):
            made: Any = node.xnode_union
            if not isinstance(made, schema.XNNStaticReshape) or not self._changes_ones(made):
                continue
            found = self._with_dims(made.output_id, list(self._values[made.input_id].dims))
            if found is None:
                continue
            self._write(found)
            kept, gone = made.input_id, made.output_id
            # nothing is left to reshape, so the reshape's operand becomes this output
            if gone in self._outputs:
                kept, gone = gone, kept
                writers = [each.xnode_union for each in self._nodes if each.xnode_union.output_id == gone]
                if not writers or gone in self._outputs:
                    continue
                writers[0].output_id = kept
            self._nodes.remove(node)
            self._read_instead(gone, kept)

    def may_compute_ones(self, reshape: Any) -> bool:
        """Return whether a reshape only adds dimensions of 1, to floats."""
        value = self._values[reshape.input_id]
        more = len(reshape.new_shape) > len(value.dims)
        return more and self._changes_ones(reshape) and self.is_of_float32

    def compute_ones(self, reshape: Any, one: XnnValue) -> None:
        """Write such a reshape as a multiplication with a 1 of that rank, which works at all sizes."""
        (node,) = (node for node in self._nodes if node.xnode_union is reshape)
        node.xnode_union = schema.XNNMultiply(
            input1_id=reshape.input_id, input2_id=one.id, output_id=reshape.output_id, flags=0
        )

    def _read_instead(self, index: int, other: int) -> None:
        """Let all readers of a value read another one."""
        for node in self._readers().get(index, ()):
            for name, held in vars(node).items():
                if name in READS and held == index:
                    setattr(node, name, other)

    def _changes_ones(self, reshape: Any) -> bool:
        return _core(self._values[reshape.input_id].dims) == _core(reshape.new_shape)

    def _with_dims(self, index: int, dims: _Sizes) -> dict[int, _Sizes] | None:
        """Return the new dimensions of all values if one value gets these dimensions.

        None if that is impossible.
        """
        if dims == list(self._values[index].dims):
            return {}
        found, changed, readers = {index: dims}, [index], self._readers()
        while changed:
            index = changed.pop()
            if index in self._outputs:
                return None
            for node in readers.get(index, ()):
                result = self._result(node, found)
                if result is None:
                    return None
                if result != found.get(node.output_id, list(self._values[node.output_id].dims)):
                    found[node.output_id] = result
                    changed.append(node.output_id)
        return found

    def _result(self, node: Any, found: Mapping[int, _Sizes]) -> _Sizes | None:
        """Return the dimensions of a node's result if its operands have the dimensions in `found`."""
        dims, (first, *others) = list(self._values[node.output_id].dims), reads_of(node)
        ranks = [len(found.get(index, self._values[index].dims)) for index in (first, *others)]
        if isinstance(node, schema.XNNStaticReshape):
            return dims
        if isinstance(node, schema.XNNBatchMatrixMultiply) and min(ranks) < 2:
            return None
        if isinstance(node, schema.XNNNode2x1):
            return _of_rank(max(ranks), dims)
        if not found.keys().isdisjoint(others):
            return None
        if isinstance(node, schema.XNNStaticTranspose):
            return None if _turned(node.perm, ranks[0]) is None else _of_rank(ranks[0], dims)
        aligned = isinstance(node, _OF_ANY_RANK) and not isinstance(node, schema.XNNGlobalAvgPooling2d)
        return _of_rank(ranks[0], dims) if aligned else None

    def _write(self, found: Mapping[int, _Sizes]) -> None:
        for index, dims in found.items():
            value = self._values[index]
            value.dims, value.num_dims = dims, len(dims)
            for node in self._readers().get(index, ()):
                if isinstance(node, schema.XNNStaticTranspose):
                    perm = _turned(node.perm, len(dims))
                    assert perm is not None
                    node.perm, node.num_dims = perm, len(perm)


def _core(dims: Sequence[int]) -> _Sizes:
    return list(itertools.dropwhile((1).__eq__, dims))


def _of_rank(rank: int, dims: Sequence[int]) -> _Sizes | None:
    """Return the dimensions with as many leading ones as that rank needs."""
    core = _core(dims)
    return None if len(core) > rank else [1] * (rank - len(core)) + core


def _turned(perm: Sequence[int], rank: int) -> list[int] | None:
    """Return the transpose at another rank that moves the last dimensions in the same way.

    >>> _turned((1, 0), 3), _turned((0, 2, 1), 2), _turned((1, 0, 2), 2)
    ([0, 2, 1], [1, 0], None)
    """
    more = rank - len(perm)
    if more >= 0:
        return [*range(more), *(place + more for place in perm)]
    return [place + more for place in perm[-more:]] if list(perm[:-more]) == list(range(-more)) else None
