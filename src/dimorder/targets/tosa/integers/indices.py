"""Write the operators that read or write elements at indices, on the integers that stand for numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dimorder.physical.integer_functions import rounded_levels
from dimorder.targets.table import Arguments, Row, whole
from dimorder.targets.tosa import indices
from dimorder.targets.tosa.calls import changed
from dimorder.targets.tosa.integers.kernels import gathered, scattered
from dimorder.targets.tosa.integers.lookups import as_integers
from dimorder.targets.tosa.integers.moves import moved
from dimorder.targets.tosa.integers.numbers import IntegerWriter, Lookup, numbers

aten = torch.ops.aten


def _index_put(w: IntegerWriter, a: Arguments) -> Any:
    """Write integers among integers of the same type."""
    values, of = as_integers(w, numbers(w, a.values))
    if isinstance(a.self, Tensor):
        x = w.constant(rounded_levels(a.self.double(), of).to(of.dtype))
    else:
        x, _ = as_integers(w, numbers(w, a.self))
    put = indices.ROWS[aten.index_put.default].build
    return Lookup.dequantize(put(w, changed(a, self=whole(x), values=whole(values))), of)


def _check_index_put(a: Arguments) -> str | None:
    return "numbers added up at places" if a.accumulate else indices.ROWS[aten.index_put.default].check(a)


ROWS: Mapping[Any, Row] = MappingProxyType(
    {
        **{
            target: replace(moved(indices.ROWS[target]), kernel=gathered(name))
            for target, name in (
                (aten.index_select.default, "index"),
                (aten.index.Tensor, "indices"),
                (aten.gather.default, "index"),
            )
        },
        aten.index_put.default: Row(
            _index_put, _check_index_put, kernel=lambda a: scattered(a.self, a.values)
        ),
    }
)
