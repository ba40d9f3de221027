"""Decides which orders ExecuTorch's kernels are trusted with: what a .pte calls, and the table of verdicts.

The table is measured (`dimorder ops --runtime executorch --regenerate`) and shipped per ExecuTorch version.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import describe
from dimorder.errors import UnsupportedError, UsageError

KernelVerdict = Literal["right", "refused", "wrong"]
VERDICTS: tuple[KernelVerdict, ...] = ("right", "refused", "wrong")  # from best to worst
TABLE_VERSION = "1.5.1"
VIEW = "executorch_prim::et_view.default"
_TABLES = Path(__file__).parents[1] / "executorch"

# The letters of a signature: contiguous, channels-last, an order that sizes of 1 make the same memory as
# contiguous, any other order, and a contiguous tensor of lower rank than the call's highest.
CONTIGUOUS, LAST, SAME, OTHER, LOWER = "CLlXo"
LEGEND = (
    "C contiguous, L channels-last, l an order that sizes of 1 make the same as contiguous, "
    "X another, o fewer dims"
)


@dataclass(frozen=True)
class KernelTable:
    """Verdicts by backend, operator, rank and signature, for one version of ExecuTorch.

    A signature has a letter per tensor of the call, results last; a list of tensors has one letter per
    kind in it. What was never probed has no verdict.

    >>> KernelTable.shipped().verdict("portable", "aten::flip.out", 4, "LL")
    'wrong'
    """

    version: str
    rows: Mapping[str, Mapping[str, Mapping[str, KernelVerdict]]]

    @staticmethod
    @functools.cache
    def shipped(version: str = TABLE_VERSION) -> KernelTable:
        """The table of a version; raises `UnsupportedError` where none is shipped for it."""
        path = _TABLES / f"kernels-{version}.json"
        if not path.exists():
            raise UnsupportedError(
                f"the kernels of ExecuTorch {version}",
                "no table for this version",
                "dimorder ops --runtime executorch --regenerate",
            )
        return KernelTable.from_json(path.read_text())

    def verdict(self, backend: str, operator: str, rank: int, signature: str) -> KernelVerdict | None:
        return self.rows.get(backend, {}).get(operator, {}).get(f"{rank} {signature}")

    def verdict_of(self, call: KernelCall) -> KernelVerdict | None:
        """The verdict of a call of a kernel. A view reads memory row by row: right for contiguous alone."""
        if call.operator == VIEW:
            return "right" if set(call.signature) <= {CONTIGUOUS, LOWER, SAME} else "wrong"
        return self.verdict("portable", call.operator, call.rank, call.signature)

    def accepts(self, backend: str, operator: str, rank: int, signature: str) -> bool:
        """Whether the operator was seen to be right for these orders."""
        return self.verdict(backend, operator, rank, signature) == "right"

    def to_json(self) -> str:
        """One line per operator: its signatures by verdict."""
        lines = []
        for backend in sorted(self.rows):
            operators = []
            for operator, found in sorted(self.rows[backend].items()):
                by_verdict = {v: " | ".join(sorted(k for k in found if found[k] == v)) for v in VERDICTS}
                kept = json.dumps({v: keys for v, keys in by_verdict.items() if keys})
                operators.append(f"    {json.dumps(operator)}: {kept}")
            lines.append(f"  {json.dumps(backend)}: {{\n" + ",\n".join(operators) + "\n  }")
        version = f'  "executorch": {json.dumps(self.version)},\n'
        return "{\n" + version + ",\n".join(lines) + "\n}\n"

    def __str__(self) -> str:
        """A line per operator, what is wrong first."""
        lines = []
        for backend, operators in sorted(self.rows.items()):
            for operator, found in sorted(operators.items()):
                cells = [
                    f"{verdict}: {', '.join(sorted(key for key in found if found[key] == verdict))}"
                    for verdict in reversed(VERDICTS)
                    if verdict in found.values()
                ]
                lines.append(f"{backend:8}  {operator}\n    " + "\n    ".join(cells))
        return "\n".join(
            [*lines, f"ExecuTorch {self.version}. Rank, then a letter per tensor, results last: {LEGEND}"]
        )

    @staticmethod
    def from_json(text: str) -> KernelTable:
        return KernelTable.from_dict(json.loads(text))

    @staticmethod
    def from_dict(data: Any) -> KernelTable:
        """The table that `to_json` wrote, read as JSON; raises `UsageError` for anything else."""
        try:
            version = str(data["executorch"])
            rows = {
                backend: {
                    operator: {
                        key: VERDICTS[VERDICTS.index(verdict)]
                        for verdict, keys in found.items()
                        for key in keys.split(" | ")
                    }
                    for operator, found in operators.items()
                }
                for backend, operators in data.items()
                if backend != "executorch"
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UsageError(
                "a table of kernels",
                f"other JSON ({type(error).__name__}: {error})",
                "give a file that `dimorder ops --runtime executorch --json` wrote",
            ) from error
        return KernelTable(version, MappingProxyType(rows))

    def differences(self, other: KernelTable) -> list[str]:
        """What `other` says differently, a line each."""
        lines = []
        for backend in sorted({*self.rows, *other.rows}):
            mine, theirs = self.rows.get(backend, {}), other.rows.get(backend, {})
            for operator in sorted({*mine, *theirs}):
                a, b = mine.get(operator, {}), theirs.get(operator, {})
                lines += [
                    f"{backend} {operator} rank {key}: {a.get(key, 'unknown')} -> {b.get(key, 'unknown')}"
                    for key in sorted({*a, *b})
                    if a.get(key) != b.get(key)
                ]
        return lines


@dataclass(frozen=True)
class KernelCall:
    """One call in a .pte: an operator's kernel, or a delegate (`delegate` names it, `operator` is empty).

    `rank` is the highest of its tensors, `signature` their orders.
    """

    operator: str
    delegate: str
    rank: int
    signature: str

    @property
    def orders(self) -> str:
        """The orders in words, inputs before results.

        >>> KernelCall("aten::cat.out", "", 4, "LL").orders
        'NHWC (0, 2, 3, 1), NHWC (0, 2, 3, 1)'
        """
        words = {
            CONTIGUOUS: describe(DimOrder.contiguous(self.rank)),
            LAST: describe(DimOrder.channels_last(self.rank)),
            SAME: "an order of size-1 dims",
            OTHER: "another order",
            LOWER: "fewer dims",
        }
        return ", ".join(words[one] for one in self.signature)

    def __str__(self) -> str:
        return f"{self.operator or self.delegate} (rank {self.rank}, {self.signature})"


def letter(shape: Sequence[int], order: Sequence[int], rank: int) -> str:
    """The letter of a tensor in the signature of a call whose highest rank is `rank`.

    >>> letter((2, 3, 5, 7), (0, 2, 3, 1), 4), letter((2, 1, 5, 7), (0, 2, 3, 1), 4), letter((7,), (0,), 4)
    ('L', 'l', 'o')
    """
    given = DimOrder(*order)
    if given.is_contiguous:
        return CONTIGUOUS if len(shape) == rank else LOWER
    if len(shape) < rank:
        return OTHER
    if given.equivalent(DimOrder.contiguous(len(shape)), shape):
        return SAME
    return LAST if given == DimOrder.channels_last(len(shape)) else OTHER


def signature(operands: Iterable[Any]) -> tuple[int, str]:
    """The highest rank of (shape, order) pairs, and their letters; of a list of pairs, each letter once.

    >>> x, y = ((2, 3, 5, 7), (0, 2, 3, 1)), ((2, 3, 5, 7), (0, 1, 2, 3))
    >>> signature([x, y]), signature([[x, x, y], x])
    ((4, 'LC'), (4, 'CLL'))
    """
    operands = list(operands)
    flat = [pair for operand in operands for pair in (operand if isinstance(operand, list) else [operand])]
    rank = max((len(shape) for shape, _ in flat), default=0)
    letters = []
    for operand in operands:
        pairs = operand if isinstance(operand, list) else [operand]
        letters.append("".join(sorted({letter(shape, order, rank) for shape, order in pairs})))
    return rank, "".join(letters)


def kernel_calls(program: Any, method: str = "forward") -> list[KernelCall]:
    """The calls of one method of a deserialised .pte (executorch.exir.schema.Program), in program order.

    A view that memory planning has made vanish is listed too: the tensor that nobody writes, in the memory of
    another one.
    """
    plan = next(plan for plan in program.execution_plan if plan.name == method)
    known = dict.fromkeys(plan.inputs)  # the tensors written so far, the latest last: memory is used again
    calls = []
    for chain in plan.chains:
        for instruction in chain.instructions:
            call = instruction.instr_args
            kind = type(call).__name__
            if kind not in ("KernelCall", "DelegateCall"):
                continue
            items = [item for index in call.args for item in _items(plan, index)]
            # A delegate's call does not say which of its tensors it writes: none of them is taken for a view.
            written = _items(plan, call.args[-1]) if kind == "KernelCall" and call.args else items
            for index in dict.fromkeys(items):
                source = None if index in written else _seen_through(plan, index, known)
                if source is not None:
                    pairs = [_pair(plan.values[source].val), _pair(plan.values[index].val)]
                    calls.append(KernelCall(VIEW, "", *signature(pairs)))
            for index in written:
                known.pop(index, None)
                known[index] = None
            if kind == "KernelCall":
                operator = plan.operators[call.op_index]
                name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
                calls.append(KernelCall(name, "", *signature(_tensors(plan, call.args))))
            else:
                delegate = plan.delegates[call.delegate_index].id
                calls.append(KernelCall("", delegate, *signature(_tensors(plan, call.args))))
    return calls


def dangers(program: Any, version: str, method: str = "forward") -> list[KernelCall]:
    """The calls of a .pte that are known to give wrong numbers, silently, for the orders they get.

    Empty where no table is shipped for the version of ExecuTorch.
    """
    try:
        table = KernelTable.shipped(version)
    except UnsupportedError:
        return []
    return [call for call in kernel_calls(program, method) if table.verdict_of(call) == "wrong"]


def _seen_through(plan: Any, index: int, known: Mapping[int, None]) -> int | None:
    """The known tensor whose memory an unknown one is a view of; None where it is no view."""
    place = _place(plan.values[index].val)
    if index in known or place is None:
        return None
    found = (one for one in reversed(list(known)) if _place(plan.values[one].val) == place)
    return next((one for one in found if _count(plan, one) == _count(plan, index)), None)


def _place(value: Any) -> tuple[int, int, int] | None:
    info = getattr(value, "allocation_info", None)
    if info is None or type(value).__name__ != "Tensor":
        return None
    return info.memory_id, info.memory_offset_low, info.memory_offset_high


def _count(plan: Any, index: int) -> int:
    """The number of elements: views have as many as what they view."""
    return math.prod(plan.values[index].val.sizes)


def _items(plan: Any, index: int) -> list[int]:
    """The tensors that an argument stands for, as indices of values."""
    value = plan.values[index].val
    kind = type(value).__name__
    if kind == "Tensor":
        return [index]
    return [item for item in value.items if item >= 0] if kind in ("TensorList", "OptionalTensorList") else []


def _pair(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(value.sizes), tuple(value.dim_order)


def _tensors(plan: Any, args: Sequence[int]) -> list[Any]:
    """The tensors among a call's arguments as (shape, order). A result is listed twice there: kept once."""
    found: list[Any] = []
    seen = set()
    for position, index in enumerate(args):
        value = plan.values[index].val
        if index in seen and position >= len(args) - len(args) // 2:
            continue
        kind = type(value).__name__
        if kind == "Tensor":
            found.append(_pair(value))
            seen.add(index)
        elif kind in ("TensorList", "OptionalTensorList"):
            items = [plan.values[item].val for item in value.items if item >= 0]
            found.append([_pair(item) for item in items])
            seen.add(index)
    return found
