"""Decides what `dimorder check` says: which operators of a program are safe in the orders that they get."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from dimorder.errors import UsageError
from dimorder.program.contract import Contract
from dimorder.runtime.kernels import KernelTable, kernel_calls


@dataclass(frozen=True)
class Row:
    """One operator and the orders that it gets; `verdict` is right, refused, wrong or unknown."""

    operator: str
    orders: str
    verdict: str
    count: int = 1


@dataclass(frozen=True)
class Check:
    """A program's boundaries and operators; `is_safe`: none of them is known to be wrong or refused."""

    contract: Contract | None
    rows: tuple[Row, ...]

    @property
    def is_safe(self) -> bool:
        return all(row.verdict not in ("wrong", "refused") for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "safe": self.is_safe,
            "boundaries": None if self.contract is None else self.contract.to_dict(),
            "operators": [vars(row) for row in self.rows],
        }

    def __str__(self) -> str:
        lines = []
        if self.contract is not None:
            lines.append(str(self.contract))
            last = [spec for spec in self.contract.inputs if not spec.dim_order.is_contiguous]
            others = "contiguous" if last else "any but contiguous"
            lines.append(f"inputs   {others} is misread by ExecuTorch itself, converted by dimorder.load")
        width = max((len(row.operator) for row in self.rows), default=0)
        dangers = [row for row in self.rows if row.verdict in ("wrong", "refused")]
        lines += [f"{row.verdict:8} {row.operator:{width}} {row.orders} x{row.count}" for row in self.rows]
        lines.append(f"verdict  {'safe' if not dangers else f'{len(dangers)} dangers'}")
        return "\n".join(lines)


def check_file(path: str | os.PathLike[str]) -> Check:
    """The static verdict on a .pte; errors as in `dimorder.load`."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    from dimorder.runtime.program import read_contract

    contract = read_contract(path)
    program = deserialize_pte_binary(Path(path).read_bytes()).program
    table = KernelTable.shipped(metadata.version("executorch"))
    counts: dict[Row, int] = {}
    for call in kernel_calls(program):
        verdict = "delegate" if call.delegate else table.verdict_of(call) or "unknown"
        row = Row(call.operator or call.delegate, f"rank {call.rank} {call.signature}", verdict)
        counts[row] = counts.get(row, 0) + 1
    return Check(contract, _sorted(counts))


def check_program(program: ExportedProgram) -> Check:
    """The static verdict on what stock lowering makes of an exported program on portable kernels."""
    from executorch.exir.program._program import _default_decomposition_table

    from dimorder.executorch.legal import faults

    if not isinstance(program, ExportedProgram):
        raise UsageError("check", f"a {type(program).__name__}", "give an exported program or a .pte file")
    decomposed = program.run_decompositions({}).run_decompositions(_default_decomposition_table())
    counts: dict[Row, int] = {}
    for fault in faults(decomposed):
        place = f" at {fault.where}" if fault.where else ""
        row = Row(fault.operator, f"{fault.found}{place}", fault.kind)
        counts[row] = counts.get(row, 0) + 1
    return Check(None, _sorted(counts))


def _sorted(counts: dict[Row, int]) -> tuple[Row, ...]:
    severity = ("wrong", "refused", "unknown", "delegate", "right")
    rows = sorted(counts, key=lambda row: (severity.index(row.verdict), row.operator, row.orders))
    return tuple(Row(row.operator, row.orders, row.verdict, counts[row]) for row in rows)
