"""Make the contract of a network from the orders that the caller asks for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.capture.captured import Captured
from dimorder.capture.integer_boundary import integer_type
from dimorder.contract import Contract, TensorSpec
from dimorder.errors import UsageError

Orders: TypeAlias = (
    str | torch.memory_format | DimOrder | Sequence[str | torch.memory_format | DimOrder | None] | None
)
"""The orders that a contract promises for inputs or outputs.

One order for all, or a sequence with one per tensor; None is contiguous. An order is a name such as "NHWC" or
"0,2,3,1", a memory format of torch, or a `DimOrder`. One order for all applies to the tensors of its rank.
"""


def make_contract(
    program: Captured,
    input_orders: Orders,
    output_orders: Orders,
    channels_last: Collection[torch.dtype] | None = None,
) -> Contract:
    """Return the contract of a program; it is contiguous for a tensor without an order.

    `channels_last` are the types for which the target's files can show a channels-last tensor in its logical
    shape (None: all types). A tensor of another type is shown in its physical shape. Raises `UsageError` if
    there are too few or too many orders, or if an order fits none of the tensors.

    >>> from dimorder.capture.captured import capture
    >>> print(make_contract(capture(torch.nn.Conv2d(3, 8, 3), (torch.randn(2, 3, 5, 7),)), "NHWC", None))
    input   input    2 x 3 x 5 x 7  float32  NHWC (0, 2, 3, 1)
    output  output0  2 x 8 x 3 x 5  float32  NCHW (0, 1, 2, 3)
    """
    names = [f"output{i}" for i in range(len(program.outputs))]
    inputs = _specs(program.input_names, program.inputs, input_orders, "input")
    outputs = _specs(names, program.outputs, output_orders, "output")
    return Contract(
        tuple(_with_boundary(spec, channels_last) for spec in inputs),
        tuple(_with_boundary(spec, channels_last) for spec in outputs),
    )


def _with_boundary(spec: TensorSpec, channels_last: Collection[torch.dtype] | None) -> TensorSpec:
    """Return the spec of a tensor with a boundary that the target's files can express."""
    settled = spec.boundary == "physical" or spec.boundary_order.is_contiguous
    if settled or channels_last is None or getattr(torch, spec.dtype) in channels_last:
        return spec
    return replace(spec, boundary="physical")


def _specs(
    names: Sequence[str], nodes: Sequence[torch.fx.Node], orders: Orders, kind: str
) -> tuple[TensorSpec, ...]:
    """Return the spec of each tensor; one order for all applies to those of its rank."""
    _require_orders(orders, kind)
    each = orders if isinstance(orders, (list, tuple)) else None
    if each is not None and len(each) != len(nodes):
        raise UsageError(
            f"{kind} orders", f"{len(each)} for {len(nodes)} {kind}s", f"give one for all, or one per {kind}"
        )
    specs = []
    for i, (name, node) in enumerate(zip(names, nodes, strict=True)):
        value = node.meta["val"]
        order = each[i] if each is not None else orders
        if order is None or (each is None and not _fits(order, value.dim())):
            dim_order = DimOrder.contiguous(value.dim())
        else:
            dim_order = DimOrder.parse(order, value.dim())
        shape, of = tuple(int(s) for s in value.shape), integer_type(node)
        stands_for = (None, 0) if value.is_floating_point() or of is None else (of.scale, of.zero_point)
        specs.append(TensorSpec(name, shape, str(value.dtype), dim_order, None, *stands_for))
    if each is None and orders is not None and not any(_fits(orders, len(spec.shape)) for spec in specs):
        shapes = ", ".join(str(spec.shape) for spec in specs)
        found, fix = f"{orders} fits no {kind} of shape {shapes}", f"leave it out: there are no {kind}s"
        why = _misfit(orders, len(specs[0].shape)) if specs else None
        if why is not None:
            found, fix = f"{found}: {why.found}", why.fix
        raise UsageError(f"{kind} orders", found, fix)
    return tuple(specs)


def _require_orders(orders: Any, kind: str) -> None:
    """Raise `UsageError` for a dict, and for a tuple of dims, which a list of orders would be taken for."""
    if isinstance(orders, dict):
        fix = f"give a list with one order per {kind}, in their sequence"
        raise UsageError(f"{kind} orders", "a dict", fix)
    if isinstance(orders, (list, tuple)) and orders and all(isinstance(dim, int) for dim in orders):
        order = DimOrder.parse(orders, len(orders))
        raise UsageError(f"{kind} orders", f"{orders}, which is one order", f"write {order!r}")


def _fits(order: Any, rank: int) -> bool:
    return _misfit(order, rank) is None


def _misfit(order: Any, rank: int) -> UsageError | None:
    """Return why an order is none for so many dims, or None if it is one."""
    try:
        DimOrder.parse(order, rank)
    except UsageError as error:
        return error
    return None
