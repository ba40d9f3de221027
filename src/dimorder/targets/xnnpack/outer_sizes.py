"""Write shapes with dynamic sizes in the forms that delegates and torch.export take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dimorder.contract import Contract
from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import FIX, DynamicSize
from dimorder.sizes.affine import fit_sum
from dimorder.sizes.export_symbolic import dims_of
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.delegate import SizeFormula

aten = torch.ops.aten

SizedShape = tuple[int, ...]


def result_shapes(
    name: str, reads: Sequence[SizedShape], results: Sequence[SizedShape], table: SizeTable
) -> list[list[int | SizeFormula]]:
    """Return the shapes of a delegate's results, by formulas of the sizes of its operands."""
    columns = list(_values([size for shape in reads for size in shape], table.count))
    shapes = []
    for shape in results:
        sizes: list[int | SizeFormula] = []
        for size in shape:
            if not isinstance(size, DynamicSize):
                sizes.append(size)
                continue
            fits = (table.formula, table.quotient, fit_sum)
            found = next((each for fit in fits if (each := fit(size.values, columns)) is not None), None)
            if found is None:
                why = f"results of {shape}, which do not follow from the sizes of its operands"
                raise UnsupportedError(name.replace("_", " "), why, FIX)
            sizes.append(found)
        shapes.append(sizes)
    return shapes


def _values(sizes: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    for size in sizes:
        yield size.values if isinstance(size, DynamicSize) else (size,) * count


def symbols_of(contract: Contract) -> Any:
    """Return the dynamic sizes of a program's inputs, as torch.export wants them."""
    dims = dims_of(contract.symbols)
    return tuple(
        {d: dims[size] for d, size in enumerate(spec.boundary_shape) if isinstance(size, str)}
        for spec in contract.inputs
    )
