"""List the kernels that XNNPACK would run for calls of a physical program, before a graph exists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.fx import Node

from dimorder.targets.table import Table, results, whole
from dimorder.targets.xnnpack.builder import XnnBuilder
from dimorder.targets.xnnpack.graph import XnnBytes, XnnConstant, XnnValue
from dimorder.targets.xnnpack.kernels import KernelRun


class Sketch(XnnBuilder):
    """A graph whose constants have a shape but no data."""

    def constant(self, tensor: Tensor) -> XnnValue:
        shape = tuple(tensor.shape) or (1,)
        return self.graph.add(shape, constant=XnnConstant(tensor, XnnBytes("", b"")))


def kernels(calls: Iterable[Node], operators: Table) -> list[KernelRun]:
    """Return the kernels of a sequence of calls. Calls that XNNPACK does not compute have none.

    `get_attr` nodes are constants, and so is every value computed from these alone.
    """
    sketch = Sketch()
    made: dict[Node, Any] = {}

    def resolve(node: Node) -> Any:
        if node not in made:
            values = results(node)
            constant = node.op == "get_attr"
            made[node] = values[0] if constant else whole(sketch.input(values[0].shape))
        return made[node]

    constants = set[Node]()
    for call in calls:
        constants.update(node for node in call.all_input_nodes if node.op == "get_attr")
        if call.all_input_nodes and constants.issuperset(call.all_input_nodes):
            constants.add(call)
            made[call] = results(call)[0]
        elif operators.supports(call, constants) is None:
            made[call] = operators.build(sketch, call, resolve)
    return sketch.graph.kernels()
