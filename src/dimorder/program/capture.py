"""Decides the normal form in which a network is planned: one functional graph of few ATen operators.

Constant subgraphs are evaluated, batch-norms folded, reshapes spelt `reshape` and `permute`, splits spelt
`slice`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from dimorder.errors import UnsupportedError, UsageError

aten = torch.ops.aten

Value = Any  # a graph node, a constant tensor, or a plain Python argument


@dataclass(frozen=True)
class Program:
    """A captured network: a functional graph whose placeholders are the user's inputs and whose constants are
    attributes.

    `example_inputs` are the flattened tensors the network was captured with; `out_spec` restores the
    structure of the result. `exported` is the program as it was exported, which is what "the same numbers"
    means.
    """

    module: torch.fx.GraphModule
    example_inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    out_spec: pytree.TreeSpec
    exported: ExportedProgram

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def inputs(self) -> list[torch.fx.Node]:
        return [node for node in self.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[torch.fx.Node]:
        return list(self.module.graph.output_node().args[0])  # type: ignore[arg-type]

    @property
    def constant_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.module.buffers())

    def constant(self, node: torch.fx.Node) -> torch.Tensor:
        """The tensor behind a `get_attr` node."""
        return getattr(self.module, str(node.target))  # type: ignore[no-any-return]


def capture(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """Export `model` with example arguments and bring it into normal form.

    `model` may be a module (exported in eval mode), an `ExportedProgram`, or the path of a `.pt2` file; for
    the last two, missing `args` are taken from the program's own example inputs.
    """
    exported = _export(model, args, kwargs)
    _refuse_state(exported)
    return _Normaliser(exported.run_decompositions({}), exported).run()


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """A module in eval mode, and afterwards each part in its own mode again; a program has but one."""
    parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [part.training for part in parts]
    for part in parts:
        part.training = False
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def where(node: torch.fx.Node) -> str:
    """Where in the user's source an operator comes from: `file.py:12, in features.0`."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(modules[-1][0]) if modules else ""
    for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
        line = line.strip()
        if line.startswith("File ") and "/torch/nn/modules/" not in line:
            path, number = line.split('"')[1], line.split("line ")[1].split(",")[0]
            return f"{Path(path).name}:{number}" + (f", in {module}" if module else "")
    return module or node.name


def operator_name(node: torch.fx.Node) -> str:
    """The operator as a reader knows it: `aten.convolution`, `input x`, `output`."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    return str(node.target).removesuffix(".default")


def _export(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> ExportedProgram:
    if isinstance(model, (str, Path)):
        try:
            model = torch.export.load(str(model))
        except Exception as error:
            raise UsageError(
                str(model),
                f"not a readable exported program: {error}",
                "save it again with torch.export.save",
            ) from error
    if isinstance(model, ExportedProgram):
        return model
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "model",
            f"{type(model).__name__} is neither a torch.nn.Module nor an ExportedProgram",
            "pass one of these",
        )
    try:
        with torch.no_grad(), eval_mode(model):
            return torch.export.export(model, tuple(args), dict(kwargs or {}))
    except UnsupportedError:
        raise
    except Exception as error:
        reason = next(
            (line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__
        )
        raise UnsupportedError(
            f"torch.export of {type(model).__name__}",
            f"{type(error).__name__}: {reason}",
            "make the module exportable, and check --input shapes",
        ) from error


def _refuse_state(exported: ExportedProgram) -> None:
    for spec in exported.graph_signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise UnsupportedError(
                f"output {spec.target or spec.arg.name}",
                f"the program writes state ({spec.kind.name})",
                "return the new state as an output instead",
            )
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape):
            raise UnsupportedError(
                f"{operator_name(node)} ({where(node)})",
                f"symbolic shape {tuple(value.shape)}",
                "export with static shapes",
            )


class _Normaliser:
    """Re-traces an exported graph operator by operator; operators over constants alone are evaluated on the
    way."""

    def __init__(self, exported: ExportedProgram, original: ExportedProgram) -> None:
        self.exported, self.original = exported, original
        self.graph = torch.fx.Graph()
        self.attributes: dict[str, torch.Tensor] = {}
        self.attribute_nodes: dict[int, torch.fx.Node] = {}
        self.kept: list[torch.Tensor] = []  # keeps ids of constants unique while tracing
        self.names: dict[int, str] = {}
        self.meta: dict[str, Any] = {}

    def run(self) -> Program:
        env: dict[torch.fx.Node, Value] = {}
        user_inputs = self._bind_inputs(env)
        for node in self.exported.graph.nodes:
            if node.op == "call_function":
                self.meta = {
                    key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta
                }
                self.node = node
                args, kwargs = pytree.tree_map_only(torch.fx.Node, env.__getitem__, (node.args, node.kwargs))
                env[node] = self.call(node.target, args, kwargs)
        results: Any = self.exported.graph.output_node().args[0]
        self.meta = {}
        outputs = []
        for result in results:
            if not isinstance(result, torch.fx.Node):
                raise UnsupportedError(
                    "output", f"the network returns the constant {result!r}", "return tensors only"
                )
            outputs.append(self.as_node(env[result]))
        self.graph.output(tuple(outputs))
        self.graph.eliminate_dead_code()
        root = torch.nn.Module()
        used = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        for name, tensor in self.attributes.items():
            if name in used:
                root.register_buffer(name, tensor)
        module = torch.fx.GraphModule(root, self.graph)
        flat = [
            leaf
            for leaf in pytree.tree_leaves(self.exported.example_inputs)
            if isinstance(leaf, torch.Tensor)
        ]
        return Program(
            module, tuple(flat), tuple(user_inputs), self.exported.call_spec.out_spec, self.original
        )

    def _bind_inputs(self, env: dict[torch.fx.Node, Value]) -> list[str]:
        signature, state = (
            self.exported.graph_signature,
            {**self.exported.state_dict, **self.exported.constants},
        )
        placeholders = {node.name: node for node in self.exported.graph.nodes if node.op == "placeholder"}
        names = []
        for spec in signature.input_specs:
            node = placeholders[spec.arg.name]
            if spec.kind != InputKind.USER_INPUT:
                constant = state[spec.target].detach()
                self.names[id(constant)] = spec.target.replace(".", "_")
                self.kept.append(constant)
                env[node] = constant
            elif isinstance(node.meta.get("val"), torch.Tensor):
                if node.meta["val"].numel() == 0:
                    shape = tuple(node.meta["val"].shape)
                    raise UnsupportedError(
                        f"input {node.name}", f"shape {shape} has no elements", "leave it out"
                    )
                env[node] = self.graph.placeholder(node.name)
                env[node].meta["val"] = _without_data(node.meta["val"])
                names.append(node.name)
            else:
                env[node] = node.meta.get("val")
        return names

    # -- emitting
    # ---------------------------------------------------------------------------------------------------

    def call(self, target: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """Evaluate, rewrite into normal form, or copy one operator; assertions, which return nothing, are
        dropped."""
        if isinstance(target, torch._ops.OpOverload) and not target._schema.returns:
            return None
        leaves = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(leaf, torch.fx.Node) for leaf in leaves) and _deterministic(target):
            with torch.no_grad():
                return target(*args, **kwargs)
        rewrite = _REWRITES.get(target)
        if rewrite is None:
            return self.emit(target, *args, **kwargs)
        return rewrite(self, *args, **kwargs)

    def emit(self, target: Any, *args: Value, **kwargs: Value) -> Value:
        """Copy one operator. What has no elements is a constant, whatever it was made from."""
        nodes = pytree.tree_map_only(torch.Tensor, self.as_node, (args, kwargs))
        metas = pytree.tree_map_only(torch.fx.Node, lambda n: n.meta["val"], nodes)
        with torch.no_grad():
            value = pytree.tree_map_only(torch.Tensor, _without_data, target(*metas[0], **metas[1]))
        if isinstance(value, torch.Tensor) and value.numel() == 0:
            return torch.empty(tuple(value.shape), dtype=value.dtype)
        node = self.graph.call_function(target, *nodes)
        node.meta.update(self.meta, val=value)
        return node

    def as_node(self, value: Value) -> torch.fx.Node:
        if isinstance(value, torch.fx.Node):
            return value
        if id(value) not in self.attribute_nodes:
            self.kept.append(value)
            name = self.names.get(id(value), f"constant_{len(self.attributes)}")
            self.attributes[name] = value.detach().contiguous()
            node = self._at_top(lambda: self.graph.get_attr(name))
            node.meta["val"] = _without_data(value)
            self.attribute_nodes[id(value)] = node
        return self.attribute_nodes[id(value)]

    def _at_top(self, make: Callable[[], torch.fx.Node]) -> torch.fx.Node:
        first = next((node for node in self.graph.nodes if node.op == "call_function"), None)
        if first is None:
            return make()
        with self.graph.inserting_before(first):
            return make()


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of a tensor, dense: predicted strides lie, and would make later views fail."""
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


_RANDOM = (
    aten.rand.default,
    aten.randn.default,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.bernoulli.default,
)


def _deterministic(target: Any) -> bool:
    return target not in _RANDOM


def _shape(value: Value) -> tuple[int, ...]:
    tensor = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    return tuple(tensor.shape)


def _dtype(value: Value) -> torch.dtype:
    tensor = value.meta["val"] if isinstance(value, torch.fx.Node) else value
    return tensor.dtype  # type: ignore[no-any-return]


# -- rewrites: one small function per spelling
# ------------------------------------------------------------------------


def _same(n: _Normaliser, x: Value, *_args: Value, **_kwargs: Value) -> Value:
    return x


def _dropout(n: _Normaliser, x: Value, p: float, train: bool) -> Value:
    return x if not train or p == 0 else n.emit(aten.dropout.default, x, p, train)


def _to_copy(n: _Normaliser, x: Value, **kwargs: Value) -> Value:
    dtype = kwargs.get("dtype")
    return x if dtype in (None, _dtype(x)) else n.emit(aten._to_copy.default, x, dtype=dtype)


def _view(n: _Normaliser, x: Value, shape: Sequence[int]) -> Value:
    sizes = [int(size) for size in shape]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(_shape(x)) // max(known, 1)
    if tuple(sizes) == _shape(x):
        return x
    if isinstance(x, torch.Tensor):
        return x.reshape(sizes)
    return n.emit(aten.reshape.default, x, sizes)


def _permute(n: _Normaliser, x: Value, dims: Sequence[int]) -> Value:
    rank = len(_shape(x))
    dims = [dim % rank for dim in dims]
    return x if dims == list(range(rank)) else n.emit(aten.permute.default, x, dims)


def _transpose(n: _Normaliser, x: Value, dim0: int, dim1: int) -> Value:
    dims = list(range(len(_shape(x))))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return _permute(n, x, dims)


def _t(n: _Normaliser, x: Value) -> Value:
    return _permute(n, x, list(reversed(range(len(_shape(x))))))


def _unsqueeze(n: _Normaliser, x: Value, dim: int) -> Value:
    shape = list(_shape(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return _view(n, x, shape)


def _squeeze(n: _Normaliser, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    shape = _shape(x)
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    drop = {d % max(len(shape), 1) for d in dims}
    return _view(n, x, [size for d, size in enumerate(shape) if not (d in drop and size == 1)])


def _flatten(n: _Normaliser, x: Value, start: int = 0, end: int = -1) -> Value:
    shape = list(_shape(x))
    start, end = start % len(shape), end % len(shape)
    return _view(n, x, [*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]])


def _expand(n: _Normaliser, x: Value, shape: Sequence[int], implicit: bool = False) -> Value:
    old = (1,) * (len(shape) - len(_shape(x))) + _shape(x)
    sizes = [before if size == -1 else int(size) for before, size in zip(old, shape, strict=True)]
    x = _view(n, x, old)
    return x if tuple(sizes) == old else n.emit(aten.expand.default, x, sizes)


def _slice(
    n: _Normaliser, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Value:
    shape = _shape(x)
    dim = dim % len(shape)
    begin, stop, step = slice(start, end, step).indices(shape[dim])
    kept = range(begin, stop, step)
    if len(kept) == shape[dim]:
        return x
    if len(kept) <= 1:
        return n.emit(aten.slice.Tensor, x, dim, begin, begin + len(kept), 1)
    return n.emit(aten.slice.Tensor, x, dim, begin, kept[-1] + 1, step)


def _select(n: _Normaliser, x: Value, dim: int, index: int) -> Value:
    dim = dim % len(_shape(x))
    index = index % _shape(x)[dim]
    return _squeeze(n, _slice(n, x, dim, index, index + 1), dim)


def _unbind(n: _Normaliser, x: Value, dim: int = 0) -> Value:
    return [_select(n, x, dim, index) for index in range(_shape(x)[dim])]


def _split_sizes(n: _Normaliser, x: Value, sizes: Sequence[int], dim: int = 0) -> Value:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_slice(n, x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split(n: _Normaliser, x: Value, size: int, dim: int = 0) -> Value:
    total = _shape(x)[dim]
    return _split_sizes(n, x, [min(size, total - begin) for begin in range(0, total, size)], dim)


def _chunk(n: _Normaliser, x: Value, chunks: int, dim: int = 0) -> Value:
    return _split(n, x, -(-_shape(x)[dim] // chunks), dim)


def _getitem(n: _Normaliser, x: Value, index: int) -> Value:
    return x[index] if isinstance(x, (list, tuple)) else n.emit(operator.getitem, x, index)


def _cat(n: _Normaliser, tensors: Sequence[Value], dim: int = 0) -> Value:
    parts = [t for t in tensors if 0 not in _shape(t)]
    dim = dim % len(_shape(parts[0]))
    return parts[0] if len(parts) == 1 else n.emit(aten.cat.default, parts, dim)


def _stack(n: _Normaliser, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = dim % (len(_shape(tensors[0])) + 1)
    return _cat(n, [_unsqueeze(n, t, dim) for t in tensors], dim)


def _roll(n: _Normaliser, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        return _view(n, _roll(n, _view(n, x, [math.prod(_shape(x))]), shifts, [0]), _shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        size = _shape(x)[dim]
        cut = -shift % size
        if cut:
            x = _cat(n, [_slice(n, x, dim, cut, size), _slice(n, x, dim, 0, cut)], dim)
    return x


def _pad(
    n: _Normaliser, x: Value, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Value:
    if not any(pad):
        return x
    if mode != "constant":
        return n.emit(aten.pad.default, x, pad, mode, value)
    return n.emit(aten.constant_pad_nd.default, x, list(pad), value or 0.0)


def _constant_pad(n: _Normaliser, x: Value, pad: Sequence[int], value: float = 0.0) -> Value:
    return _pad(n, x, pad, "constant", value)


def _new_filled(fill: float) -> Callable[..., Value]:
    def rewrite(
        n: _Normaliser,
        x: Value,
        size: Sequence[int],
        *_: Value,
        dtype: torch.dtype | None = None,
        **__: Value,
    ) -> Value:
        return torch.full(list(size), fill, dtype=dtype or _dtype(x))

    return rewrite


def _like_filled(fill: float) -> Callable[..., Value]:
    def rewrite(n: _Normaliser, x: Value, *_: Value, dtype: torch.dtype | None = None, **__: Value) -> Value:
        return torch.full(list(_shape(x)), fill, dtype=dtype or _dtype(x))

    return rewrite


def _conv(rank: int, transposed: bool) -> Callable[..., Value]:
    def spread(value: Value) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * rank if len(values) == 1 else values

    def conv(
        n: _Normaliser,
        x: Value,
        w: Value,
        b: Value = None,
        stride: Value = 1,
        padding: Value = 0,
        *rest: Value,
    ) -> Value:
        if transposed:
            output_padding, groups, dilation = _filled(rest, (0, 1, 1))
        else:
            output_padding, (dilation, groups) = 0, _filled(rest, (1, 1))
        unbatched = len(_shape(x)) == rank + 1
        if unbatched:
            x = _unsqueeze(n, x, 0)
        if isinstance(padding, str):
            x, padding = _named_padding(n, x, w, padding, spread(dilation))
        y = n.emit(
            aten.convolution.default,
            x,
            w,
            b,
            spread(stride),
            spread(padding),
            spread(dilation),
            transposed,
            spread(output_padding),
            groups,
        )
        return _squeeze(n, y, 0) if unbatched else y

    return conv


def _filled(given: Sequence[Value], defaults: Sequence[Value]) -> list[Value]:
    return [*given, *defaults[len(given) :]]


def _named_padding(
    n: _Normaliser, x: Value, w: Value, padding: str, dilation: list[int]
) -> tuple[Value, list[int]]:
    totals = [0 if padding == "valid" else d * (k - 1) for d, k in zip(dilation, _shape(w)[2:], strict=True)]
    if all(total % 2 == 0 for total in totals):
        return x, [total // 2 for total in totals]
    pads = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return _pad(n, x, pads), [0] * len(totals)


def _batch_norm(
    n: _Normaliser, x: Value, weight: Value, bias: Value, mean: Value, var: Value, momentum: float, eps: float
) -> Value:
    if any(isinstance(v, torch.fx.Node) for v in (weight, bias, mean, var)):
        return [n.emit(aten.batch_norm.default, x, weight, bias, mean, var, False, momentum, eps, False)]
    scale = torch.rsqrt(var.double() + eps) * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    folded = _fold_into_conv(n, x, scale, shift)
    if folded is not None:
        return [folded]
    shape = [-1] + [1] * (len(_shape(x)) - 2)
    scaled = n.emit(aten.mul.Tensor, x, scale.to(_dtype(x)).reshape(shape))
    return [n.emit(aten.add.Tensor, scaled, shift.to(_dtype(x)).reshape(shape))]


def _fold_into_conv(n: _Normaliser, x: Value, scale: torch.Tensor, shift: torch.Tensor) -> Value:
    """The convolution before a batch-norm with the batch-norm's scale and shift in its constants, or None."""
    if x.target is not aten.convolution.default or len(n.node.args[0].users) > 1:
        return None
    source, w, b, *rest = x.args
    if w.op != "get_attr" or (b is not None and b.op != "get_attr"):
        return None
    transposed, groups = rest[3], rest[5]
    weight = n.attributes[w.target].double()
    if transposed:
        per_group = (
            scale.reshape(groups, 1, -1)
            .expand(groups, weight.shape[0] // groups, -1)
            .reshape(weight.shape[0], -1)
        )
        weight = weight * per_group.reshape(*per_group.shape, *[1] * (weight.dim() - 2))
    else:
        weight = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    offset = shift if b is None else shift + n.attributes[b.target].double() * scale
    dtype = _dtype(x)
    weight, offset = weight.to(dtype), offset.to(dtype)
    n.names[id(weight)], n.names[id(offset)] = f"{w.target}_folded", f"{w.target}_folded_bias"
    folded = n.emit(aten.convolution.default, source, weight, offset, *rest)
    folded.meta.update({key: x.meta[key] for key in ("stack_trace", "nn_module_stack") if key in x.meta})
    return folded


def _first_of_batch_norm(
    n: _Normaliser,
    x: Value,
    w: Value,
    b: Value,
    mean: Value,
    var: Value,
    training: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Value:
    if training:
        return n.emit(aten.batch_norm.default, x, w, b, mean, var, training, momentum, eps, False)
    return _batch_norm(n, x, w, b, mean, var, momentum, eps)[0]


def _group_norm(
    n: _Normaliser,
    x: Value,
    groups: int,
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Value:
    """From parts: its groups are pieces of the channels, which only axes can tell."""
    batch, channels, *rest = _shape(x)
    grouped = _view(n, x, [batch, groups, channels // groups, *rest])
    dims = list(range(2, len(_shape(grouped))))
    centred = n.emit(aten.sub.Tensor, grouped, n.emit(aten.mean.dim, grouped, dims, True))
    variance = n.emit(aten.mean.dim, n.emit(aten.mul.Tensor, centred, centred), dims, True)
    scaled = n.emit(
        aten.mul.Tensor, centred, n.emit(aten.rsqrt.default, n.emit(aten.add.Tensor, variance, eps))
    )
    y = _view(n, scaled, _shape(x))
    for target, value in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if value is not None:
            y = n.emit(target, y, _view(n, value, [channels] + [1] * len(rest)))
    return y


def _instance_norm(
    n: _Normaliser,
    x: Value,
    weight: Value,
    bias: Value,
    mean: Value,
    var: Value,
    use_input: bool,
    momentum: float,
    eps: float,
    _cudnn: bool,
) -> Value:
    if not use_input:
        return _batch_norm(n, x, weight, bias, mean, var, momentum, eps)[0]
    return _group_norm(n, x, _shape(x)[1], weight, bias, eps)


def _adaptive_avg_pool(rank: int) -> Callable[..., Value]:
    pool = {1: aten.avg_pool1d.default, 2: aten.avg_pool2d.default, 3: aten.avg_pool3d.default}[rank]
    same = {
        1: aten.adaptive_avg_pool1d.default,
        2: aten.adaptive_avg_pool2d.default,
        3: aten.adaptive_avg_pool3d.default,
    }[rank]

    def rewrite(n: _Normaliser, x: Value, size: Sequence[int]) -> Value:
        spatial = _shape(x)[-rank:]
        if all(s == 1 for s in size):
            return n.emit(aten.mean.dim, x, list(range(-rank, 0)), True)
        if tuple(size) == spatial:
            return x
        if any(full % part for full, part in zip(spatial, size, strict=True)):
            return n.emit(same, x, list(size))
        kernel = [full // part for full, part in zip(spatial, size, strict=True)]
        return n.emit(pool, x, kernel, kernel)

    return rewrite


def _mean(n: _Normaliser, x: Value, dtype: torch.dtype | None = None) -> Value:
    return n.emit(aten.mean.dim, x, list(range(len(_shape(x)))), False)


def _as_strided(
    n: _Normaliser, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    dense = [math.prod(size[i + 1 :]) for i in range(len(size))]
    moved = [(s, d) for s, d, extent in zip(stride, dense, size, strict=True) if extent != 1]
    if math.prod(size) == math.prod(_shape(x)) and not offset and all(s == d for s, d in moved):
        return _view(n, x, size)
    raise UnsupportedError(
        "aten.as_strided",
        f"sizes {list(size)}, strides {list(stride)} read memory directly",
        "write it as view, permute or slice",
    )


def _addmm(n: _Normaliser, bias: Value, x: Value, w: Value, *, beta: float = 1, alpha: float = 1) -> Value:
    if beta != 1 or alpha != 1 or isinstance(w, torch.fx.Node) or len(_shape(bias)) != 1:
        return n.emit(aten.addmm.default, bias, x, w, beta=beta, alpha=alpha)
    return n.emit(aten.linear.default, x, w.t(), bias)


def _attention(
    n: _Normaliser,
    q: Value,
    k: Value,
    v: Value,
    mask: Value = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p or enable_gqa:
        raise UnsupportedError(
            "aten.scaled_dot_product_attention",
            f"dropout_p={dropout_p}, enable_gqa={enable_gqa}",
            "export in eval mode, repeat the keys",
        )
    factor = 1.0 / math.sqrt(_shape(q)[-1]) if scale is None else scale
    scores = n.call(
        aten.matmul.default, (n.call(aten.mul.Tensor, (q, factor), {}), _transpose(n, k, -2, -1)), {}
    )
    if is_causal:
        mask = torch.ones(_shape(q)[-2], _shape(k)[-2], dtype=torch.bool).tril()
    if mask is not None and _dtype(mask) == torch.bool:
        if isinstance(mask, torch.fx.Node):
            blocked = torch.tensor(float("-inf"), dtype=_dtype(q))
            scores = n.emit(aten.where.self, mask, scores, blocked)
            mask = None
        else:
            mask = torch.zeros(mask.shape, dtype=_dtype(q)).masked_fill(~mask, float("-inf"))
    if mask is not None:
        scores = n.emit(aten.add.Tensor, scores, mask)
    weights = n.emit(aten.softmax.int, scores, -1)
    return n.call(aten.matmul.default, (weights, v), {})


def _matmul(n: _Normaliser, a: Value, b: Value) -> Value:
    rank_a, rank_b = len(_shape(a)), len(_shape(b))
    if isinstance(b, torch.Tensor) and rank_b == 2 and rank_a >= 2:
        return n.emit(aten.linear.default, a, b.t())
    if min(rank_a, rank_b) < 2:
        return n.emit(aten.matmul.default, a, b)
    rank = max(rank_a, rank_b)
    a, b = _view(n, a, (1,) * (rank - rank_a) + _shape(a)), _view(n, b, (1,) * (rank - rank_b) + _shape(b))
    return n.emit(aten.matmul.default, a, b)


def _max_pool_with_indices(n: _Normaliser, x: Value, *args: Value) -> Value:
    if any(user.args[1] == 1 for user in n.node.users):
        return n.emit(aten.max_pool2d_with_indices.default, x, *args)
    return [n.emit(aten.max_pool2d.default, x, *args)]


def _prelu(n: _Normaliser, x: Value, w: Value) -> Value:
    rank = len(_shape(x))
    if rank > 1:
        w = _view(n, w, [-1] + [1] * (rank - 2))
    return n.emit(aten._prelu_kernel.default, x, w)


_REWRITES: dict[Any, Callable[..., Value]] = {
    **dict.fromkeys(
        (
            aten.clone.default,
            aten.alias.default,
            aten.detach.default,
            aten.contiguous.default,
            aten.lift_fresh_copy.default,
            aten.detach_.default,
        ),
        _same,
    ),
    aten.dropout.default: _dropout,
    aten._to_copy.default: _to_copy,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.unsqueeze.default: _unsqueeze,
    aten.squeeze.default: _squeeze,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
    aten.flatten.using_ints: _flatten,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.unbind.int: _unbind,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split_sizes,
    aten.chunk.default: _chunk,
    operator.getitem: _getitem,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.roll.default: _roll,
    aten.pad.default: _pad,
    aten.constant_pad_nd.default: _constant_pad,
    aten.new_zeros.default: _new_filled(0),
    aten.new_ones.default: _new_filled(1),
    aten.zeros_like.default: _like_filled(0),
    aten.ones_like.default: _like_filled(1),
    aten.conv1d.default: _conv(1, transposed=False),
    aten.conv2d.default: _conv(2, transposed=False),
    aten.conv3d.default: _conv(3, transposed=False),
    aten.conv1d.padding: _conv(1, transposed=False),
    aten.conv2d.padding: _conv(2, transposed=False),
    aten.conv3d.padding: _conv(3, transposed=False),
    aten.conv_transpose1d.default: _conv(1, transposed=True),
    aten.conv_transpose2d.input: _conv(2, transposed=True),
    aten.conv_transpose3d.input: _conv(3, transposed=True),
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.batch_norm.default: _first_of_batch_norm,
    aten.group_norm.default: _group_norm,
    aten.instance_norm.default: _instance_norm,
    aten.adaptive_avg_pool1d.default: _adaptive_avg_pool(1),
    aten.adaptive_avg_pool2d.default: _adaptive_avg_pool(2),
    aten.adaptive_avg_pool3d.default: _adaptive_avg_pool(3),
    aten._adaptive_avg_pool2d.default: _adaptive_avg_pool(2),
    aten._adaptive_avg_pool3d.default: _adaptive_avg_pool(3),
    aten.mean.default: _mean,
    aten.as_strided.default: _as_strided,
    aten.addmm.default: _addmm,
    aten.scaled_dot_product_attention.default: _attention,
    aten.matmul.default: _matmul,
    aten.bmm.default: _matmul,
    aten.mm.default: _matmul,
    aten.max_pool2d_with_indices.default: _max_pool_with_indices,
    aten.prelu.default: _prelu,
}
