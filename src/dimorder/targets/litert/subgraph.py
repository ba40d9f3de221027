"""Run one subgraph of LiteRT's interpreter, at one set of sizes after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Subgraph:
    """One subgraph as a function of arrays. Its inputs are resized for a call with other sizes than the last.

    LiteRT's own function of a signature resizes its inputs once, and cannot return an array without elements.

    Args:
        interpreter: what `ai_edge_litert` makes of the file.
        index: the subgraph's place in the file.
        inputs: the places of its inputs, in the sequence in which a call has them.
        outputs: the places of its outputs, likewise.
    """

    def __init__(self, interpreter: Any, index: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self._calls = interpreter._interpreter  # only it takes the index of a subgraph
        self._index, self._inputs, self._outputs = index, inputs, outputs
        self._calls.AllocateTensors(index)
        self._shapes = [tuple(self._calls.TensorSize(each, index)) for each in inputs]

    def __call__(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return copies of the outputs, all dense."""
        shapes = [array.shape for array in arrays]
        if shapes != self._shapes:
            self._resize(shapes)
        for place, array in zip(self._inputs, arrays, strict=True):
            self._calls.SetTensor(place, array, self._index)
        self._calls.Invoke(self._index)
        return [self._output(place) for place in self._outputs]

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        """Allocate the tensors for other sizes of the inputs, three times.

        XNNPACK's delegates share a workspace. While it grows, operators are set up with new sizes and the old
        places of their tensors. XNNPACK leaves out a copy from a place to itself, and goes on to do so at the
        new places (LiteRT 2.3.0). In a workspace that is large enough, nothing is set up too early.
        """
        for each in (shapes, self._shapes, shapes):
            for place, shape in zip(self._inputs, each, strict=True):
                self._calls.ResizeInputTensor(place, np.array(shape, np.int32), False, self._index)
            self._calls.AllocateTensors(self._index)
        self._shapes = shapes

    def _output(self, place: int) -> NDArray[Any]:
        shape = self._calls.TensorSize(place, self._index)
        if not np.all(shape):  # LiteRT reads no tensor without elements
            return np.empty(shape, self._calls.TensorType(place, self._index))
        return np.asarray(self._calls.GetTensor(place, self._index))  # a number has no dimensions
