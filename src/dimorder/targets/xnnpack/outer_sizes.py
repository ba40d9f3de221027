"""Write shapes with dynamic sizes in the form that delegates take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dimorder.errors import UnsupportedError
from dimorder.graph.dynamic_sizes import FIX, DynamicSize
from dimorder.sizes.affine import fit_sum
from dimorder.sizes.size_table import SizeTable
from dimorder.targets.delegate import SizeFormula

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
