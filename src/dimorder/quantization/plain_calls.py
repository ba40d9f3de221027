"""Write calls in operators that quantizers know.

A product with a constant matrix becomes a linear, whose weight is quantised. A product and sum in one call
becomes two calls. A call that changes its operand in place becomes one that gives a new value. A complex
number becomes a constant.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dimorder.capture.passes import drop_expands
from dimorder.graph.nodes import args_of, bound, call_before, replace_node, tensor_of
from dimorder.graph.prediction import computed_before
from dimorder.quantization.constants import constant_nodes, insert_constant, root_of, shares_elements, writes

aten = torch.ops.aten

# Operator → the names of its two factors, and of what is added to their product, if anything.
_PRODUCTS = {
    aten.addmm.default: ("mat1", "mat2", "self"),
    aten.mm.default: ("self", "mat2", ""),
    aten.matmul.default: ("self", "other", ""),
}
# Operators that change their first operand, which need not.
_IN_PLACE = ("add_", "sub_", "mul_", "div_", "masked_fill_", "index_put_", "triu_", "tril_")
_OTHER_NAMES = {
    aten.special_softmax.default: aten.softmax.int,
    aten.special_log_softmax.default: aten.log_softmax.int,
}
_OF_TWO = (aten.matmul.default, aten.einsum.default)


def write_plainly(model: GraphModule) -> None:
    """Write linears, sums and fills as separate calls that change and repeat no operand, in place.

    >>> class Product(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = torch.nn.Parameter(torch.ones(3, 5))
    ...     def forward(self, x):
    ...         return torch.addmm(torch.ones(5), x, self.weight)
    >>> model = torch.export.export(Product(), (torch.ones(2, 3),)).module(check_guards=False)
    >>> write_plainly(model)
    >>> model(torch.ones(2, 3))[0], [str(node.target) for node in model.graph.nodes][-2]
    (tensor([4., 4., 4., 4., 4.]), 'aten.linear.default')
    """
    for node in list(model.graph.nodes):
        if node.target is aten.baddbmm.default:
            _split_sum(node)
        elif node.target in _OTHER_NAMES:
            node.target = _OTHER_NAMES[node.target]
        elif node.target is aten.expand_as.default:
            sizes = list(tensor_of(node).shape)
            if all(isinstance(size, int) for size in sizes):
                replace_node(node, call_before(node, aten.expand.default, (node.args[0], sizes)))
        elif writes(node) and node.target is not aten.copy_.default:
            node = _write_in_place(node)
        if node.target is aten.index_put.default:
            _write_fill(node)
        for place, number in enumerate(node.args):
            if isinstance(number, complex):  # XNNPACKQuantizer makes a float of it
                node.update_arg(place, insert_constant(model, "complex_number", torch.tensor(number), node))
    _write_linears(model)
    drop_expands(model)
    model.recompile()


def _replaced(node: Node, target: Any, args: Any) -> Node:
    call = call_before(node, target, args, node.kwargs)
    replace_node(node, call)
    return call


def _write_in_place(node: Node) -> Node:
    """Write a call that changes its operand as one that gives a new value, which a buffer takes as a copy.

    torchao computes other calls that change a buffer once, when it folds constants, and drops them.
    """
    (source, *rest), target = args_of(node), node.target
    others = getattr(aten, target._opname.rstrip("_"), None)  # type: ignore[union-attr]
    functional = getattr(others, target._overloadname, None)  # type: ignore[union-attr]
    if functional is None:
        return node
    if root_of(source).op == "get_attr":
        value = call_before(node, functional, (source, *rest), node.kwargs)
        node.kwargs = {}
        while writes(source):
            source = source.args[0]
        return _replaced(node, aten.copy_.default, (source, value))
    is_plain = target._opname in _IN_PLACE and _is_alone(node)  # type: ignore[union-attr]
    return _replaced(node, functional, node.args) if is_plain else node


def _write_fill(node: Node) -> None:
    """Write a number at the places of truth values as a fill."""
    source, places, value, *accumulates = args_of(node)
    if any(accumulates) or len(places) != 1 or tensor_of(value).dim():
        return
    (place,) = places
    if tensor_of(place).dtype == torch.bool and tensor_of(place).shape == tensor_of(source).shape:
        _replaced(node, aten.masked_fill.Tensor, (source, place, value))


def _split_sum(node: Node) -> None:
    """Write bias + x · y as a product and a sum."""
    given = bound(node.target, node.args, node.kwargs)
    if (given["alpha"], given["beta"]) == (1, 1):
        product = call_before(node, aten.bmm.default, (given["batch1"], given["batch2"]))
        replace_node(node, call_before(node, aten.add.Tensor, (given["self"], product)))


def _is_alone(node: Node) -> bool:
    """Return whether a call alone reads the value that it changes in place, which shares no elements."""
    (source, *_), users = args_of(node), args_of(node)[0].users
    if len(users) > 1 or not isinstance(source.target, OpOverload) or shares_elements(source):
        return False
    # Those in torch's other operators may return an operand, as dropout does.
    composite = source.target.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    return not composite or (source.target in _OF_TWO and len(source.all_input_nodes) > 1)


def _write_linears(model: GraphModule) -> None:
    constants = constant_nodes(model)
    for node in list(model.graph.nodes):
        if node.target not in _PRODUCTS:
            continue
        given = bound(node.target, node.args, node.kwargs)
        x, weight, bias = (given.get(name) for name in _PRODUCTS[node.target])
        assert x is not None and weight is not None
        if weight not in constants or tensor_of(weight).dim() != 2:
            continue
        if given.get("alpha", 1) != 1 or given.get("beta", 1) != 1 or tensor_of(x).dim() < 2:
            continue
        if bias is not None and (bias not in constants or tensor_of(bias).dim() != 1):
            continue
        if weight.op == "get_attr":
            held: torch.Tensor = attrgetter(str(weight.target))(model)
            turned = insert_constant(model, f"{weight.name}_transposed", held.detach().t().contiguous(), node)
        else:
            turned = computed_before(node, aten.t.default, weight)
        linear = call_before(node, aten.linear.default, (x, turned, bias), value=node.meta["val"])
        replace_node(node, linear)
