"""Decides how a plan becomes a program: every tensor dense in its physical shape, every conversion an
explicit permute.

The result is an `ExportedProgram` that runs in torch as it stands; nothing downstream decides about layout
any more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from dimorder.algebra.dim_order import DimOrder
from dimorder.planning.plan import LayoutPlan
from dimorder.program import dialect as _dialect  # noqa: F401  (registers torch.ops.dimorder)
from dimorder.program.annotate import Tensor, results_of
from dimorder.program.contract import Contract, TensorSpec
from dimorder.program.extract import Arrangement, Extracted, Order, Site, Token, View, layout_of, token_axes
from dimorder.program.op_rules import is_pointwise, operands

aten = torch.ops.aten

_MAX_RANK = 6  # of dimensions kept for their own sake; more are merged where nothing needs them apart

Run = tuple[
    int, ...
]  # buffer axes that make up one physical dimension, slowest first; () is a dimension of size 1


@dataclass(frozen=True)
class Physical:
    """A dense tensor of the graph under construction. `runs` are its dimensions, or None where they cut
    across axes."""

    node: torch.fx.Node
    order: Order
    runs: tuple[Run, ...] | None


def refuses(node: torch.fx.Node) -> str | None:
    """Why a call has no physical form other than row-major, or None."""
    if node.target is aten.convolution.default and len(_shape(node)) > 4 and _args(node)[6]:
        return "3-D transposed convolution has no channels-last form"
    if node.target in _SPATIAL and len(_shape(node)) != 4:
        return "only 2-D pooling and resizing has a channels-last form"
    if is_pointwise(node) or node.target in _LOWERINGS:
        return None
    return "no physical form is known"


def rewrite(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> ExportedProgram:
    """The physical program of a plan. Its signature is that of the contract's boundary: logical shapes in the
    promised dim orders, or dense physical shapes."""
    module = build(extracted, plan, contract)
    examples = tuple(
        at_boundary(example, spec)
        for example, spec in zip(extracted.annotated.program.example_inputs, contract.inputs, strict=True)
    )
    with torch.no_grad():
        return torch.export.export(module, examples)


def build(extracted: Extracted, plan: LayoutPlan, contract: Contract) -> torch.fx.GraphModule:
    """The physical program of a plan as a module, before it is exported."""
    return _Builder(extracted, plan, contract).run()


def at_boundary(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """A dense copy of a logical tensor as the program's own signature holds it, with canonical strides."""
    if spec.boundary == "physical":
        return tensor.permute(tuple(spec.dim_order)).contiguous()
    strides = spec.boundary_order.strides(tuple(tensor.shape))
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class _Builder:
    def __init__(self, extracted: Extracted, plan: LayoutPlan, contract: Contract) -> None:
        self.extracted, self.plan, self.contract = extracted, plan, contract
        self.program = extracted.annotated.program
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.memory: dict[tuple[int, Order], Physical] = {}
        self.produced: dict[int, Order] = {}
        self.constants: dict[str, torch.Tensor] = {}

    def run(self) -> torch.fx.GraphModule:
        inputs, outputs = iter(self.contract.inputs), []
        for index, site in enumerate(self.extracted.sites):
            arrangement = self.extracted.arrangements[index][self.plan.choice[index]]
            if site.kind == "input":
                self.input(site, arrangement, next(inputs))
            elif site.kind == "output":
                outputs.append((site, arrangement))
            else:
                call = _Call(self, site, arrangement)
                _LOWERINGS.get(site.node.target, _elementwise)(call) if site.kind != "opaque" else _opaque(
                    call
                )
        results: list[torch.fx.Node] = []
        dynamic = iter(outputs)
        for node, spec in zip(self.program.outputs, self.contract.outputs, strict=True):
            is_constant = node.op == "get_attr"
            result = self.constant_output(node, spec) if is_constant else self.output(*next(dynamic), spec)
            fresh = result.op == "call_function" and result not in results
            results.append(result if fresh else self.call(aten.clone.default, result))
        self.graph.output(tuple(results))
        return torch.fx.GraphModule(self.root, self.graph)

    # -- the boundary
    # ------------------------------------------------------------------------------------------------

    def input(self, site: Site, arrangement: Arrangement, spec: TensorSpec) -> None:
        node, order = self.graph.placeholder(site.node.name), _boundary_order(spec)
        if spec.boundary == "logical" and not order.is_contiguous:
            node = self.call(aten.permute.default, node, list(order))
        view = site.views[0]
        held = self.dimensions(view, _shape(site.node))
        self.store(view.buffer, layout_of(0, site, arrangement), node, tuple(held[d] for d in order))

    def output(self, site: Site, arrangement: Arrangement, spec: TensorSpec) -> torch.fx.Node:
        view, order = site.views[0], _boundary_order(spec)
        held = self.dimensions(view, _shape(site.node))
        dense = self.fetch(view.buffer, layout_of(0, site, arrangement))
        return self.logical(self.shaped(view.buffer, dense, [held[d] for d in order]), spec)

    def constant_output(self, node: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
        value = self.program.constant(node).permute(tuple(_boundary_order(spec)))
        return self.logical(self.constant(f"output_{node.name}", value), spec)

    def logical(self, node: torch.fx.Node, spec: TensorSpec) -> torch.fx.Node:
        """A dense result as the signature shows it."""
        order = _boundary_order(spec)
        if spec.boundary == "physical" or order.is_contiguous:
            return node
        return self.call(aten.permute.default, node, list(order.inverse))

    def dimensions(self, view: View, shape: Sequence[int]) -> list[Run]:
        """The buffer axes of each dimension of a value with that shape."""
        runs, left = [], list(view.axes)
        for extent in shape:
            run: Run = ()
            while extent > 1 and self.extent(view.buffer, run) < extent:
                run = (*run, left.pop(0))
            runs.append(run)
        return runs

    # -- memory
    # ------------------------------------------------------------------------------------------------------

    def size(self, buffer: int, axis: int) -> int:
        return self.extracted.buffers[buffer].tensor.sizes[axis]

    def extent(self, buffer: int, axes: Iterable[int]) -> int:
        return math.prod(self.size(buffer, axis) for axis in axes)

    def store(self, buffer: int, order: Order, node: torch.fx.Node, runs: tuple[Run, ...] | None) -> None:
        assert runs is None or tuple(axis for run in runs for axis in run) == order
        self.memory[buffer, order] = Physical(node, order, runs)
        self.produced[buffer] = order

    def fetch(self, buffer: int, order: Order) -> Physical:
        """The buffer in an order: as produced, or converted once and kept."""
        if (buffer, order) not in self.memory:
            self.memory[buffer, order] = self.convert(
                buffer, self.memory[buffer, self.produced[buffer]], order
            )
        return self.memory[buffer, order]

    def convert(self, buffer: int, source: Physical, order: Order) -> Physical:
        """An explicit permute between dense tensors; keeps physical dimensions where the permute allows."""
        position = {axis: i for i, axis in enumerate(order)}
        runs = source.runs
        pairs = [pair for run in runs or () for pair in itertools.pairwise(run)]
        if runs is None or any(position[b] != position[a] + 1 for a, b in pairs):
            runs = _common_runs(source.order, order)
        node = self.shaped(buffer, source, runs)
        slots = iter(sorted((i for i, run in enumerate(runs) if run), key=lambda i: position[runs[i][0]]))
        dims = [next(slots) if run else i for i, run in enumerate(runs)]
        permuted = self.call(aten.permute.default, node, dims)
        dense = self.call(aten.clone.default, permuted, memory_format=torch.contiguous_format)
        return Physical(dense, order, tuple(runs[d] for d in dims))

    def shaped(self, buffer: int, tensor: Physical, runs: Sequence[Run]) -> torch.fx.Node:
        """The tensor with other physical dimensions: a free view, left out where the shape is right."""
        shape = [self.extent(buffer, run) for run in runs]
        if tensor.runs is not None and [self.extent(buffer, run) for run in tensor.runs] == shape:
            return tensor.node
        return self.call(aten.view.default, tensor.node, shape)

    def constant(self, name: str, tensor: torch.Tensor) -> torch.fx.Node:
        """A constant as it is needed here; one that was re-laid the same way before is not stored twice."""
        versions = [n for n in self.constants if n == name or n.startswith(f"{name}__")]
        unique = next(
            (n for n in versions if _same_constant(self.constants[n], tensor)), f"{name}__{len(versions)}"
        )
        if unique not in self.constants:
            self.constants[unique] = tensor.contiguous()
            self.root.register_buffer(unique, self.constants[unique])
        return self.graph.get_attr(unique)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return self.graph.call_function(target, args, kwargs)


class _Call:
    """One operator being lowered: its operands in the planned orders, its tokens, its results."""

    def __init__(self, builder: _Builder, site: Site, arrangement: Arrangement) -> None:
        self.b, self.site, self.arrangement, self.node = builder, site, arrangement, site.node
        self.target: Any = site.node.target
        self.orders = [layout_of(i, site, arrangement) for i in range(len(site.views))]
        self.dynamic = [
            builder.fetch(view.buffer, order) for view, order in zip(site.reads, self.orders, strict=False)
        ]
        self.relation = builder.extracted.annotated.relations[site.node]
        self.tensors: list[Tensor] = list(builder.extracted.annotated.reads[site.node])

    # -- tokens
    # ------------------------------------------------------------------------------------------------------

    def has(self, token: Token, i: int) -> bool:
        return token in self.site.tokens[i]

    def token_size(self, token: Token, i: int) -> int:
        return self.b.extent(self.site.views[i].buffer, self.site.tokens[i].get(token, ()))

    def axes(self, i: int, tokens: Iterable[Token]) -> Run:
        """The buffer axes of some tokens on tensor `i`, in its planned order."""
        wanted = {axis for token in tokens for axis in self.site.tokens[i].get(token, ())}
        return tuple(axis for axis in self.orders[i] if axis in wanted)

    def labelled(self, *names: str) -> list[Token]:
        return [token for token in self.arrangement.tokens if any(_is_named(token, name) for name in names)]

    def permutation(self, i: int, *names: str) -> torch.Tensor:
        """For the dimensions made of some labels: which logical index lies at each physical position on
        tensor `i`."""
        axes = self.axes(i, self.labelled(*names))
        logical = [axis for axis in self.site.views[i].axes if axis in axes]
        buffer = self.site.views[i].buffer
        indices = torch.arange(self.b.extent(buffer, axes)).reshape(
            [self.b.size(buffer, axis) for axis in logical]
        )
        return indices.permute([logical.index(axis) for axis in axes]).reshape(-1)

    # -- physical dimensions
    # -----------------------------------------------------------------------------------------

    def split(
        self, leads: Iterable[Token] = (), alone: Iterable[Token] = (), together: Iterable[Token] = ()
    ) -> list[list[Token]]:
        """The tokens in physical dimensions: as the largest operand has them, cut where operands or the call
        differ.

        A dimension starts at every token of `leads`; tokens of `alone` share no dimension with others; tokens
        of `together` are one dimension.
        """
        order = list(self.arrangement.tokens)
        leads, alone, together = set(leads), set(alone), set(together)
        cuts = {0}
        held = [token_axes(tensor, self.relation) for tensor in self.tensors]
        for p in range(1, len(order)):
            before, after = order[p - 1], order[p]
            if (
                after in leads
                or (before in alone) != (after in alone)
                or (before in together) != (after in together)
            ) or (before not in leads and any((before in tokens) != (after in tokens) for tokens in held)):
                cuts.add(p)
        groups = self._as_they_are(order, cuts, together)
        if groups is None or len(groups) > _MAX_RANK:
            ends = [*sorted(cuts)[1:], len(order)]
            groups = [order[a:b] for a, b in zip(sorted(cuts), ends, strict=True)] if order else []
        return groups

    def _as_they_are(
        self, tokens: list[Token], cuts: set[int], together: set[Token]
    ) -> list[list[Token]] | None:
        """The physical dimensions of the largest operand (sizes of 1 included), cut further where needed."""
        if not self.dynamic:
            return None
        largest = max(range(len(self.dynamic)), key=lambda i: len(self.site.tokens[i]))
        runs = self.dynamic[largest].runs
        if runs is None:
            return None
        dimension = {axis: d for d, run in enumerate(runs) for axis in run}
        homes: list[int] = []
        for token in reversed(tokens):  # a token the largest operand lacks lives with its successor
            held = self.site.tokens[largest].get(token)
            follows = homes[-1] if homes else len(runs) - 1
            homes.append(min(dimension[axis] for axis in held) if held else follows)
        homes.reverse()
        joint = [home for home, token in zip(homes, tokens, strict=True) if token in together]
        homes = [min(joint) if token in together else home for home, token in zip(homes, tokens, strict=True)]
        if homes != sorted(homes):
            return None
        groups: list[list[Token]] = []
        for d, run in enumerate(runs):
            if not run:
                groups.append([])
            for p, token in enumerate(tokens):
                if homes[p] == d:
                    if p in cuts or p == 0 or homes[p - 1] != d:
                        groups.append([])
                    groups[-1].append(token)
        return groups

    def runs(self, i: int, groups: Sequence[Sequence[Token]]) -> tuple[Run, ...]:
        return tuple(self.axes(i, group) for group in groups)

    def by_label(self, *groups: Sequence[str]) -> list[list[Token]]:
        return [self.labelled(*names) for names in groups]

    # -- operands and results
    # ----------------------------------------------------------------------------------------

    def take(self, i: int, groups: Sequence[Sequence[Token]]) -> torch.fx.Node:
        """Dynamic operand `i` with one physical dimension per group."""
        return self.b.shaped(self.site.views[i].buffer, self.dynamic[i], self.runs(i, groups))

    def take_constant(self, position: int, groups: Sequence[Sequence[Token]]) -> torch.fx.Node:
        """The constant at `position` of `op_rules.operands`, re-laid, with one dimension per group (1 where
        it has none)."""
        source, tensor = operands(self.node)[position], self.tensors[position]
        value = self.b.program.constant(source)
        held = token_axes(tensor, self.relation)
        order = [axis for token in self.arrangement.tokens for axis in held.get(token, ())]
        relaid = value.reshape(tensor.sizes).permute(order)
        shape = [math.prod(tensor.sizes[a] for t in group for a in held.get(t, ())) for group in groups]
        return self.b.constant(str(source.target), relaid.reshape(shape))

    def all_operands(self, groups: Sequence[Sequence[Token]]) -> list[torch.fx.Node]:
        """Every operand in argument order, constants included, aligned on the groups. A scalar beside tensors
        stays one: they decide the type of the result."""
        taken, dynamic = [], 0
        all_scalars = not any(_shape(source) for source in operands(self.node))
        for position, source in enumerate(operands(self.node)):
            aligned = groups if _shape(source) or all_scalars else []
            if source.op == "get_attr":
                taken.append(self.take_constant(position, aligned))
            else:
                taken.append(self.take(dynamic, aligned))
                dynamic += 1
        return taken

    def give_dense(self, node: torch.fx.Node, groups: Sequence[Sequence[Token]]) -> None:
        """Like `give`, for an operator that ATen runs as a view."""
        self.give(self.b.call(aten.clone.default, node, memory_format=torch.contiguous_format), groups)

    def give(self, node: torch.fx.Node, groups: Sequence[Sequence[Token]], result: int = 0) -> None:
        i = len(self.site.reads) + result
        self.b.store(self.site.views[i].buffer, self.orders[i], node, self.runs(i, groups))

    def size(self, i: int, group: Iterable[Token]) -> int:
        return self.b.extent(self.site.views[i].buffer, self.axes(i, group))

    @property
    def result(self) -> int:
        return len(self.site.reads)

    def weight(self, argument: int) -> torch.Tensor | None:
        source = _args(self.node)[argument] if len(_args(self.node)) > argument else None
        return None if source is None else self.b.program.constant(source)

    def constant(self, tensor: torch.Tensor | None, argument: int) -> torch.fx.Node | None:
        return None if tensor is None else self.b.constant(str(_args(self.node)[argument].target), tensor)


# -- lowerings: one small function per treatment
# -------------------------------------------------------------------------


def _opaque(c: _Call) -> None:
    """Row-major operands in their logical shapes, the operator as it is."""
    dynamic = iter(range(len(c.site.reads)))

    def take(source: torch.fx.Node) -> torch.fx.Node:
        if source.op == "get_attr":
            return c.b.constant(str(source.target), c.b.program.constant(source))
        i = next(dynamic)
        view = c.site.views[i]
        return c.b.shaped(view.buffer, c.dynamic[i], c.b.dimensions(view, _shape(source)))

    args, kwargs = pytree.tree_map_only(torch.fx.Node, take, (_args(c.node), c.node.kwargs))
    node = c.b.call(c.target, *args, **kwargs)
    several = isinstance(c.node.meta["val"], (list, tuple))
    for index, _ in enumerate(results_of(c.node)):
        view = c.site.writes[index]
        value = c.node.meta["val"][index] if several else c.node.meta["val"]
        runs = c.b.dimensions(view, tuple(value.shape))
        picked = c.b.graph.call_function(_getitem, (node, index)) if several else node
        dense = c.b.call(aten.clone.default, picked, memory_format=torch.contiguous_format)
        c.b.store(view.buffer, c.orders[c.result + index], dense, tuple(runs))


def _elementwise(c: _Call) -> None:
    groups = c.split()
    feed = iter(c.all_operands(groups))
    args, kwargs = pytree.tree_map_only(torch.fx.Node, lambda _: next(feed), (_args(c.node), c.node.kwargs))
    c.give(c.b.call(c.target, *args, **kwargs), groups)


def _prelu(c: _Call) -> None:
    """The slope lies along the last physical dimension, or is spelt out."""
    groups = c.split()
    x, slope = c.all_operands(groups)
    held = token_axes(c.tensors[1], c.relation) if len(c.site.reads) == 1 else {}
    inner = [group for group in groups if any(token in held for token in group)]
    if held and inner == groups[-1:]:
        slope = c.b.call(aten.view.default, slope, [c.size(0, groups[-1])])
        c.give(c.b.call(torch.ops.dimorder.prelu_last.default, x, slope), groups)
        return
    negative = c.b.call(aten.mul.Tensor, c.b.call(aten.clamp.default, x, None, 0.0), slope)
    c.give(c.b.call(aten.add.Tensor, c.b.call(aten.relu.default, x), negative), groups)


def _expand(c: _Call) -> None:
    groups = c.split()
    groups = (
        [[t] for t in c.arrangement.tokens]
        if any(len({c.has(t, 0) for t in g}) > 1 for g in groups)
        else groups
    )
    c.give_dense(
        c.b.call(aten.expand.default, c.take(0, groups), [c.size(c.result, group) for group in groups]),
        groups,
    )


def _relabel(c: _Call) -> None:
    """A view with blocks: the same memory; its dimensions are found when it is read."""
    view = c.site.writes[0]
    c.b.store(view.buffer, c.orders[c.result], c.dynamic[0].node, None)


def _reduce(c: _Call) -> None:
    reduced = set(c.labelled("r"))
    groups = _or_size_1(c.split(alone=reduced), reduced)
    dims = [d for d, group in enumerate(groups) if group and set(group) <= reduced] or [len(groups) - 1]
    node = c.b.call(c.target, c.take(0, groups), dims, True, **c.node.kwargs)
    c.give(node, [[] if d in dims else group for d, group in enumerate(groups)])


def _or_size_1(groups: list[list[Token]], wanted: Iterable[Token]) -> list[list[Token]]:
    """Physical dimensions with one more, of size 1, for an operator whose own dimension has no axes."""
    return groups if any(wanted) else [*groups, []]


def _index_reduce(c: _Call) -> None:
    reduced = c.labelled("r")
    groups = _or_size_1(c.split(alone=reduced), reduced)
    dim = next((d for d, group in enumerate(groups) if group and group[0] in reduced), len(groups) - 1)
    c.give(
        c.b.call(c.target, c.take(0, groups), dim, True),
        [[] if d == dim else g for d, g in enumerate(groups)],
    )


def _softmax(c: _Call) -> None:
    """The operator itself along one physical dimension; from parts where its dimension lies in several."""
    k = set(c.labelled("k"))
    groups = _or_size_1(c.split(alone=k), k)
    dims = [d for d, group in enumerate(groups) if group and group[0] in k] or [len(groups) - 1]
    x, log = c.take(0, groups), c.target is aten.log_softmax.int
    if len(dims) == 1:
        c.give(c.b.call(c.target, x, dims[0], *_args(c.node)[2:]), groups)
        return
    if _args(c.node)[2:] and _args(c.node)[2] is not None:
        x = c.b.call(aten._to_copy.default, x, dtype=_args(c.node)[2])
    shifted = c.b.call(aten.sub.Tensor, x, c.b.call(aten.amax.default, x, dims, True))
    powers = c.b.call(aten.exp.default, shifted)
    total = c.b.call(aten.sum.dim_IntList, powers, dims, True)
    scaled = (
        (aten.sub.Tensor, shifted, c.b.call(aten.log.default, total))
        if log
        else (aten.div.Tensor, powers, total)
    )
    c.give(c.b.call(*scaled), groups)


def _cumulative(c: _Call) -> None:
    k = c.labelled("k")
    groups = _or_size_1(c.split(alone=k, together=k), k)
    dim = next((d for d, group in enumerate(groups) if group and group[0] in k), len(groups) - 1)
    c.give(c.b.call(c.target, c.take(0, groups), dim, *_args(c.node)[2:], **c.node.kwargs), groups)


def _layer_norm(c: _Call) -> None:
    """The operator itself over the last physical dimension; from parts where its dimensions lie elsewhere."""
    k = c.labelled("k")
    order = c.permutation(0, "k")
    weight, bias = (None if w is None else w.reshape(-1)[order] for w in (c.weight(2), c.weight(3)))
    eps = _args(c.node)[4] if len(_args(c.node)) > 4 else 1e-5
    if not k or set(c.arrangement.tokens[-len(k) :]) == set(k):
        groups = _ending_in_k(c)
        c.give(
            c.b.call(
                c.target, c.take(0, groups), [len(order)], c.constant(weight, 2), c.constant(bias, 3), eps
            ),
            groups,
        )
        return
    groups = c.split(alone=k)
    dims = [d for d, group in enumerate(groups) if group and group[0] in k]
    shape = [c.size(0, group) if d in dims else 1 for d, group in enumerate(groups)]
    x = c.take(0, groups)
    centred = c.b.call(aten.sub.Tensor, x, c.b.call(aten.mean.dim, x, dims, True))
    variance = c.b.call(aten.mean.dim, c.b.call(aten.mul.Tensor, centred, centred), dims, True)
    y = c.b.call(
        aten.mul.Tensor, centred, c.b.call(aten.rsqrt.default, c.b.call(aten.add.Tensor, variance, eps))
    )
    if weight is not None:
        y = c.b.call(aten.mul.Tensor, y, c.constant(weight.reshape(shape), 2))
    if bias is not None:
        y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(shape), 3))
    c.give(y, groups)


def _ending_in_k(c: _Call) -> list[list[Token]]:
    """Physical dimensions of which the last is label k, whole (of size 1 where k has no axes)."""
    k = c.labelled("k")
    groups = c.split(alone=k, together=k)
    return [*(group for group in groups if not (k and group and group[0] in k)), k] if k else [*groups, []]


def _cat(c: _Call) -> None:
    cut = c.labelled("cut")
    groups = c.split(leads=cut)
    dim = next(d for d, group in enumerate(groups) if group and group[0] in cut)
    c.give(c.b.call(c.target, c.all_operands(groups), dim), groups)


def _slice(c: _Call) -> None:
    dim, start, end, step = _args(c.node)[1:5]
    lead = c.labelled("cut", "step")
    fine = step != 1 and lead and lead[0][0] != "step"
    groups = c.split(leads=lead, alone=lead if fine else ())
    position = next(d for d, group in enumerate(groups) if group and group[0] in lead)
    rest = c.size(0, groups[position]) // c.token_size(lead[0], 0)
    x = c.take(0, groups)
    if fine:
        c.give_dense(c.b.call(c.target, x, position, start, end, step), groups)
        return
    if step != 1:
        begin, length = start * rest, rest
    else:
        inner = _shape(_args(c.node)[0])[dim] // c.token_size(lead[0], 0)
        begin, length = start // inner * rest, (end - start) // inner * rest
    c.give_dense(c.b.call(c.target, x, position, begin, begin + length, 1), groups)


def _pad(c: _Call) -> None:
    rank, pads = len(_shape(c.node)), list(_args(c.node)[1])
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts)
    amounts = [0] * (2 * len(groups))
    for i in range(0, len(pads), 2):
        name = f"cut.{rank - 1 - i // 2}"
        if not (pads[i] or pads[i + 1]):
            continue
        position = next(d for d, group in enumerate(groups) if group and _is_named(group[0], name))
        inner = math.prod(
            size for label, size in _labels_of(c, rank - 1 - i // 2) if not _is_named((label, 0), name)
        )
        rest = c.size(c.result, groups[position]) // c.token_size(groups[position][0], c.result)
        slot = 2 * (len(groups) - 1 - position)
        amounts[slot : slot + 2] = [pads[i] // inner * rest, pads[i + 1] // inner * rest]
    while len(amounts) > 2 and amounts[-2:] == [0, 0]:
        amounts = amounts[:-2]
    c.give(c.b.call(c.target, c.take(0, groups), amounts, *_args(c.node)[2:]), groups)


def _labels_of(c: _Call, dim: int) -> Sequence[tuple[str, int]]:
    return c.relation.reads[0][dim]


def _flip(c: _Call) -> None:
    cuts = c.labelled("cut")
    groups = c.split(leads=cuts, alone=cuts)
    dims = [d for d, group in enumerate(groups) if group and group[0] in cuts]
    c.give(c.b.call(c.target, c.take(0, groups), dims), groups)


def _linear(c: _Call) -> None:
    """x Wᵀ with the features innermost, or W x with the features outermost."""
    weight, bias = c.weight(1), c.weight(2)
    assert weight is not None
    rows, columns = c.permutation(c.result, "k"), c.permutation(0, "k")
    weight, bias = weight[rows][:, columns], None if bias is None else bias[rows]
    k, tokens = c.labelled("k"), list(c.arrangement.tokens)
    if k and tokens[0] in k and len(tokens) > len(k):
        groups = [k, [token for token in tokens if token not in k]]
        y = c.b.call(aten.matmul.default, c.constant(weight, 1), c.take(0, groups))
        if bias is not None:
            y = c.b.call(aten.add.Tensor, y, c.constant(bias.reshape(-1, 1), 2))
    else:
        groups = _ending_in_k(c)
        y = c.b.call(c.target, c.take(0, groups), c.constant(weight, 1), c.constant(bias, 2))
    c.give(y, groups)


def _matmul(c: _Call) -> None:
    """One batch dimension where both operands have the same batch, else one per axis so that they broadcast.

    Where the arrangement puts n before m, this is (AB)ᵀ = BᵀAᵀ: the operands change sides.
    """
    batch = c.labelled("b")
    same = len(c.site.reads) == 2 and all(c.has(t, 0) == c.has(t, 1) for t in batch)
    heads = [batch] if same else [[token] for token in batch] or [[]]
    m, k, n = c.by_label(["m"], ["k"], ["n"])
    place = {token: p for p, token in enumerate(c.arrangement.tokens)}

    def precedes(a: list[Token], b: list[Token], unless: bool) -> bool:
        return place[a[0]] < place[b[0]] if a and b else unless

    straight = precedes(m, n, True)
    a_first, b_first = precedes(m, k, straight), precedes(k, n, straight)
    sides = ([*heads, m, k] if a_first else [*heads, k, m], [*heads, k, n] if b_first else [*heads, n, k])
    taken, dynamic = [], 0
    for position, source in enumerate(operands(c.node)):
        constant = source.op == "get_attr"
        taken.append(
            c.take_constant(position, sides[position]) if constant else c.take(dynamic, sides[position])
        )
        dynamic += not constant
    if not straight:
        taken, (a_first, b_first) = taken[::-1], (not b_first, not a_first)
    rank = len(heads) + 2
    swap = [*range(rank - 2), rank - 1, rank - 2]
    left, right = (
        node if first else c.b.call(aten.permute.default, node, swap)
        for node, first in zip(taken, (a_first, b_first), strict=True)
    )
    c.give(c.b.call(aten.matmul.default, left, right), [*heads, m, n] if straight else [*heads, n, m])


def _convolution(c: _Call) -> None:
    """1-D convolutions are 2-D with a height of 1."""
    _, _, _, stride, padding, dilation, transposed, output_padding, groups = _args(c.node)
    weight, bias = c.weight(1), c.weight(2)
    assert weight is not None
    spatial = [[f"s.{i}"] for i in range(weight.dim() - 2)]
    if len(spatial) == 1:
        weight, spatial = weight.unsqueeze(2), [[], *spatial]
    shape = c.by_label(["n"], *spatial, ["g", "c"])
    stride, padding, dilation, output_padding = (
        _spread(value, fill, len(spatial))
        for value, fill in ((stride, 1), (padding, 0), (dilation, 1), (output_padding, 0))
    )
    outputs, inputs = c.permutation(c.result, "g", "c"), c.permutation(0, "g", "c")
    physical = _relaid_weight(weight, inputs, outputs, groups, bool(transposed))
    operands_ = (
        c.take(0, shape),
        c.constant(physical, 1),
        c.constant(None if bias is None else bias[outputs], 2),
    )
    dialect = torch.ops.dimorder
    if transposed:
        rest: tuple[Any, ...]
        target, rest = (
            dialect.conv_transpose2d_nhwc.default,
            (stride, padding, output_padding, dilation, groups),
        )
    else:
        sides = [side for amount in padding for side in (amount, amount)]
        target = dialect.conv2d_nhwc.default if len(spatial) == 2 else dialect.conv3d_ndhwc.default
        rest = (stride, sides, dilation, groups)
    c.give(c.b.call(target, *operands_, *rest), shape)


def _relaid_weight(
    weight: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor, groups: int, transposed: bool
) -> torch.Tensor:
    """The weight (O, kernel…, I / groups) for channels that lie in another order; groups move as wholes."""
    if transposed:  # (I, O / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    else:  # (O, I / groups, kernel…)
        grouped = weight.unflatten(0, (groups, -1))
    per_out, per_in = grouped.shape[1], grouped.shape[2]
    blocks = outputs.reshape(groups, per_out)
    group, within_out = blocks[:, 0] // per_out, blocks[0] % per_out
    within_in = inputs.reshape(groups, per_in)[0] % per_in
    relaid: torch.Tensor = grouped[group][:, within_out][:, :, within_in]
    return relaid.flatten(0, 1).movedim(1, -1).contiguous()


def _spatial(c: _Call) -> None:
    shape = c.by_label(["n"], ["s.0"], ["s.1"], ["c"])
    target, arguments = _SPATIAL[c.target](c.node)
    c.give(c.b.call(target, c.take(0, shape), *arguments), shape)


def _max_pool_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    kernel, stride, padding, dilation, ceil_mode = _filled(_args(node)[1:], (None, None, 0, 1, False))
    kernel = _spread(kernel, 1, 2)
    return torch.ops.dimorder.max_pool2d_nhwc.default, [
        kernel,
        _spread(stride, 1, 2) if stride else kernel,
        _spread(padding, 0, 2),
        _spread(dilation, 1, 2),
        ceil_mode,
    ]


def _avg_pool_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    kernel, stride, padding, ceil_mode, include, divisor = _filled(
        _args(node)[1:], (None, None, 0, False, True, None)
    )
    kernel = _spread(kernel, 1, 2)
    return torch.ops.dimorder.avg_pool2d_nhwc.default, [
        kernel,
        _spread(stride, 1, 2) if stride else kernel,
        _spread(padding, 0, 2),
        ceil_mode,
        include,
        divisor,
    ]


def _bilinear_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    size = list(_shape(node)[2:])
    return torch.ops.dimorder.upsample_bilinear2d_nhwc.default, [size, _args(node)[2], *_scales(node)]


def _nearest_arguments(node: torch.fx.Node) -> tuple[Any, list[Any]]:
    return torch.ops.dimorder.upsample_nearest2d_nhwc.default, [list(_shape(node)[2:]), *_scales(node)]


def _scales(node: torch.fx.Node) -> list[float | None]:
    """The scale factors that the `.vec` overloads carry last; sizes alone decide where there are none."""
    factors = _args(node)[-1] if str(node.target).endswith(".vec") else None
    return list(factors) if factors else [None, None]


_SPATIAL: dict[Any, Callable[[torch.fx.Node], tuple[Any, list[Any]]]] = {
    aten.max_pool2d.default: _max_pool_arguments,
    aten.avg_pool2d.default: _avg_pool_arguments,
    aten.upsample_bilinear2d.vec: _bilinear_arguments,
    aten.upsample_nearest2d.vec: _nearest_arguments,
}

_LOWERINGS: dict[Any, Callable[[_Call], None]] = {
    aten._prelu_kernel.default: _prelu,
    aten.expand.default: _expand,
    aten.reshape.default: _relabel,
    aten.permute.default: _relabel,
    **dict.fromkeys((aten.mean.dim, aten.sum.dim_IntList, aten.amax.default, aten.amin.default), _reduce),
    **dict.fromkeys((aten.argmax.default, aten.argmin.default), _index_reduce),
    **dict.fromkeys((aten.softmax.int, aten.log_softmax.int), _softmax),
    aten.cumsum.default: _cumulative,
    aten.layer_norm.default: _layer_norm,
    aten.cat.default: _cat,
    aten.slice.Tensor: _slice,
    aten.constant_pad_nd.default: _pad,
    aten.flip.default: _flip,
    aten.linear.default: _linear,
    aten.matmul.default: _matmul,
    aten.convolution.default: _convolution,
    **dict.fromkeys(_SPATIAL, _spatial),
}


def _getitem(value: Any, index: int) -> Any:
    return value[index]


def _same_constant(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _is_named(token: Token, name: str) -> bool:
    return any(part == name or part.startswith(f"{name}.") for part in token[0].split("+"))


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in node.meta["val"].shape)


def _spread(value: Any, fill: int, rank: int) -> list[int]:
    """One value per spatial dimension; a dimension that was added in front gets `fill`."""
    values = [value] * rank if isinstance(value, int) else list(value)
    return [fill] * (rank - len(values)) + values


def _filled(given: Sequence[Any], defaults: Sequence[Any]) -> list[Any]:
    return [*given, *defaults[len(given) :]]


def _boundary_order(spec: TensorSpec) -> DimOrder:
    """The order of the dense tensor behind a boundary, over the logical dimensions."""
    return spec.dim_order if spec.boundary == "physical" else spec.boundary_order


def _common_runs(source: Order, target: Order) -> tuple[Run, ...]:
    """Axes grouped as far as they stay together in both orders, in the source's order."""
    position = {axis: i for i, axis in enumerate(target)}
    runs: list[list[int]] = []
    for axis in source:
        if runs and position[axis] == position[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return tuple(tuple(run) for run in runs)


def _args(node: torch.fx.Node) -> Any:
    """A node's arguments; torch types them as everything that an argument could be."""
    return node.args
