"""Judge what each operator of a run did to the order of its tensors, and advise on it.

A verdict follows from strides and storages alone, by the rules at `judge`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

from dimorder.eager.inspection.trace import COPIES
from dimorder.eager.inspection.traced import Copy, TracedCall, TracedValue

FindingVerdict = Literal["lost", "hidden copy", "mixed operands", "ambiguous", "free view"]
VERDICTS: tuple[FindingVerdict, ...] = ("lost", "hidden copy", "mixed operands", "ambiguous", "free view")
COSTLY: tuple[FindingVerdict, ...] = ("lost", "hidden copy", "mixed operands")

# Only their first operand has an order; the others are weights, indices or state.
_FIRST_ONLY = frozenset(
    (
        *("aten.convolution", "aten._convolution", "aten.mkldnn_convolution", "aten.prelu"),
        *("aten.native_batch_norm", "aten.native_group_norm", "aten.native_layer_norm"),
        *("aten.cudnn_batch_norm", "aten.grid_sampler_2d", "aten.grid_sampler_3d"),
        *("aten.max_unpool2d", "aten.max_unpool3d", "aten.embedding", "aten.masked_scatter"),
        *("aten.gather", "aten.index", "aten.index_select", "aten.index_add", "aten.index_put"),
        *("aten.index_put_", "aten.scatter", "aten.scatter_add"),
    )
)
# They read any strides equally well, or have no order to keep: rows and columns, not channels and space.
_ORDER_FREE = frozenset(
    (
        *("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.linear", "aten.dot"),
        *("aten.matmul", "aten._cdist_forward", "aten._trilinear", "aten.lstm", "aten.gru"),
        *("aten.mkldnn_rnn_layer", "aten._native_multi_head_attention", "aten._fused_sdp_choice"),
        *("aten._scaled_dot_product_flash_attention", "aten._scaled_dot_product_efficient_attention"),
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_cudnn_attention",
        "aten._transformer_encoder_layer_fwd",
    )
)
_OPPOSITE: Mapping[str, str] = MappingProxyType({"channels-last": "row-major", "row-major": "channels-last"})

_LAST = "memory_format=torch.channels_last"
_FLATTEN = (
    "flatten copies into (C, H, W) order: pool to 1 x 1 before, or permute the columns of the next linear's "
    "weight and flatten x.permute(0, 2, 3, 1)"
)
# The advice: for a function or else an operator, or for any other one ("").
_ADVICE: Mapping[FindingVerdict, Mapping[str, str]] = MappingProxyType(
    {
        "lost": {
            "": "compute it on a channels-last view, x.permute(0, 2, 3, 1), and permute back: both are free",
            "contiguous": f"drop .contiguous(), or write .contiguous({_LAST})",
            "reshape": "view cannot merge these dims in this order: pool or reduce before, or keep "
            "what follows contiguous",
            "flatten": _FLATTEN,
            "aten._softmax": "x.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2): the same over C, with "
            "free views",
            "aten._log_softmax": "x.permute(0, 2, 3, 1).log_softmax(-1).permute(0, 3, 1, 2): the same over "
            "C, with free views",
            "instance_norm": "F.group_norm(x, x.shape[1], weight, bias): keeps the order; inexact if means "
            "exceed 10 deviations",
            "aten.convolution": "dimorder.to_channels_last(model): its weight is row-major, or it is 1-D",
            "aten.cat": "make every member channels-last: dimorder.to_channels_last(member)",
            "outside": "return dimorder.to_channels_last(y) from it, or rewrite it with torch's operators",
        },
        "hidden copy": {
            "": "give it the order that it wants, or keep the value in the order it is read in",
            "aten.convolution": "its input and weight lie in different orders: fix where the input lost its "
            "order, or dimorder.to_channels_last(model)",
            "aten.clone": "no view can do this, so memory is permuted: avoid it by another order of dims, or "
            "accept it",
        },
        "mixed operands": {
            "": "bring them into one order before: dimorder.to_channels_last(the smaller one)",
            "aten.cat": "one member is not channels-last, so the result is not: "
            "dimorder.to_channels_last(it), or fix where it lost its order",
        },
        "ambiguous": {
            "": "nothing is lost: a size of 1 fits both orders, and torch decided here; "
            "dimorder.to_channels_last(x) decides it before",
        },
        "free view": {"": "nothing: no memory moves"},
    }
)


@dataclass(frozen=True)
class Finding:
    """A place at which the order changed, from that of the operands to that of the result.

    `function` is what the program called. `bytes` are those of the values in another order than the result.
    `time_us` was measured: for a hidden copy of the copies, else of the operator. `call` is the index of the
    call in the run.
    """

    verdict: FindingVerdict
    operator: str
    function: str
    module: str
    source: str
    shape: tuple[int, ...]
    before: str
    after: str
    bytes: int
    time_us: float
    call: int
    what_to_do: str

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "shape": list(self.shape), "time_us": round(self.time_us, 1)}

    @property
    def place(self) -> str:
        """The source line as a person writes it: the file without its folders."""
        return os.path.basename(self.source)


def judge(calls: Sequence[TracedCall], asked: str = "channels-last") -> tuple[Finding, ...]:
    """Judge a run that should be in one kind of order; the findings have the sequence of the calls.

    Two values lie alike if the dims larger than 1 in both have the same sequence. The rules apply to
    operators with results of 3 dims or more, and to their operands of the same rank. Only the first operand
    counts if the others are weights.

    - *free view*: the result is the operand's memory, in another order;
    - *mixed operands*: two operands do not lie alike;
    - *lost*: an operand had the wanted kind, and the result has the opposite kind and other memory;
    - *hidden copy*: the result differs in order in any other way. Or the operator itself copied a value of 3
      dims or more into another order, or out of one with gaps;
    - *ambiguous*: the operands, of one shape, fit both orders by sizes of 1, and the result only one.

    Matrix products and attention read any order, and are only checked for hidden copies. An operand that no
    operator made has the verdict *lost*, with the cause outside of torch, if it has the opposite kind. The
    last value of its shape must have had the wanted kind.
    """
    return tuple(_judge(calls, asked))


def _judge(calls: Sequence[TracedCall], asked: str) -> Iterator[Finding]:
    last: dict[tuple[int, ...], TracedValue] = {}
    for call in calls:
        yield from _find_lost_outside(call, last, asked)
        yield from _outcome(call, asked)
        yield from _copies_inside(call)
        for value in (*call.operands, *call.results):
            last[value.shape] = value


def _find_lost_outside(
    call: TracedCall, last: Mapping[tuple[int, ...], TracedValue], asked: str
) -> Iterator[Finding]:
    for value in call.operands:
        before = last.get(value.shape)
        if not value.known and before and before.kind == asked and value.kind == _OPPOSITE[asked]:
            place = replace(call, operator="outside", function="code that is not torch's")
            yield _finding("lost", place, before, value, value.bytes, 0.0)


def _outcome(call: TracedCall, asked: str) -> Iterator[Finding]:
    if not call.results or call.operator in _ORDER_FREE:
        return
    result = call.results[0]
    rank = len(result.shape)
    operands = call.operands[1:] if call.operator == "aten.copy_" else call.operands
    if call.operator in _FIRST_ONLY:
        operands = operands[:1]
    peers = [x for x in operands if len(x.shape) == rank >= 3]
    if not peers:
        return
    if call.is_view:
        before = peers[0]
        if before.kind != result.kind and not {"ambiguous", "overlapping"} & {before.kind, result.kind}:
            yield _finding("free view", call, before, result, 0, call.time_us)
        return
    others = [x for x in peers if not x.lies_like(result)]
    if any(not x.lies_like(y) for x, y in pairwise(_unequal(peers))):
        moved = sum(x.bytes for x in others) or min(x.bytes for x in peers)
        yield _finding("mixed operands", call, peers, result, moved, call.time_us)
    elif others:
        lost = result.kind == _OPPOSITE[asked] and any(x.kind == asked for x in others)
        moved = sum(x.bytes for x in others)
        if lost or not call.copies:
            yield _finding("lost" if lost else "hidden copy", call, others, result, moved, call.time_us)
    elif result.kind in _OPPOSITE and peers[0].kind == "ambiguous" and len({x.shape for x in peers}) == 1:
        yield _finding("ambiguous", call, peers, result, 0, call.time_us)


def _unequal(peers: Sequence[TracedValue]) -> list[TracedValue]:
    """Return one operand of each order among those that have one: an ambiguous one never disagrees."""
    decided = [x for x in peers if x.order is not None and x.kind != "ambiguous"]
    return list({x.order: x for x in decided}.values())


def _copies_inside(call: TracedCall) -> Iterator[Finding]:
    if call.operator in COPIES:
        return
    copied: dict[tuple[str, str], list[Copy]] = {}
    for copy in call.copies:
        before, after = copy.before, copy.after
        if len(before.shape) < 3 or before.shape != after.shape or before.order is None:
            continue
        if not before.is_dense or not before.lies_like(after):
            copied.setdefault((before.order_name, after.order_name), []).append(copy)
    # Copies in parts, such as those for the groups of a convolution, are one finding.
    for copies in copied.values():
        moved = sum(copy.before.bytes for copy in copies)
        time_us = sum(copy.time_us for copy in copies)
        yield _finding("hidden copy", call, copies[0].before, copies[0].after, moved, time_us)


def _finding(
    verdict: FindingVerdict,
    call: TracedCall,
    before: TracedValue | Sequence[TracedValue],
    after: TracedValue,
    bytes_: int,
    time_us: float,
) -> Finding:
    befores = [before] if isinstance(before, TracedValue) else before
    names = Counter(x.order_name for x in befores)
    orders = " and ".join(f"{n} {name}" if n > 1 and len(names) > 1 else name for name, n in names.items())
    advice = _ADVICE[verdict]
    what_to_do = advice.get(call.function) or advice.get(call.operator) or advice[""]
    return Finding(
        verdict,
        call.operator,
        call.function,
        call.module,
        call.source,
        after.shape,
        orders,
        after.order_name,
        bytes_,
        time_us,
        call.index,
        _of_rank(what_to_do, len(after.shape)),
    )


def _of_rank(advice: str, rank: int) -> str:
    """Adapt advice, which is written for 4 dims, to another rank."""
    if rank == 4:
        return advice
    last, back = (*range(2, rank), 1), (rank - 1, *range(1, rank - 1))
    return (
        advice.replace("permute(0, 2, 3, 1)", f"permute(0, {', '.join(map(str, last))})")
        .replace("permute(0, 3, 1, 2)", f"permute(0, {', '.join(map(str, back))})")
        .replace(f".contiguous({_LAST})", ".contiguous(), then dimorder.to_channels_last(x)")
    )
