"""Replace dynamic quantization in an exported program by one operator, and torchao's operators by torch's.

Quantizers choose the scales from the value, quantize it and dequantize it; these three operators become one.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from dimorder.graph.construct import replace_parts
from dimorder.graph.exported import copy_graph
from dimorder.graph.nodes import bound, call_before, copy_meta, replace_named, replace_node
from dimorder.graph.quantized import DEQUANTIZE_CHANNELS
from dimorder.ops.quantization import FAKE_QUANTIZE_DYNAMIC, quantized

aten = torch.ops.aten

# The arguments of a call that chooses scales: the dimensions that share a scale (a token), the smallest and
# the largest integer, the smallest scale, and the mode; see `dialect.dynamic_type`.
_Tokens: TypeAlias = "tuple[list[int], int, int, float, str]"


def with_dynamic(exported: ExportedProgram) -> ExportedProgram:
    """Return the program with `fake_quantize_dynamic` wherever it quantizes dynamically.

    A program that dequantizes nothing and has no tensors of tensors is returned as it is.

    >>> from dimorder.ops.quantization import quantized
    >>> class Rounds(torch.nn.Module):
    ...     def forward(self, x):
    ...         scale, zero = quantized.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    ...         q = quantized.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
    ...         return quantized.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)
    >>> program = with_dynamic(torch.export.export(Rounds(), (torch.randn(2, 3),)))
    >>> [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    ['dimorder.fake_quantize_dynamic.default']
    """
    if not {name_of(node) for node in exported.graph.nodes} & (_DEQUANTIZE | {_INNER}):
        return exported
    graph = copy_graph(exported.graph)
    signature, state = _opened(graph, exported)
    for node in list(graph.nodes):
        if name_of(node) == _CHECK:  # of a type, which keeps its operand alive
            graph.erase_node(node)
    for node in list(graph.nodes):
        if name_of(node) in _DEQUANTIZE:
            _join(node)
        elif name_of(node) == _INT_MM:
            _as_linear(node)
    for node in list(graph.nodes):
        if name_of(node) in _AFFINE:
            _by_one_scale(node, _AFFINE[name_of(node)])
    graph.eliminate_dead_code()
    return replace_parts(exported, graph=graph, graph_signature=signature, state_dict=state)


def is_dynamic_dequantize(node: Node) -> bool:
    """Return whether a node of an exported program dequantizes a dynamically quantized value."""
    return name_of(node) in _DEQUANTIZE and _source(node) is not None


def is_static_quantize(node: Node) -> bool:
    """Return whether a node of an exported program quantizes by a scale from outside the value."""
    if name_of(node) not in _QUANTIZE:
        return False
    scale = _arguments(node)[1]
    return not isinstance(scale, Node) or scale.target is not operator.getitem


def quantizes(module: GraphModule) -> bool:
    """Return whether a graph, as it was exported, quantizes any value."""
    return any(name_of(node) in _QUANTIZE for node in module.graph.nodes)


def name_of(node: Any) -> str:
    """Return the namespace and name of the operator that a node calls; empty for any other node.

    >>> name_of(torch.fx.Graph().call_function(aten.relu.default))
    'aten.relu'
    """
    target: Any = getattr(node, "target", None)
    return f"{target.namespace}.{target._opname}" if isinstance(target, torch._ops.OpOverload) else ""


# -- tensors of tensors


def _opened(graph: Graph, exported: ExportedProgram) -> tuple[ExportGraphSignature, dict[str, Any]]:
    """Turn the parts of torchao's tensors into constants, and return the new signature and state."""
    signature = copy.deepcopy(exported.graph_signature)
    state, specs = dict(exported.state_dict), list(signature.input_specs)
    names = {spec.arg.name: str(spec.target) for spec in specs if spec.target in state}
    for node in list(graph.nodes):
        if name_of(node) != _INNER or node.args[0].name not in names:
            continue
        owner, part = node.args
        name = f"{names[owner.name]}.{part}"
        with graph.inserting_before(owner):
            constant = copy_meta(graph.placeholder(f"b_{name.replace('.', '_')}_{len(specs)}"), node)
        state[name] = getattr(state[names[owner.name]], part).detach()
        place = next(i for i, spec in enumerate(specs) if spec.arg.name == owner.name)
        specs.insert(place, InputSpec(InputKind.BUFFER, TensorArgument(constant.name), name, persistent=True))
        names[constant.name] = name
        replace_node(node, constant)
    for node in list(graph.nodes):
        is_opened = any(name.startswith(f"{names.get(node.name)}.") for name in state)
        if node.op == "placeholder" and not node.users and is_opened:
            specs = [spec for spec in specs if spec.arg.name != node.name]
            del state[names[node.name]]
            graph.erase_node(node)
    return replace(signature, input_specs=specs), state


# -- the three operators


def _join(dequantize: Node) -> None:
    source = _source(dequantize)
    if source is not None:
        replace_named(dequantize, _call(dequantize, *source))


def _rounded(quantize: Node, scale: Node) -> Node | None:
    """Return the value that replaces the integers of a quantize with zero points of 0, or None."""
    source = _chosen(quantize, scale, _arguments(quantize)[2] if name_of(quantize) in _QUANTIZE else None)
    if source is None or source[1][-1] != "symmetric" or source[1][1:3] != (-128, 127):
        return None
    return _call(quantize, *source)


def _call(place: Node, x: Node, tokens: _Tokens) -> Node:
    value = torch.empty_like(x.meta["val"])
    return call_before(place, FAKE_QUANTIZE_DYNAMIC, (x, *tokens), value=value)


def _source(dequantize: Node) -> tuple[Node, _Tokens] | None:
    """Return the value that a dequantize restores, and how its scales were chosen from it, or None."""
    return _chosen(*_arguments(dequantize)[:3])


def _chosen(quantize: Any, scale: Any, zero: Any) -> tuple[Node, _Tokens] | None:
    """Return the value that is quantized by scales computed from itself, and how, or None."""
    if not isinstance(quantize, Node) or name_of(quantize) not in _QUANTIZE or not isinstance(scale, Node):
        return None
    x, *same = _arguments(quantize)
    assert isinstance(x, Node)
    choose = scale.args[0] if scale.target is operator.getitem else None
    if same[:2] != [scale, zero] or not isinstance(choose, Node) or name_of(choose) not in _CHOOSE:
        return None
    if choose.args[0] is not x or (zero is not None and getattr(zero, "args", None) != (choose, 1)):
        return None
    tokens = _CHOOSE[name_of(choose)](x.meta["val"].shape, bound(choose.target, choose.args, choose.kwargs))
    if tokens is None:
        return None
    limits = zip(same[2:], tokens[1:3], strict=True)
    low, high = (own if limit is None else limit for limit, own in limits)
    return (x, tokens) if low <= tokens[1] and high == tokens[2] else None


def _by_one_scale(node: Node, plain: Any) -> None:
    """Replace torchao's operator by torch's own if all elements share a scale and a zero point."""
    given = bound(node.target, node.args, node.kwargs)
    shape, dtype = given["input"].meta["val"].shape, given.get("input_dtype", given["output_dtype"])
    result = given["output_dtype"] if "input_dtype" in given else torch.float32
    one = all(block in (-1, size) for size, block in zip(shape, given["block_size"], strict=True))
    if not one or given["zero_point"] is None or result not in (torch.float32, _FLOAT32):
        return
    args = (given["input"], given["scale"], given["zero_point"], *_limits(given, dtype), dtype)
    replace_named(node, call_before(node, plain, args))


def _arguments(node: Node) -> list[Any]:
    """Return the operand, scales, zero points, the smallest and the largest integer."""
    given = bound(node.target, node.args, node.kwargs)
    scale, zero = (given.get(name, given.get(f"{name}s")) for name in ("scale", "zero_point"))
    return [given["input"], scale, zero, given["quant_min"], given["quant_max"]]


# -- matmuls of integers


def _as_linear(matmul: Node) -> None:
    """Replace an `_int_mm` and the operators after it by a linear of quantized values, if they are one.

    torchao computes with `_int_mm` if weights and activations are int8: Q Wᵀ, each row times its scale, each
    column times its own. If the processor multiplies unsigned integers, Q + 128 stands for Q, and the
    difference is subtracted afterwards.
    """
    left, right = (_before_views(node) for node in matmul.all_input_nodes)
    offset = 0
    if name_of(left) == "aten.add":
        left, offset = _before_views(left.args[0]), left.args[1]
    after = _after(matmul)
    sums: Any = next(after, None)
    if offset:
        if name_of(sums) not in ("aten.sub", "aten.sub_") or not _is_offset(sums.args[1], right, offset):
            return
        sums = next(after, None)
    scale = _other_factor(sums)
    sums = next(after, None)
    scales = _other_factor(sums)
    if scale is None or scales is None or name_of(right) != "aten.t":
        return
    x, result = _rounded(left, _before_views(scale)), next(iter(sums.users), None)
    shape = (*x.meta["val"].shape[:-1], right.meta["val"].shape[1]) if x is not None else None
    if x is None or result is None or name_of(result) not in _SAME:
        return
    if tuple(result.meta["val"].shape) != shape:
        return
    weight = right.args[0]
    args = (weight, scales, None, 0, -128, 127, torch.int8)
    dtype = x.meta["val"].dtype
    value, kwargs = weight.meta["val"].to(dtype), {"out_dtype": dtype}
    real = call_before(result, DEQUANTIZE_CHANNELS, args, kwargs, like=weight, value=value)
    result.replace_all_uses_with(call_before(result, aten.linear.default, (x, real)))


def _before_views(node: Any) -> Any:
    """Return the value of which a node only changes the shape or type."""
    while name_of(node) in _SAME:
        node = node.args[0]
    return node


def _after(node: Node) -> Iterator[Any]:
    """Yield the chain of readers after a node without changes of shape or type, and None at the end."""
    found: Node | None = node
    while found is not None:
        found = next(iter(found.users), None)
        if name_of(found) not in _SAME:
            yield found


def _other_factor(multiply: Any) -> Any:
    """Return the second factor of a multiplication, or None for any other node."""
    if name_of(multiply) != "aten.mul" or not isinstance(multiply.args[1], Node):
        return None
    return multiply.args[1]


def _is_offset(node: Any, weight: Node, offset: int) -> bool:
    """Return whether a node computes what an offset of the left operand adds to the matmul."""
    return (
        name_of(node) == "aten.mul"
        and node.args[1] == offset
        and name_of(node.args[0]) == "aten.sum"
        and node.args[0].args[0] is weight
    )


# -- what the operators of each family say


def _whole(mode: str) -> Callable[[Sequence[int], Mapping[str, Any]], _Tokens]:
    def tokens(shape: Sequence[int], given: Mapping[str, Any]) -> _Tokens:
        return list(range(len(shape))), given["quant_min"], given["quant_max"], given["eps"], mode

    return tokens


def _last(eps: float, low: int, mode: str) -> Callable[[Sequence[int], Mapping[str, Any]], _Tokens]:
    return lambda shape, given: ([len(shape) - 1], low, 127, eps, mode)


def _blocks(shape: Sequence[int], given: Mapping[str, Any]) -> _Tokens | None:
    """Return the tokens of torchao's operator, which has the elements per scale in each dimension."""
    sizes, mode = list(zip(shape, given["block_size"], strict=True)), _MODES.get(given["mapping_type"])
    if mode is None or any(block not in (1, size) for size, block in sizes):
        return None
    dims = [d for d, (size, block) in enumerate(sizes) if block == size]
    eps = given["eps"] if given["eps"] is not None else torch.finfo(torch.float32).smallest_normal
    return dims, *_limits(given, given["target_dtype"]), eps, mode


def _limits(given: Mapping[str, Any], dtype: torch.dtype) -> tuple[int, int]:
    """Return torchao's smallest and largest integer, by default those of the type."""
    own, low, high = torch.iinfo(dtype), given["quant_min"], given["quant_max"]
    return int(own.min if low is None else low), int(own.max if high is None else high)


_MODES = MappingProxyType({"SYMMETRIC": "symmetric", "ASYMMETRIC": "asymmetric"})
_EPS = torch.finfo(torch.float32).eps
_CHOOSE: Mapping[str, Callable[[Sequence[int], Mapping[str, Any]], _Tokens | None]] = MappingProxyType(
    {
        "quantized_decomposed.choose_qparams": _whole("asymmetric"),
        "quantized_decomposed.choose_qparams_symmetric": _whole("symmetric"),
        "quantized_decomposed.choose_qparams_per_token": _last(1e-5 / 127, -127, "symmetric"),
        "quantized_decomposed.choose_qparams_per_token_asymmetric": _last(_EPS, -128, "balanced"),
        "quantized_decomposed._choose_qparams_per_token_asymmetric_impl": _last(_EPS, -128, "balanced"),
        "torchao.choose_qparams_affine": _blocks,
    }
)
_KINDS = ("quantized_decomposed.{}quantize_per_tensor", "quantized_decomposed.{}quantize_per_token")
_QUANTIZE, _DEQUANTIZE = (
    frozenset(kind.format(prefix) for kind in (*_KINDS, "torchao.{}quantize_affine")) for prefix in ("", "de")
)
_FLOAT32 = 6  # float32 as the default of a schema
_AFFINE = MappingProxyType(
    {
        "torchao.quantize_affine": quantized.quantize_per_tensor.tensor,
        "torchao.dequantize_affine": quantized.dequantize_per_tensor.tensor,
    }
)
_INNER, _CHECK, _INT_MM = (
    "export.access_subclass_inner_tensor",
    "aten._assert_tensor_metadata",
    "aten._int_mm",
)
_SAME = ("aten.to", "aten._to_copy", "aten.reshape", "aten.view", "aten.flatten", "aten.contiguous")
