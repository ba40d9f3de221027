"""Keep the numbers of integer arithmetic numbers, where XNNPACKQuantizer makes floats of them.

XNNPACKQuantizer of ExecuTorch 1.5.1 writes the 2 of `positions + 2` as a tensor of float32. The sum would be
a float: an embedding then refuses it as an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node


def arguments_of_integers(model: GraphModule) -> Mapping[Node, tuple[Any, ...]]:
    """Return the arguments of each call that gives a tensor of integers, for `restore_arguments`."""
    return {
        node: node.args for node in model.graph.nodes if node.op == "call_function" and _gives_integers(node)
    }


def restore_arguments(model: GraphModule, arguments: Mapping[Node, tuple[Any, ...]]) -> None:
    """Give calls the numbers among these arguments again, in place.

    Constants that nothing reads any more are removed.
    """
    for node in model.graph.nodes:
        pairs = list(zip(arguments.get(node, ()), node.args, strict=False))
        args = tuple(old if isinstance(old, (int, float)) else new for old, new in pairs)
        if len(args) == len(node.args) and args != node.args:
            constants = [arg for arg in node.args if isinstance(arg, Node) and arg.op == "get_attr"]
            node.args = args
            for constant in constants:
                if not constant.users:
                    model.graph.erase_node(constant)
                    delattr(model, str(constant.target))


def _gives_integers(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
