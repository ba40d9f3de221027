"""Prepare batch norms for torchao, which folds each into the weight of the convolution or linear before it.

torchao 0.18 folds into a weight that another call reads too. That call then computes with wrong numbers, as
does a second batch norm after the same weight. The tool also folds where something else reads the result
before the batch norm. It ends with an error if the weight is computed.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn import Parameter

from dimorder.capture.fold import evaluated
from dimorder.graph.nodes import args_of
from dimorder.quantization.constants import constant_nodes, insert_constant

aten = torch.ops.aten

_BEFORE = (
    *(aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    *(aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input),
)
NORMS = (aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)


def separate_batch_norms(model: GraphModule) -> None:
    """Give each batch norm that torchao folds a weight of its own before it, and hide the others, in place.

    >>> class Shared(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.conv = torch.nn.Conv2d(3, 3, 1, bias=False)
    ...         self.first, self.second = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    ...     def forward(self, x):
    ...         return self.second(self.conv(self.first(self.conv(x))))
    >>> exported = torch.export.export(Shared().eval(), (torch.ones(2, 3, 5, 7),))
    >>> model = exported.module(check_guards=False)
    >>> separate_batch_norms(model)
    >>> [str(n.args[1]) for n in model.graph.find_nodes(op="call_function", target=aten.conv2d.default)]
    ['conv_weight_of_conv2d', 'conv_weight_of_conv2d_1']
    """
    constants = constant_nodes(model)
    norms = [
        node for node in model.graph.nodes if node.target in NORMS and args_of(node)[0].target in _BEFORE
    ]
    if not norms:
        return
    read = {node: attrgetter(str(node.target))(model) for node in constants if node.op == "get_attr"}
    known = {**read, **evaluated(model.graph, read)}
    readers = Counter(str(node.target) for node in read for _ in node.users)
    for norm in norms:
        before = args_of(norm)[0]
        operands = [*args_of(before)[1:3], *args_of(norm)[1:5]]
        if len(before.users) > 1 or not all(each is None or each in known for each in operands):
            norm.target = _HIDDEN[norm.target]
            continue
        for node in (before, norm):
            for operand in node.all_input_nodes:
                is_alone = operand.op == "get_attr" and readers[str(operand.target)] == 1
                if operand in known and not is_alone:
                    node.replace_input_with(operand, _own(model, known[operand], operand, node))
    model.graph.eliminate_dead_code()
    model.recompile()


def _own(model: GraphModule, tensor: Tensor, operand: Node, reader: Node) -> Node:
    """Return a copy of a constant for one reader: a parameter, which torchao changes."""
    tensor = tensor.detach().clone()
    constant = insert_constant(model, f"{operand.name}_of_{reader.name}", tensor, reader)
    delattr(model, str(constant.target))
    model.register_parameter(str(constant.target), Parameter(tensor, requires_grad=False))
    return constant


def hide_batch_norms(model: GraphModule) -> None:
    """Let all batch norms call functions that torchao does not know, in place."""
    _retarget(model, _HIDDEN)


def show_batch_norms(model: GraphModule) -> None:
    """Undo `hide_batch_norms`, and what `separate_batch_norms` hides, in place."""
    _retarget(model, {hidden: norm for norm, hidden in _HIDDEN.items()})


def _retarget(model: GraphModule, targets: dict[Any, Any]) -> None:
    for node in model.graph.nodes:
        if node.target in targets:
            node.target = targets[node.target]
    model.recompile()


def _batch_norm(*args: Any) -> Any:
    return aten.batch_norm.default(*args)


def _native_batch_norm(*args: Any) -> Any:
    return aten._native_batch_norm_legit_no_training.default(*args)


_HIDDEN = dict(zip(NORMS, (_batch_norm, _native_batch_norm), strict=True))
