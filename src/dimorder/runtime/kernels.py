"""List the kernels that a .pte calls, and look up which orders they compute right.

The tables are measured for each version of ExecuTorch, by `dimorder ops --runtime executorch --regenerate`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.errors import UnsupportedError, UsageError

KernelVerdict = Literal["right", "refused", "wrong"]
VERDICTS: tuple[KernelVerdict, ...] = ("right", "refused", "wrong")  # from best to worst
TABLE_VERSION = "1.5.1"
VIEW = "executorch_prim::et_view.default"
_TABLES = Path(__file__).parents[1] / "executorch"

# The letters of a signature: contiguous, channels-last, an order that is the same memory as contiguous
# because of sizes of 1, any other order, and a contiguous tensor of lower rank than the call's highest.
CONTIGUOUS, LAST, SAME, OTHER, LOWER = "CLlXo"
LEGEND = (
    "C contiguous, L channels-last, l an order that sizes of 1 make the same as contiguous, "
    "X another, o fewer dims"
)


def executorch_version() -> str:
    """Return the version of the installed ExecuTorch, without the suffix of a build, such as "+cpu"."""
    return metadata.version("executorch").split("+")[0]


@dataclass(frozen=True)
class KernelTable:
    """Verdicts by backend, operator, rank and signature, for one version of ExecuTorch.

    A signature has a letter per tensor of the call, results last. A list of tensors has one letter per kind
    of order in it. A call that was never probed has no verdict.

    >>> KernelTable.shipped().verdict("portable", "aten::flip.out", 4, "LL")
    'wrong'
    """

    version: str
    rows: Mapping[str, Mapping[str, Mapping[str, KernelVerdict]]]

    @staticmethod
    @functools.cache
    def shipped(version: str = TABLE_VERSION) -> KernelTable:
        """Return the table of a version of ExecuTorch; raises `UnsupportedError` if there is none."""
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
        """Return the verdict of a call; a view, which reads row by row, is right for contiguous tensors."""
        if call.operator == VIEW:
            return "right" if set(call.signature) <= {CONTIGUOUS, LOWER, SAME} else "wrong"
        return self.verdict("portable", call.operator, call.rank, call.signature)

    def to_json(self) -> str:
        """Return the table as JSON with one line per operator: its signatures by verdict."""
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
        """Return the table as text with an entry per operator, wrong verdicts first."""
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
        """Return the table that `to_json` wrote, from its parsed JSON; raises `UsageError` for any other."""
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
        """Return the verdicts in which `other` differs, one line each."""
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
    """One call in a .pte: of an operator's kernel or of a delegate; the name of the other is empty.

    `rank` is the highest rank of the call's tensors, and `signature` has the letters of their orders.
    """

    operator: str
    delegate: str
    rank: int
    signature: str

    @property
    def orders(self) -> str:
        """Return the orders in words, inputs before results.

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
    """Return the letter of a tensor in the signature of a call whose highest rank is `rank`.

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
    """Return the highest rank of (shape, order) pairs, and their letters; a list has each letter once.

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


def instructions(plan: Any) -> Iterator[Any]:
    """Yield the calls of kernels and delegates of a method (executorch.exir.schema.ExecutionPlan)."""
    for chain in plan.chains:
        for instruction in chain.instructions:
            if type(instruction.instr_args).__name__ in ("KernelCall", "DelegateCall"):
                yield instruction.instr_args


def kernel_of(plan: Any, call: Any) -> str:
    """Return the name of the kernel that a call runs, as "aten::add.out"; empty for a delegate's call."""
    if type(call).__name__ != "KernelCall":
        return ""
    operator = plan.operators[call.op_index]
    return f"{operator.name}.{operator.overload}" if operator.overload else str(operator.name)


def kernel_calls(plan: Any) -> list[KernelCall]:
    """Return the calls of a method (executorch.exir.schema.ExecutionPlan), in program order.

    A view that memory planning removed is listed too. It is a tensor that no call writes, in the memory of
    another tensor.
    """
    known = dict.fromkeys(plan.inputs)  # the tensors written so far, the latest last: memory is reused
    calls = []
    for call in instructions(plan):
        kernel = kernel_of(plan, call)
        items = [item for index in call.args for item in tensors_of(plan, index)]
        # A delegate's call does not say which of its tensors it writes: none of them counts as a view.
        written = tensors_of(plan, call.args[-1]) if kernel and call.args else items
        for index in dict.fromkeys(items):
            source = None if index in written else seen_through(plan, index, known)
            if source is not None:
                pairs = [_pair(plan.values[source].val), _pair(plan.values[index].val)]
                calls.append(KernelCall(VIEW, "", *signature(pairs)))
        for index in written:
            known.pop(index, None)
            known[index] = None
        delegate = "" if kernel else plan.delegates[call.delegate_index].id
        calls.append(KernelCall(kernel, delegate, *signature(_operands(plan, call.args))))
    return calls


def dangers(plan: Any, version: str) -> list[KernelCall]:
    """Return the calls that are known to give wrong numbers silently; none if no table is shipped."""
    try:
        table = KernelTable.shipped(version)
    except UnsupportedError:
        return []
    return [call for call in kernel_calls(plan) if table.verdict_of(call) == "wrong"]


def seen_through(plan: Any, index: int, known: Mapping[int, object]) -> int | None:
    """Return the known tensor whose memory an unknown tensor views, or None if it is not a view."""
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
    """Return the number of elements, which a view shares with the tensor that it views."""
    return math.prod(plan.values[index].val.sizes)


def tensors_of(plan: Any, index: int) -> list[int]:
    """Return the tensors that an argument stands for, as indices of values."""
    value = plan.values[index].val
    kind = type(value).__name__
    if kind == "Tensor":
        return [index]
    return [item for item in value.items if item >= 0] if kind in ("TensorList", "OptionalTensorList") else []


def _pair(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(value.sizes), tuple(value.dim_order)


def _operands(plan: Any, args: Sequence[int]) -> list[Any]:
    """Return the (shape, order) of each operand, in lists; a result, which a .pte lists twice, only once."""
    operands, seen = [], set()
    for position, index in enumerate(args):
        items = tensors_of(plan, index)
        if items and not (index in seen and position >= len(args) - len(args) // 2):
            operands.append([_pair(plan.values[item].val) for item in items])
            seen.add(index)
    return operands
