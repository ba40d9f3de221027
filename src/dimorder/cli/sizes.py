"""Read letters in the shapes of --input as dynamic sizes, with their ranges."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dimorder.cli import models
from dimorder.errors import UsageError

if TYPE_CHECKING:
    from dimorder.contract import Symbol

BATCH = (1, 16)  # the default range for the first dimension of an input
_MOST = 2**31 - 1  # files have sizes of 32 bits
_RANGE = re.compile(r"(?P<name>[A-Z])=(?P<minimum>\d+)\.\.(?P<maximum>\d+)(?::(?P<step>\d+))?")


def parse_range(text: str) -> Symbol:
    """Parse one `--range LETTER=FROM..TO[:STEP]`.

    >>> print(parse_range("N=1..16"), parse_range("H=64..256:32"), sep="; ")
    N = 1 … 16; H = 64 … 256 in steps of 32
    """
    from dimorder.contract import Symbol

    where, match = f"--range {text}", _RANGE.fullmatch(text)
    if match is None:
        raise UsageError(where, "no range", "write N=1..16, or H=64..256:32 for multiples of 32")
    least, most, step = (int(match[end] or 1) for end in ("minimum", "maximum", "step"))
    if step == 0:
        raise UsageError(where, "a step of 0", "give a step of 1 or more, or leave it out")
    if least > most:
        raise UsageError(where, f"{most} is less than {least}", "write the least size first")
    if most > _MOST:
        raise UsageError(where, f"a size of {most}", f"give {_MOST} at most")
    if least == most:
        raise UsageError(where, "one size alone", f"write {most or 'a size from 1 on'} in --input")
    if least == 0:
        raise UsageError(where, "a size of 0", f"begin at {step}")
    try:
        return Symbol(match["name"], least, most, step)
    except UsageError as error:
        raise UsageError(where, error.found, error.fix) from error


def parse_size(text: str) -> tuple[str, int]:
    """Parse one `--cost-at LETTER=SIZE`.

    >>> parse_size("N=8")
    ('N', 8)
    """
    name, _, size = text.partition("=")
    if not name.isidentifier() or not size.isdecimal():
        raise UsageError(f"--cost-at {text}", "no value of a dynamic size", "write N=8")
    return name, int(size)


def symbols(inputs: Sequence[models.InputOption], ranges: Sequence[Symbol]) -> dict[str, Symbol]:
    """Return the dynamic sizes in the shapes of inputs, by letter; a first dimension may be 1 to 16.

    >>> print(*symbols([models.InputOption.parse("Nx3x224x224")], []).values())
    N = 1 … 16
    """
    from dimorder.contract import Symbol

    known = {symbol.name: symbol for symbol in ranges}
    found: dict[str, Symbol] = {}
    for option in inputs:
        for dim, size in enumerate(option.shape):
            if isinstance(size, int):
                continue
            if size not in known and dim:
                fix = f"give --range {size}=64..256, or {size}=64..256:32 for multiples of 32"
                raise UsageError(f"--input {option}", f"the dynamic size {size}, without a range", fix)
            found[size] = known.get(size, Symbol(size, *BATCH))
    unused = sorted(set(known) - set(found))
    if unused:
        fix = f"write the letter there, as in {unused[0]}x3x224x224"
        raise UsageError(f"--range {unused[0]}=…", "a dynamic size that is in no --input", fix)
    return found


def example_sizes(known: Mapping[str, Symbol]) -> dict[str, int]:
    """Return twice the least size of each letter, to export with: torch fixes a size that is 1 anywhere.

    >>> example_sizes({"N": parse_range("N=1..16"), "H": parse_range("H=7..9"), "W": parse_range("W=3..64")})
    {'N': 2, 'H': 9, 'W': 6}
    """
    sizes = {}
    for symbol in known.values():
        assert symbol.maximum is not None
        sizes[symbol.name] = min(symbol.maximum, 2 * max(symbol.minimum, symbol.step))
    return sizes


def points(known: Mapping[str, Symbol]) -> list[tuple[int, ...]]:
    """Return all sizes of the letters; none if they are more than a command lowers one by one.

    >>> points({"H": parse_range("H=8..16:8"), "W": parse_range("W=3..4")})
    [(8, 3), (8, 4), (16, 3), (16, 4)]
    """
    from dimorder.pipeline.source import MOST_GRAPHS
    from dimorder.sizes.range_sizes import combinations, sizes_of

    found = combinations([sizes_of(each) for each in known.values()])
    few = list(itertools.islice(found, MOST_GRAPHS + 1))
    return few if len(few) <= MOST_GRAPHS else []


def dynamic_shapes(
    model: models.Model,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    inputs: Sequence[models.InputOption],
    known: Mapping[str, Symbol],
) -> Any:
    """Return the dynamic sizes of a call's tensors as torch.export wants them; None if there are none."""
    if not known:
        return None
    import torch
    from torch.utils import _pytree as pytree

    from dimorder.sizes.export_symbolic import dims_of

    dims = dims_of(known.values())
    positional_first = sorted(inputs, key=lambda option: option.name is not None)
    dims_of_tensor = {
        id(tensor): {d: dims[size] for d, size in enumerate(option.shape) if isinstance(size, str)}
        for tensor, option in zip([*args, *kwargs.values()], positional_first, strict=True)
    }
    bound = inspect.signature(models.runnable(model).forward).bind(*args, **kwargs).arguments

    return pytree.tree_map_only(torch.Tensor, lambda tensor: dims_of_tensor[id(tensor)], bound)
