"""Find the outputs that no rounding leads to, which a program must compute exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx import Node

from dimorder.capture.captured import Captured
from dimorder.errors import VerificationError
from dimorder.graph.nodes import results

aten = torch.ops.aten

# Operators that may take any one of several equal integers.
_OF_EQUAL = frozenset(
    {
        *(aten.topk.default, aten.sort.default, aten.argsort.default),
        *(aten.kthvalue.default, aten.median.dim, aten.mode.default),
    }
)


def exact_outputs(program: Captured) -> list[bool]:
    """Return for each output whether it is computed from integers and truth values alone.

    A float leads to roundings. So may state, whose later values come from earlier calls. No output is exact
    if the network takes places of equal integers.
    """
    if any(node.target in _OF_EQUAL for node in program.exported.graph.nodes):
        return [False] * len(program.outputs)
    state = {before for before, _ in program.carried}
    return [_is_exact(output, state) for output in program.outputs]


def _is_exact(output: Node, state: set[Node]) -> bool:
    pending, seen = [output], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        values = [value for value in results(node) if isinstance(value, torch.Tensor)]
        if node in state or any(value.is_floating_point() or value.is_complex() for value in values):
            return False
        pending += node.all_input_nodes
    return True


def require_exact(
    got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], exact: Sequence[bool], what: str
) -> None:
    """Check that the exact ones among outputs are those of the network.

    Raises:
        VerificationError: if an element differs.
    """
    for i, (g, w, is_exact) in enumerate(zip(got, wanted, exact, strict=True)):
        off = int((g != w).sum()) if is_exact else 0
        if off:
            found = (
                f"{off} of {g.numel()} elements of output {i} differ from PyTorch's, and nothing rounds them"
            )
            raise VerificationError(what, found, "report this network: a rule, or the target, is wrong")
