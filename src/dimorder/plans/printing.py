"""Print a captured or physical program as a table with one line per value.

Views are free, and so are copies that make an operator's result dense. They have no lines of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from dimorder.algebra.dim_order import DimOrder
from dimorder.capture.captured import Captured
from dimorder.capture.state import left_in_state
from dimorder.contract import TensorSpec
from dimorder.graph.branches import Branches
from dimorder.graph.exported import state_of
from dimorder.graph.nodes import is_getitem, origin_of, results, where
from dimorder.ops.problem_map import BufferInfo
from dimorder.plans.network_plan import NetworkPlan
from dimorder.plans.order_names import LETTERS, order_name, whole_order
from dimorder.text import columns, shape_text

aten = torch.ops.aten

# Arguments that say nothing if they have these values; torch's own defaults are left out as well.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "stride": (1,),
    "padding": (0,),
    "dilation": (1,),
    "output_padding": (0,),
    "groups": (1,),
    "ceil_mode": (False,),
    "count_include_pad": (True,),
    "divisor_override": (None,),
    "bias": (None,),
    "transposed": (False,),
}
_IN_THE_SHAPE = ("size", "shape")  # arguments that the result's own shape shows

_SIZES = ("kernel_size", "stride", "dilation", "output_size")  # written as shapes are: 3×2

_LETTERS = {2: "NC", **LETTERS}


@dataclass(frozen=True)
class _Line:
    """A value: its name, its shape, its order if it is known, and the text of what computes it."""

    name: str
    shape: str
    order: str
    text: str


def captured_text(program: Captured) -> str:
    """Return a captured program as text: each call with its shape, its operands and its source line.

    >>> from dimorder.capture.captured import capture
    >>> print(captured_text(capture(torch.nn.Linear(3, 5), (torch.ones(2, 3),))).rsplit("  #")[0])
    input   2×3  input
    linear  2×5  linear(input, weight[5×3], bias[5])
    """
    names = _Names()
    texts: dict[Node, str] = {}
    lines: list[_Line] = []
    given = {node: (name, "input") for node, name in zip(program.inputs, program.input_names, strict=True)}
    for (node, _), buffer in zip(program.carried, program.state, strict=True):
        given[node] = buffer.name, "state"
    for node in program.nodes:
        if node.op == "get_attr":
            texts[node] = f"{node.target}[{_shape(node)}]"
        elif node.op == "placeholder":
            name, kind = given[node]
            texts[node] = names.new(name)
            lines.append(_Line(texts[node], _shape(node), "", kind))
        elif is_getitem(node):
            texts[node] = f"{texts[node.all_input_nodes[0]]}.{node.args[1]}"
        elif node.op == "call_function":
            texts[node] = names.new(_short(node))
            lines.append(_Line(texts[node], _shape(node), "", f"{_call(node, texts)}  # {where(node)}"))
    for (_, node), buffer in zip(program.carried, program.state, strict=True):
        lines.append(_Line(buffer.name, "", "", f"from now on {texts[node]}"))
    lines += [_Line(f"output{i}", "", "", texts[node]) for i, node in enumerate(program.outputs)]
    return _table(lines)


def physical_text(program: ExportedProgram, plan: NetworkPlan) -> str:
    """Return a physical program as text: physical shapes, orders, conversions, and calls outside the target.

    >>> from dimorder.api import plan
    >>> from dimorder.layout.rewrite import rewrite
    >>> found = plan(torch.nn.Conv2d(3, 8, 3), (torch.ones(2, 3, 5, 7),), output_orders="NHWC")
    >>> print(physical_text(rewrite(found.extracted, found.layout_plan, found.contract), found))
    input       2×3×5×7  NCHW  input
    input.NHWC  2×5×7×3  NHWC  convert input, 840 bytes
    conv2d      2×3×5×8  NHWC  conv2d_nhwc(input.NHWC, weight[8×3×3×3], bias[8])
    output0     2×3×5×8  NHWC  conv2d
    """
    return _table(_PhysicalText(program, plan).lines())


class _PhysicalText:
    """The texts of the nodes of a physical program."""

    def __init__(self, program: ExportedProgram, plan: NetworkPlan) -> None:
        self.program, self.plan, self.extracted = program, plan, plan.extracted
        self.names = _Names()
        self.texts: dict[Node, str] = {}
        self.values: dict[Node, str] = {}  # the line that a node belongs to
        specs = program.graph_signature.input_specs
        self.given = [s.arg.name for s in specs if s.kind is InputKind.USER_INPUT]
        self.state = state_of(program)
        constant = (s for s in specs if s.kind is not InputKind.USER_INPUT and s.arg.name not in self.state)
        self.constants = {s.arg.name: str(s.target) for s in constant}
        self.symbols = _symbols(program, dict(zip(self.given, plan.contract.inputs, strict=True)))

    def lines(self) -> Iterator[_Line]:
        contract = self.plan.contract
        promised = dict(zip(self.given, contract.inputs, strict=True))
        for node in self.program.graph.nodes:
            if node.name in self.constants:
                # A second order of one weight is weight__1; the first needs no number.
                name = self.constants[node.name].removesuffix("__0")
                self._set_text(node, f"{name}[{self._shape(node)}]")
            elif node.name in self.state:
                self._set_text(node, self.names.new(self.state[node.name]))
                yield _Line(self.texts[node], self._shape(node), self._order(node), "state")
            elif node.op == "placeholder":
                spec = promised[node.name]
                self._set_text(node, self.names.new(spec.name))
                shape = spec.dim_order.physical_shape(spec.shape)
                yield _Line(self.texts[node], shape_text(shape), _letters(spec.dim_order), "input")
            elif node.op == "call_function" and isinstance(node.meta["val"], torch.SymInt):
                self._set_text(node, self._size(node.meta["val"]))
            elif node.op == "call_function":
                yield from self._call(node)
        for name, node in left_in_state(self.program).items():
            yield _Line(name, self._shape(node), self._order(node), f"from now on {self.values[node]}")
        outputs: Any = self.program.graph.output_node().args[0]
        for node, spec in zip(outputs[len(self.state) :], contract.outputs, strict=True):
            shape = spec.dim_order.physical_shape(spec.shape)
            yield _Line(spec.name, shape_text(shape), _letters(spec.dim_order), self.values[node])

    def _call(self, node: Node) -> Iterator[_Line]:
        source: Any = node.args[0] if node.args else None
        converts = bool(origin_of(node).get("converts"))
        if node.target is aten.view.default:
            self._set_text(node, f"{self.values[source]} as {self._shape(node)}", self.values[source])
        elif node.target is aten.permute.default:
            self._set_text(node, self._permute_text(node, source, converts), self.values[source])
        elif node.target is aten.clone.default and not converts:
            if not is_getitem(source):
                self._set_text(node, self.texts[source], self.values[source])
                return
            self._set_text(node, self.values[source])
        elif is_getitem(node):
            self._set_text(node, f"{self.values[source]}.{node.args[1]}")
        elif converts:
            yield self._conversion_line(node, source)
        else:
            self._set_text(node, self.names.new(_short(node)))
            outside = "outside: " if self._is_outside(node) else ""
            yield _Line(
                self.texts[node], self._shape(node), self._order(node), f"{outside}{_call(node, self.texts)}"
            )

    def _permute_text(self, node: Node, source: Node, converts: bool) -> str:
        """Return the text of a permute; at the contract's side it is the text of the memory that it views."""
        dims: Any = node.args[1]
        at_boundary = source.op == "placeholder" or all(user.op == "output" for user in node.users)
        if converts or at_boundary:
            return self.values[source]
        if list(dims) == [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]:
            text = self.texts[source]
            return f"({text})ᵀ" if " " in text else f"{text}ᵀ"
        return f"{self.texts[source]} permuted {','.join(map(str, dims))}"

    def _conversion_line(self, node: Node, permuted: Node) -> _Line:
        source = self.values[permuted]
        order = self._order(node)
        name = self.names.new(f"{source.split('.')[0]}.{order.replace(' ', '')}")
        self._set_text(node, name)
        value = node.meta["val"]
        moved = value.numel() * value.element_size()
        count = f"{moved:,}" if isinstance(moved, int) else self._size(moved)
        return _Line(name, self._shape(node), order, f"convert {source}, {count} bytes")

    def _shape(self, node: Node) -> str:
        return ", ".join(shape_text([self._size(size) for size in value.shape]) for value in results(node))

    def _size(self, size: Any) -> str:
        """Return a size as text, a dynamic size by its name in the contract."""
        return str(size) if isinstance(size, int) else str(size.node.expr.xreplace(self.symbols))

    def _set_text(self, node: Node, text: str, value: str | None = None) -> None:
        self.texts[node], self.values[node] = text, text if value is None else value

    def _order(self, node: Node) -> str:
        """Return the order of a node's value, or of the view or copy that its operator makes of it."""
        holders = [node]
        for holder in holders:
            origin = origin_of(holder)
            if "buffer" in origin:
                return _order_text(self.extracted.buffers[origin["buffer"]], origin["order"])
            holders += [
                user
                for user in holder.users
                if (user.target in (aten.clone.default, aten.view.default) or is_getitem(user))
                and origin_of(user).get("site") == origin.get("site")
                and not origin_of(user).get("converts")
            ]
        return ""

    def _is_outside(self, node: Node) -> bool:
        site = origin_of(node).get("site")
        return site is not None and self.extracted.sites[site].node in self.extracted.outside


class _Names:
    """Names of values, numbered from the second value of a name on."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def new(self, name: str) -> str:
        self.counts[name] += 1
        return name if self.counts[name] == 1 else f"{name}_{self.counts[name]}"


def _symbols(program: ExportedProgram, promised: Mapping[str, TensorSpec]) -> dict[Any, Any]:
    """Return torch's symbols in terms of the contract's dynamic sizes."""
    found = {}
    for node in program.graph.nodes:
        if node.name in promised:
            for size, name in zip(node.meta["val"].shape, promised[node.name].boundary_shape, strict=True):
                if isinstance(name, str):
                    step, root = size.node.expr.as_coeff_Mul()
                    found[root] = sympy.Symbol(name, integer=True, positive=True) / step
    return found


def _short(node: Node) -> str:
    """Return an operator's name without its order: `conv2d` for `dimorder.conv2d_nhwc`."""
    name = _operator(node)
    for order in ("_nhwc", "_ndhwc", "_last"):
        name = name.removesuffix(order)
    return name


def _operator(node: Node) -> str:
    if isinstance(node.target, Branches):
        return str(node.target)
    return str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))


def _call(node: Node, texts: Mapping[Node, str]) -> str:
    """Return a call as text: its tensors first, then by name the arguments that are not as usual."""
    if node.target is aten.slice.Tensor:
        x, dim, begin, end, *step = node.args
        stride = f":{step[0]}" if step and step[0] != 1 else ""
        return f"slice({_value(x, texts)}, dim {dim}, {_value(begin, texts)}:{_value(end, texts)}{stride})"
    if isinstance(node.target, Branches):
        return f"{node.target}({', '.join(texts[operand] for operand in node.all_input_nodes)})"
    assert isinstance(node.target, torch._ops.OpOverload), f"{node} is no operator of torch"
    parts, parameters = [], node.target._schema.arguments
    given = [*node.args, *(node.kwargs.get(p.name, p.default_value) for p in parameters[len(node.args) :])]
    for parameter, argument in zip(parameters, given, strict=True):
        if _holds_tensor(argument):
            parts.append(_value(argument, texts))
        elif _is_shown(parameter, argument):
            alone = parameter.name in ("self", "other")
            value = _size_text(argument) if parameter.name in _SIZES else _value(argument, texts)
            parts.append(value if alone else f"{parameter.name} {value}")
    return f"{_operator(node)}({', '.join(parts)})"


def _size_text(argument: Any) -> str:
    sizes = argument if isinstance(argument, (list, tuple)) else [argument]
    return str(sizes[0]) if len(set(sizes)) == 1 else shape_text(sizes)


def _holds_tensor(argument: Any) -> bool:
    return isinstance(argument, Node) or (
        isinstance(argument, (list, tuple)) and any(isinstance(item, Node) for item in argument)
    )


def _is_shown(parameter: Any, argument: Any) -> bool:
    if parameter.name in _IN_THE_SHAPE:
        return False
    if parameter.has_default_value() and argument == parameter.default_value:
        return False
    values = argument if isinstance(argument, (list, tuple)) and argument else [argument]
    return not all(value in _NEUTRAL.get(parameter.name, ()) for value in values)


def _value(argument: Any, texts: Mapping[Node, str]) -> str:
    if isinstance(argument, Node):
        return texts[argument]
    if not isinstance(argument, (list, tuple)):
        return f"{argument:.6g}" if isinstance(argument, float) else str(argument)
    if argument and len(set(map(str, argument))) == 1 and not _holds_tensor(argument):
        return str(argument[0])
    return f"[{', '.join(_value(item, texts) for item in argument)}]"


def _shape(node: Node) -> str:
    return ", ".join(shape_text(value.shape) for value in results(node))


def _letters(order: DimOrder) -> str:
    """Return one letter per dimension, such as `NHWC`."""
    letters = _LETTERS.get(len(order))
    if letters is None:
        return ("" if len(order) <= 10 else " ").join(map(str, order))
    return "".join(order.apply(letters))


def _order_text(info: BufferInfo, order: Sequence[int]) -> str:
    """Return one letter per dimension of a buffer; if some are cut, one per axis."""
    whole = whole_order(info, order)
    if whole is None or not info.shape:
        return order_name(info, order).partition(", where")[0]
    return _letters(whole.canonical(info.shape))


def _table(lines: Iterable[_Line]) -> str:
    rows = [(line.name, line.shape, line.order, line.text) for line in lines]
    kept = [column for column in zip(*rows, strict=True) if any(column)]
    return "\n".join(columns(zip(*kept, strict=True)))
