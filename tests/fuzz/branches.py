"""List the operators of random networks that choose one of two branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tests.fuzz.rows import Draw, Drawn, Operator


def choose(
    holds: Tensor, yes: Callable[..., Tensor], no: Callable[..., Tensor], operands: Sequence[Tensor]
) -> Tensor:
    """torch.cond; in eager one branch is run as it is, and both must fit, which torch.cond finds out late."""
    if torch.compiler.is_exporting():
        found: Tensor = torch.cond(holds, yes, no, tuple(operands))
        return found
    results = [branch(*operands) for branch in (yes, no)]
    places = {operand.untyped_storage().data_ptr() for operand in operands}
    if results[0].shape != results[1].shape or results[0].dtype != results[1].dtype:
        raise ValueError("the branches give different tensors")
    if any(result.untyped_storage().data_ptr() in places for result in results):
        raise ValueError("a branch gives an operand")
    if not all(bool(torch.isfinite(result).all()) for result in results):
        raise ValueError("a branch gives no finite numbers")
    return results[0] if holds else results[1]


def cond(families: Sequence[Mapping[str, Operator]]) -> Operator:
    """A condition whose branches are one operator or two of these families."""

    def draw(d: Draw) -> Drawn | None:
        reads, branches = [d.x], []
        for _ in range(2):
            found = _branch(d, families, reads)
            if found is None:
                return None
            branches.append(found)
        names = ", ".join(f"a{i}" for i in range(len(reads)))
        operands = ", ".join(f"{{{i}}}" for i in range(len(reads)))
        return reads, {
            "holds": d.rng.choice(["mean() > 0.01", "sum() < 0.1", "amax() > 1.5", "flatten()[0] > 0"]),
            "names": names,
            "yes": branches[0],
            "no": branches[1],
            "operands": operands,
        }

    source = "choose({0}.{holds}, lambda {names}: {yes}, lambda {names}: {no}, ({operands},))"
    return Operator(source, draw)


def _branch(d: Draw, families: Sequence[Mapping[str, Operator]], reads: list[str]) -> str | None:
    """The source of a branch, which names the i-th operand `ai`; operands are added to `reads`."""
    family = d.rng.choice(families)
    fitting = [row for row in family.values() if d.rank in row.ranks]
    row = d.rng.choice(fitting) if fitting else None
    drawn = row.draw(d) if row else None
    if row is None or drawn is None:
        return None
    for read in drawn[0]:
        if read != "None" and read not in reads:
            reads.append(read)
    named = [read if read == "None" else f"a{reads.index(read)}" for read in drawn[0]]
    return row.source.format(*named, **drawn[1])
