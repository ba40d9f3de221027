"""List the operators that XNNPACK computes: one row per operator of a physical program.

A row says when the operator is supported and which XNNPACK nodes compute it. Nothing here chooses an order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dimorder.graph.nodes import args_of, results
from dimorder.graph.tracing import FLOATS, at_least
from dimorder.ops.dialect import SLICE_CONSTANT
from dimorder.ops.parts import PARTS
from dimorder.ops.parts_elementary import BOUNDS, clamp_by_tensors
from dimorder.ops.parts_pairs import PAIRS
from dimorder.ops.parts_remainder import QUOTIENTS, REMAINDERS
from dimorder.targets.table import Table, is_transposed, unsupported_tensor
from dimorder.targets.xnnpack import moves, pointwise, reductions, spatial

aten = torch.ops.aten

MAX_RANK = 6  # XNN_MAX_TENSOR_DIMS


# Operators in parts that stay whole: ExecuTorch has a kernel.
HAVE_KERNEL = frozenset(
    {
        *(aten.atanh.default, aten.asinh.default, aten.acosh.default, aten.logit.default),
        *(aten.max.dim, aten.min.dim, aten.max.default, aten.min.default, aten.prod.default),
        *(aten.index_put.default, aten.masked_scatter.default, aten.topk.default),
        *(aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.repeat_interleave.Tensor),
        *(aten.convolution.default, aten.grid_sampler_2d.default, aten._cdist_forward.default),
        *(aten.native_layer_norm.default, aten.native_group_norm.default),
        aten._native_batch_norm_legit.no_stats,
    }
)


def _convolve_in_space(x: Tensor, *others: Any) -> Any:
    return PARTS[aten.convolution.default](x, *others) if x.dim() == 5 else NotImplemented


def _clamp_floats(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    return clamp_by_tensors(x, low, high) if x.is_floating_point() else NotImplemented


def _sum_of_integers(
    x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Add up integers as the last running sum: ExecuTorch's kernel for sums adds in float32."""
    if x.dtype not in (torch.int32, torch.int64) or (dtype or torch.int64).is_floating_point or not x.dim():
        return NotImplemented
    summed = {d % x.dim() for d in dims or range(x.dim())}
    kept = [d for d in range(x.dim()) if d not in summed]
    rows = x.permute(*kept, *sorted(summed)).flatten(len(kept))
    total = rows.cumsum(-1, dtype=dtype or torch.int64)[..., -1]
    return total.reshape([1 if d in summed else x.shape[d] for d in range(x.dim())]) if keepdim else total


def _quotient_of_integers(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
    """Write a quotient rounded towards zero by one rounded down: of int64 the kernel divides float64."""
    if rounding_mode != "trunc" or torch.result_type(x, y) != torch.int64:
        return QUOTIENTS[aten.div.Tensor_mode](x, y, rounding_mode=rounding_mode)
    floor = torch.div(x, y, rounding_mode="floor")
    return floor + ((x - floor * y != 0) & ((x < 0) != (y < 0))).long()


def _remainder_of_integers(x: Tensor, y: Any) -> Any:
    """Write a remainder with the sign of `x`: of int64 the kernel computes float64."""
    if torch.result_type(x, y) != torch.int64:
        return NotImplemented
    return x - _quotient_of_integers(x, y, rounding_mode="trunc") * y


IN_PARTS: Mapping[Any, Callable[..., Any]] = {
    **{name: parts for name, parts in PARTS.items() if name not in HAVE_KERNEL},
    **PAIRS,
    **QUOTIENTS,
    **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode), _quotient_of_integers),
    **dict.fromkeys((aten.fmod.Tensor, aten.fmod.Scalar), _remainder_of_integers),
    aten.sum.dim_IntList: _sum_of_integers,
    **BOUNDS,
    aten.clamp.Tensor: _clamp_floats,
    aten.convolution.default: _convolve_in_space,  # ExecuTorch's kernel has one and two dimensions
}


def _unfit(value: Any, is_constant: bool) -> str | None:
    if is_constant:
        return None
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        way_out = "; convert with .float()" if value.is_floating_point() else ""
        return f"{value.dtype} where this target computes in torch.float32{way_out}"
    if isinstance(value, Tensor) and value.ndim > MAX_RANK:
        return f"{value.ndim} dimensions where XNNPACK has at most {MAX_RANK}"
    return unsupported_tensor(value, "XNNPACK", FLOATS)


def wrong_outside(node: Node) -> str | None:
    """Return why no portable kernel of ExecuTorch 1.5.1 computes a physical call correctly, or None.

    A missing kernel in the installed runtime is reported later, when the file is made.
    """
    value = results(node)[0]
    if getattr(node.target, "namespace", None) == "dimorder" and node.target is not SLICE_CONSTANT:
        return f"ExecuTorch has no {node.target}"
    if getattr(node.target, "namespace", None) == "quantized_decomposed":
        return "ExecuTorch's kernels that quantise are no part of its runtime"
    if node.target is not aten.clone.default and any(map(is_transposed, node.all_input_nodes)):
        return "portable kernels read no transposed operand"
    read = (value for operand in node.all_input_nodes for value in results(operand))
    if any(isinstance(tensor, Tensor) and tensor.is_complex() for tensor in (value, *read)):
        return "portable kernels refuse complex numbers when they run"
    if node.target is aten.unfold.default and not node.all_input_nodes[0].meta["val"].dim():
        return "the portable kernel ends the process where there is no dimension"
    if node.target is aten.log_softmax.int and value.dtype == torch.float64:
        return "the portable kernel refuses torch.float64 when it runs"
    if node.target is aten.cumprod.default:
        return "ExecuTorch has no kernel for running products"
    if node.target is aten.linear.default:
        return "ExecuTorch transposes the weight at each call"
    if node.target is aten.convolution.default and value.ndim > 4:
        return "the portable kernel convolves in one and two dimensions"
    if node.target in REMAINDERS and not value.is_floating_point():
        return "the portable kernel gives the remainder of a negative integer the sign that C gives it"
    return None


def wrong_at_some_sizes(node: Node, shape: Sequence[int | torch.SymInt]) -> str | None:
    """Return why ExecuTorch 1.5.1 resizes wrongly at some dynamic sizes outside the delegates, or None.

    `shape` is that of the result, with torch's dynamic sizes.
    """
    dynamic = [isinstance(size, torch.SymInt) for size in shape]
    if node.target is aten._upsample_bilinear2d_aa.vec and any(dynamic):
        return "the portable kernel does not change the size of its result"
    may_be_1 = any(at_least(size) < 2 for size in itertools.compress(shape[2:], dynamic[2:]))
    if node.target is aten.upsample_bicubic2d.vec and args_of(node)[2] and may_be_1:
        return "PyTorch decomposes it with a division by the new size less 1, and the size may be 1"
    return None


OPERATORS = Table(
    "XNNPACK",
    MappingProxyType({**pointwise.ROWS, **moves.ROWS, **reductions.ROWS, **spatial.ROWS}),
    _unfit,
)
