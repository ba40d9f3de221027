"""Check a program for `dimorder check`: its accepted orders, its operators, and its conversions.

Operators are judged by the truth table of kernels. Inside XNNPACK delegates transposes are counted,
and operators that misread the order of a value are named.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch.export import ExportedProgram

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import install_of, installed, require_type
from dimorder.executorch.file_conversions import FileConversions, conversions_of
from dimorder.executorch.pte import (
    consistent_tables,
    contract_of,
    forward_plan,
    misread_in_delegates,
    open_file,
)
from dimorder.runtime.kernels import (
    LEGEND,
    KernelCall,
    KernelTable,
    KernelVerdict,
    executorch_version,
    kernel_calls,
)

_CONVERSION_KEYS = ("conversion_count", "bytes", "delegates", "outside")  # null for a network


@dataclass(frozen=True)
class CheckedCall:
    """One operator and the orders that it gets; `verdict` is right, refused, wrong or unknown."""

    operator: str
    orders: str
    verdict: str
    count: int = 1


@dataclass(frozen=True)
class Check:
    """A program's boundary, operators and conversions; None for a network, which is no file.

    >>> found = Check(None, (CheckedCall("aten::flip.out", "rank 4 LL", "wrong"),))
    >>> found.is_safe, found.conversion_count, found.fed, found.to_dict()["safe"]
    (False, None, {}, False)
    """

    contract: Contract | None
    rows: tuple[CheckedCall, ...]
    conversions: FileConversions | None = None

    @property
    def is_safe(self) -> bool:
        """Whether no operator is known to be wrong or refused."""
        return all(row.verdict not in ("wrong", "refused") for row in self.rows)

    @property
    def conversion_count(self) -> int | None:
        """The conversions of a file; None for a network."""
        return None if self.conversions is None else self.conversions.conversion_count

    @property
    def fed(self) -> dict[str, dict[str, KernelVerdict]]:
        """For each input, the orders that it may have, and ExecuTorch's own verdict on each; see `fed`."""
        return {} if self.contract is None else {spec.name: fed(spec) for spec in self.contract.inputs}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder check --json`; the keys are stable."""
        return {
            "format": None if self.contract is None else "pte",
            "safe": self.is_safe,
            "boundaries": None if self.contract is None else self.contract.to_dict(),
            "fed": self.fed,
            "operators": [vars(row) for row in self.rows],
            **(self.conversions.to_dict() if self.conversions else dict.fromkeys(_CONVERSION_KEYS)),
        }

    def __str__(self) -> str:
        lines = ["checked  as ExecuTorch itself would lower the network to its portable kernels"]
        if self.contract is not None:
            lines = [str(self.contract)]
        for name, orders in self.fed.items():
            said = ", ".join(f"{order} {verdict}" for order, verdict in orders.items())
            lines.append(f"fed      {name}: {said}; by dimorder.load: right")
        width = max((len(row.operator) for row in self.rows), default=0)
        dangers = sum(row.count for row in self.rows if row.verdict in ("wrong", "refused"))
        lines += [f"{row.verdict:8} {row.operator:{width}} {row.orders} x{row.count}" for row in self.rows]
        if self.conversions is not None:
            lines += [f"letters  one per tensor, results last: {LEGEND}"] if self.rows else []
            lines.append(str(self.conversions))
        calls = "operator call is" if dangers == 1 else "operator calls are"
        lines.append(f"verdict  {dangers or 'no'} {calls} wrong or refused")
        return "\n".join(lines)


def fed(spec: TensorSpec) -> dict[str, KernelVerdict]:
    """Return ExecuTorch's own verdict on an input in each order; `dimorder.load` would convert the input.

    >>> fed(TensorSpec("x", (2, 3, 5, 7), "float32", DimOrder(0, 1, 2, 3)))
    {'NCHW (0, 1, 2, 3)': 'right', 'NHWC (0, 2, 3, 1)': 'wrong'}
    >>> fed(TensorSpec("x", (2, 3, 7), "float32", DimOrder(0, 1, 2)))
    {'NCL (0, 1, 2)': 'right', 'NLC (0, 2, 1)': 'refused'}
    """
    rank = len(spec.shape)
    orders = [DimOrder.contiguous(rank), *([DimOrder.channels_last(rank)] if rank > 2 else [])]
    found: dict[str, KernelVerdict] = {}
    for order in orders:
        right = order.equivalent(spec.dim_order, spec.shape)
        taken = {spec.boundary, replace(spec, dim_order=order, boundary=None).boundary} == {"logical"}
        found[describe(order)] = ("right" if right else "wrong") if taken else "refused"
    return found


def check_file(path: str | os.PathLike[str]) -> Check:
    """Check a .pte without running it.

    Args:
        path: a .pte of any tool.

    Returns:
        Its contract, the verdict on each operator, and its conversions.

    Raises:
        UsageError, ContractError, UnsupportedError: as in `dimorder.load`.

    >>> import pathlib, tempfile, torch
    >>> from executorch.exir import to_edge
    >>> program = to_edge(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3, 5),))).to_executorch()
    >>> path = pathlib.Path(tempfile.mkdtemp(), "relu.pte")
    >>> _ = path.write_bytes(program.buffer)
    >>> print(check_file(path))
    input   input0   2 x 3 x 5  float32  NCL (0, 1, 2)
    output  output0  2 x 3 x 5  float32  NCL (0, 1, 2)
    fed      input0: NCL (0, 1, 2) right, NLC (0, 2, 1) refused; by dimorder.load: right
    right    aten::relu.out rank 3 CC x1
    letters  one per tensor, results last: C contiguous, L channels-last, l an order that sizes of 1 make \
the same as contiguous, X another, o fewer dims
    conversions  none
    verdict  no operator calls are wrong or refused
    """
    file, _, tables = open_file(path)
    where, contract = f"loading {path}", contract_of(file, tables)
    verdicts = KernelTable.shipped(executorch_version())
    with consistent_tables(where):
        plan = forward_plan(tables, where)
        calls, inside = kernel_calls(plan), misread_in_delegates(tables, plan, where)
    rows = [CheckedCall(call.operator, _orders(call), verdict) for call, verdict in inside]
    for call in calls:
        verdict = "delegate" if call.delegate else verdicts.verdict_of(call) or "unknown"
        rows.append(CheckedCall(call.operator or call.delegate, _orders(call), verdict))
    return Check(contract, _count_calls(rows), conversions_of(tables, where))


def _orders(call: KernelCall) -> str:
    return f"rank {call.rank} {call.signature}"


def check_program(program: ExportedProgram) -> Check:
    """Check the portable kernels that stock lowering makes of an exported program, without running it.

    Args:
        program: an exported program.

    Returns:
        The verdict on each operator, without a contract or conversions.

    Raises:
        UsageError: if `program` is not an exported program.
        UnsupportedError: if ExecuTorch is not installed.

    >>> import torch
    >>> x = torch.ones(1, 3, 5, 7).to(memory_format=torch.channels_last)
    >>> found = check_program(torch.export.export(torch.nn.Softmax(1), (x,)))
    >>> found.is_safe, [(row.operator, row.verdict) for row in found.rows]
    (False, [('_softmax', 'refused')])
    """
    require_type(program, ExportedProgram, "check", "give an exported program or a .pte file")
    with installed("checking an exported program", install_of("executorch")):
        from executorch.exir.program._program import _default_decomposition_table

        from dimorder.executorch.rules import faults

    decomposed = program.run_decompositions({}).run_decompositions(_default_decomposition_table())
    rows = []
    for fault in faults(decomposed):
        place = f" at {fault.where}" if fault.where else ""
        rows.append(CheckedCall(fault.operator, f"{fault.found}{place}", fault.kind))
    return Check(None, _count_calls(rows))


def _count_calls(calls: Iterable[CheckedCall]) -> tuple[CheckedCall, ...]:
    counts = Counter(calls)
    severity = ("wrong", "refused", "unknown", "delegate", "right")
    rows = sorted(counts, key=lambda row: (severity.index(row.verdict), row.operator, row.orders))
    return tuple(replace(row, count=counts[row]) for row in rows)
