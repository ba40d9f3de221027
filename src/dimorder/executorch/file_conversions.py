"""Count the layout conversions in a .pte of any tool, and the bytes that they move.

In XNNPACK delegates, conversions are transposes. Outside, they are permutes, and copies into another order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from dimorder.executorch.pte import consistent_tables, forward_plan, read_tables
from dimorder.executorch.xnn_blob import BACKEND_ID, delegate_blob, moves, read_xnn_blob
from dimorder.runtime.kernels import instructions, kernel_of

# Kernels, by name without namespace and overload. A permute is always a conversion. A copy is one if the
# order changes. The number is the position of its source among the arguments.
_PERMUTES = frozenset({"permute_copy", "permute", "transpose_copy", "transpose", "t_copy"})
_COPIES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("_to_dim_order_copy", "_clone_dim_order", "_to_copy", "clone", "contiguous"), 0),
        **dict.fromkeys(("alias_copy", "detach_copy", "lift_fresh_copy"), 0),
        **dict.fromkeys(("copy", "copy_"), 1),
    }
)

# Bytes of an element, by ExecuTorch's name of its type.
_SIZES: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "BYTE", "CHAR", "QINT8", "QUINT8"), 1),
        **dict.fromkeys(("FLOAT8E5M2", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT8E4M3FNUZ"), 1),
        **dict.fromkeys(("SHORT", "UINT16", "BITS16", "HALF", "BFLOAT16"), 2),
        **dict.fromkeys(("INT", "UINT32", "QINT32", "FLOAT", "COMPLEX32"), 4),
        **dict.fromkeys(("LONG", "UINT64", "DOUBLE", "COMPLEX64"), 8),
        "COMPLEX128": 16,
    }
)


@dataclass(frozen=True)
class DelegateConversions:
    """One call of a delegate; None for a backend other than XNNPACK, whose format is unknown here."""

    backend: str
    nodes: int | None = None
    transposes: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class OutsideConversions:
    """The conversions of one operator outside the delegates."""

    operator: str
    count: int
    bytes: int


@dataclass(frozen=True)
class FileConversions:
    """The layout conversions in a .pte, all of which one run of its method makes.

    Attributes:
        delegates: The conversions inside each delegate.
        outside: The conversions of each operator outside the delegates.
        bytes: The size of the tensors that they move, each counted once. A conversion that only moves
            dimensions of 1 counts nothing.

    >>> other = DelegateConversions("VulkanBackend")
    >>> found = FileConversions((other,), (OutsideConversions("aten::permute_copy.out", 2, 840),))
    >>> print(found)
    moved    aten::permute_copy.out x2, 840 bytes
    conversions  2, 840 bytes moved, besides what VulkanBackend makes
    >>> found.conversion_count, found.bytes, found.unread
    (2, 840, ('VulkanBackend',))
    >>> found.to_dict()["outside"]
    {'aten::permute_copy.out': {'count': 2, 'bytes': 840}}
    """

    delegates: tuple[DelegateConversions, ...]
    outside: tuple[OutsideConversions, ...]

    @property
    def conversion_count(self) -> int:
        """Return the number of conversions."""
        return sum(d.transposes or 0 for d in self.delegates) + sum(o.count for o in self.outside)

    @property
    def bytes(self) -> int:
        """Return the bytes that all conversions move."""
        return sum(d.bytes or 0 for d in self.delegates) + sum(o.bytes for o in self.outside)

    @property
    def unread(self) -> tuple[str, ...]:
        """The backends whose delegates cannot be read, so that the counts omit them."""
        return tuple(dict.fromkeys(d.backend for d in self.delegates if d.transposes is None))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `dimorder check --json`; the keys are stable."""
        return {
            "conversion_count": self.conversion_count,
            "bytes": self.bytes,
            "delegates": [asdict(delegate) for delegate in self.delegates],
            "outside": {o.operator: {"count": o.count, "bytes": o.bytes} for o in self.outside},
        }

    def __str__(self) -> str:
        lines = []
        read = [delegate for delegate in self.delegates if delegate.transposes is not None]
        if read:
            nodes, transposes, moved = (
                sum(getattr(delegate, key) for delegate in read) for key in ("nodes", "transposes", "bytes")
            )
            lines.append(
                f"moved    {BACKEND_ID} x{len(read)}: {transposes:,} transposes in {nodes:,} nodes, "
                f"{moved:,} bytes"
            )
        lines += [f"moved    {o.operator} x{o.count}, {o.bytes:,} bytes" for o in self.outside]
        total = f"{self.conversion_count:,}, {self.bytes:,} bytes moved" if self.conversion_count else "none"
        hidden = f", besides what {' and '.join(self.unread)} makes" if self.unread else ""
        return "\n".join([*lines, f"conversions  {total}{hidden}"])


def conversions_in(pte: bytes, where: str = "a .pte file") -> FileConversions:
    """Count the layout conversions in the bytes of a .pte.

    Args:
        pte: the content of the file.
        where: the name of the file in errors.

    Returns:
        The conversions, inside and outside its delegates.

    Raises:
        ContractError: if the bytes are no .pte, or a damaged one.
        UnsupportedError: if the file has no method `forward`.

    >>> import torch
    >>> from executorch.exir import to_edge
    >>> class Turned(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.permute(0, 2, 1) + 1
    >>> program = torch.export.export(Turned(), (torch.ones(2, 3, 5),))
    >>> print(conversions_in(to_edge(program).to_executorch().buffer))
    moved    aten::permute_copy.out x1, 120 bytes
    conversions  1, 120 bytes moved
    """
    return conversions_of(read_tables(pte, where), where)


def conversions_of(tables: Any, where: str = "a .pte file") -> FileConversions:
    """Return the conversions of a .pte whose tables are read (executorch.exir.schema.Program).

    Every instruction counts once, although a loop runs it more often; a dynamic size is its upper bound.
    """
    plan = forward_plan(tables, where)
    with consistent_tables(where):
        return _count(tables, plan, where)


def _count(tables: Any, plan: Any, where: str) -> FileConversions:
    delegates = []
    counts: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for call in instructions(plan):
        kernel = kernel_of(plan, call)
        if not kernel:
            delegates.append(_delegate(tables, plan, call.delegate_index, where))
            continue
        count_bytes = converted_bytes(plan, call)
        if count_bytes is not None:
            counts[kernel] += 1
            moved[kernel] += count_bytes
    outside = tuple(OutsideConversions(name, counts[name], moved[name]) for name in sorted(counts))
    return FileConversions(tuple(delegates), outside)


def _delegate(tables: Any, plan: Any, index: int, where: str) -> DelegateConversions:
    delegate = plan.delegates[index]
    if delegate.id != BACKEND_ID:
        return DelegateConversions(delegate.id)
    found = read_xnn_blob(delegate_blob(tables, delegate), f"{where}, delegate {index} ({delegate.id})")
    return DelegateConversions(delegate.id, found.nodes, found.transposes, found.bytes)


def converted_bytes(plan: Any, call: Any) -> int | None:
    """Return the bytes that a kernel call moves into another order, or None if it is no conversion."""
    kernel, args = plan.operators[call.op_index].name.rpartition("::")[2], call.args
    if kernel not in _PERMUTES and kernel not in _COPIES:
        return None
    source, result = plan.values[args[_COPIES.get(kernel, 0)]].val, plan.values[args[-1]].val
    rank = len(source.sizes)
    dims = _permutation(plan, args, rank) if kernel in _PERMUTES else list(range(rank))
    if list(result.sizes) != [source.sizes[dim] for dim in dims]:
        if kernel in _COPIES:
            return None  # a broadcast, which changes no order
        raise ValueError(f"{kernel} of {source.sizes} into {result.sizes}")
    changes = moves(source.sizes, source.dim_order, [dims[dim] for dim in result.dim_order])
    if not changes:
        return 0 if kernel in _PERMUTES else None
    count: int = math.prod(source.sizes)
    return count * _SIZES[source.scalar_type.name]


def _permutation(plan: Any, args: list[int], rank: int) -> list[int]:
    """Return the dims that a kernel permutes to: a list, or two swapped dims, or none for all reversed."""
    values = [plan.values[index].val for index in args[1:-1]]
    for value in values:
        if type(value).__name__ == "IntList":
            return [plan.values[item].val.int_val % rank for item in value.items]
    swapped = [value.int_val for value in values if type(value).__name__ == "Int"]
    dims = list(range(rank))
    if not swapped:
        return dims[::-1]
    first, second = swapped
    dims[first], dims[second] = dims[second], dims[first]
    return dims
