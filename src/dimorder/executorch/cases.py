"""List the operator calls to probe, with their shapes and orders: one row per call.

`probe` runs them to measure kernels. `sweep` runs them through a delegate author's own lowering.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Sizes that all differ, and divide into groups, pixel shuffles and halves. The last two shapes have dims of
# size 1.
SHAPES: dict[str, tuple[int, ...]] = {
    "3": (3, 8, 6),
    "4": (3, 8, 6, 10),
    "5": (3, 8, 4, 6, 10),
    "4, C=1": (3, 1, 6, 10),
    "4, H=W=1": (3, 8, 1, 1),
}
# The orders of the operands. "mixed": the first is channels-last. "mixed, rest": all but the first are.
# "weights": the parameters are channels-last and the inputs contiguous.
ORDERS = ("contiguous", "channels_last", "mixed", "mixed, rest", "weights")

# By operand name: its shape, from the shape of the probe, and its values. A capital letter is a parameter.
_OPERANDS: dict[str, tuple[Callable[[tuple[int, ...]], tuple[int, ...]], str]] = {
    "x": (lambda shape: shape, "float"),
    "y": (lambda shape: shape, "float"),
    "p": (lambda shape: shape, "positive"),
    "q": (lambda shape: shape, "positive"),
    "j": (lambda shape: shape, "int"),
    "k": (lambda shape: shape, "int"),
    "m": (lambda shape: shape, "bool"),
    "n": (lambda shape: shape, "bool"),
    "b": (lambda shape: (1, shape[1], *(1 for _ in shape[2:])), "float"),
    "v": (lambda shape: shape[-1:], "float"),
    "s": (lambda shape: (), "float"),
    "t": (lambda shape: (*shape[:-2], shape[-1], shape[-2]), "float"),
    "i": (lambda shape: (2,), "index"),
    "h": (lambda shape: shape, "index"),
    "f": (lambda shape: (shape[0], 5, 7, 2), "unit"),
    "W": (lambda shape: (16, shape[1], *(3 for _ in shape[2:])), "float"),
    "D": (lambda shape: (2 * shape[1], 1, *(3 for _ in shape[2:])), "float"),
    "T": (lambda shape: (shape[1], 5, *(3 for _ in shape[2:])), "float"),
    "O": (lambda shape: (16, shape[1], *(1 for _ in shape[2:])), "float"),
    "G": (lambda shape: (16,), "float"),
    "C": (lambda shape: shape[1:2], "positive"),
    "E": (lambda shape: shape[1:2], "positive"),
    "V": (lambda shape: shape[-1:], "float"),
    "L": (lambda shape: (11, shape[-1]), "float"),
    "M": (lambda shape: (11,), "float"),
    "B": (lambda shape: shape, "float"),
}

_UNARY = (
    "abs ceil cos cosh erf exp expm1 floor neg relu round sigmoid sign sin sinh tan tanh trunc "
    "atan asinh isinf isnan logical_not gelu silu hardswish hardsigmoid hardtanh leaky_relu elu selu celu "
    "softplus mish relu6 square isfinite log_sigmoid deg2rad frac"
)
_POSITIVE = "log log10 log1p log2 sqrt rsqrt reciprocal acos asin atanh logit lgamma digamma erfinv"
_BINARY = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor maximum minimum atan2 fmod.Tensor remainder.Tensor "
    "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor floor_divide fmax fmin hypot rsub.Tensor"
)
_LOGICAL = "logical_and logical_or logical_xor bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"
_SCALAR = (
    "add.Scalar sub.Scalar mul.Scalar div.Scalar eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar "
    "fmod.Scalar remainder.Scalar rsub.Scalar"
)


def _convolution(
    weight: str, stride: int, padding: int, transposed: bool = False, groups: str = "1"
) -> tuple[str, str, str]:
    sizes = [f"[{size}] * (r - 2)" for size in (stride, padding, 1, int(transposed))]
    return "convolution", f"x, {weight}, {', '.join(sizes[:3])}, {transposed}, {sizes[3]}, {groups}", "345"


# Operator, arguments in terms of the operands above (r is the rank), and the ranks that it accepts.
_CALLS: tuple[tuple[str, str, str], ...] = (
    *((name, "x", "345") for name in _UNARY.split()),
    *((name, "x", "345") for name in ("zeros_like", "ones_like", "clone", "alias", "detach", "contiguous")),
    *((name, "p", "345") for name in _POSITIVE.split()),
    ("acosh", "p + 1", "345"),
    *((name, "x, y", "345") for name in _BINARY.split()),
    *((name, "x, s", "345") for name in _BINARY.split()[:6]),
    *((name, "x, b", "345") for name in _BINARY.split()[:6]),
    *((name, "x, v", "345") for name in _BINARY.split()[:4]),
    ("add.Tensor", "x, B", "345"),
    ("mul.Tensor", "b, x", "345"),
    ("mul.Tensor", "x, x", "345"),
    *((name, "m, n", "345") for name in _LOGICAL.split()),
    *((name, "x, 2.5", "345") for name in _SCALAR.split()),
    *((f"bitwise_{name}.Scalar", "j, 3", "345") for name in ("and", "or", "xor")),
    *((f"bitwise_{name}_shift.Tensor", "j, k", "345") for name in ("left", "right")),
    ("bitwise_not", "j", "345"),
    ("pow.Tensor_Scalar", "p, 1.5", "345"),
    ("pow.Tensor_Tensor", "p, y", "345"),
    ("pow.Scalar", "2.0, x", "345"),
    ("clamp", "x, -0.5, 0.5", "345"),
    ("clamp.Tensor", "x, y - 1, y + 1", "345"),
    ("prelu", "x, C", "345"),
    ("where.self", "m, x, y", "345"),
    ("where.self", "m, x, s", "345"),
    ("masked_fill.Scalar", "x, m, 2.0", "345"),
    ("lerp.Scalar", "x, y, 0.3", "345"),
    ("addcmul", "x, y, p", "345"),
    ("addcdiv", "x, y, p", "345"),
    ("native_dropout", "x, 0.5, False", "345"),
    ("copy", "x, y", "345"),
    *((name, "x, [1], True", "345") for name in ("mean.dim", "sum.dim_IntList", "amax", "amin")),
    *((name, "x, [-1], False", "345") for name in ("mean.dim", "sum.dim_IntList", "amax", "amin")),
    *((name, "x, [-2, -1], True", "45") for name in ("mean.dim", "sum.dim_IntList", "amax", "amin")),
    *((name, "x, [-2, -1], False", "45") for name in ("mean.dim", "sum.dim_IntList", "amax", "amin")),
    *((name, "x, [1], correction=1, keepdim=True", "345") for name in ("var.correction", "std.correction")),
    *((name, "x, [-2, -1], correction=0", "345") for name in ("var.correction", "var_mean.correction")),
    ("any.dims", "m, [1], True", "345"),
    ("logsumexp", "x, [1], True", "345"),
    *((name, "x, 1, True", "345") for name in ("argmax", "argmin", "max.dim", "min.dim", "prod.dim_int")),
    *((name, "x, -1", "345") for name in ("argmax", "argmin", "max.dim", "min.dim", "prod.dim_int")),
    *((name, "m, 1", "345") for name in ("any.dim", "all.dim")),
    *((name, "x", "345") for name in ("sum", "mean", "max", "min", "prod", "amax", "argmax")),
    *((name, f"x, {dim}, False", "345") for name in ("_softmax", "_log_softmax") for dim in (1, -1)),
    *((name, f"x, {dim}", "345") for name in ("cumsum", "cumprod", "unsqueeze", "glu") for dim in (1, -1)),
    *(("topk", f"x, 2, {dim}", "345") for dim in (1, -1)),
    *(("sort", f"x, {dim}", "345") for dim in (1, -1)),
    *(("flip", f"x, [{dim}]", "345") for dim in (1, -1)),
    *(("roll", f"x, [1], [{dim}]", "345") for dim in (1, -1)),
    *(("cat", f"[x, y], {dim}", "345") for dim in (0, 1, -1)),
    ("cat", "[x, B], 1", "345"),
    *(("stack", f"[x, y], {dim}", "345") for dim in (0, 1, -1)),
    *(("slice.Tensor", f"x, {dim}, 1, 3", "345") for dim in (0, 1, -1)),
    ("slice.Tensor", "x, -1, 0, 5, 2", "345"),
    *(("select.int", f"x, {dim}, 1", "345") for dim in (0, 1, -1)),
    *(("split.Tensor", f"x, 2, {dim}", "345") for dim in (1, -1)),
    ("split_with_sizes", "x, [3, 5], 1", "345"),
    *(("unbind.int", f"x, {dim}", "345") for dim in (0, 1)),
    *(("index_select", f"x, {dim}, i", "345") for dim in (0, 1, -1)),
    *(("gather", f"x, {dim}, h", "345") for dim in (1, -1)),
    ("scatter.src", "x, 1, h, y", "345"),
    ("scatter.value", "x, 1, h, 2.0", "345"),
    ("scatter_add", "x, 1, h, y", "345"),
    ("index.Tensor", "x, [None, i]", "345"),
    ("index.Tensor", "x, [i, i]", "345"),
    ("index_put", "x, [i], y[:2]", "345"),
    ("select_scatter", "x, y[:, 0], 1, 2", "345"),
    ("slice_scatter", "x, y[:, :3], 1, 2, 5", "345"),
    ("masked_scatter", "x, m, y", "345"),
    ("repeat_interleave.self_int", "x, 2, 1", "345"),
    ("repeat", "x, [2] + [1] * (r - 2) + [3]", "345"),
    ("expand", "b, [3] + list(x.shape[1:])", "345"),
    ("diagonal", "x, 0, 1, 2", "345"),
    ("tril", "x, 1", "345"),
    ("triu", "x, -1", "345"),
    ("unfold", "x, -1, 3, 2", "345"),
    ("full_like", "x, 3.0", "345"),
    ("_to_copy", "x, dtype=float64", "345"),
    ("permute", "x, [0] + list(range(2, r)) + [1]", "345"),
    ("permute", "x, [0, r - 1] + list(range(1, r - 1))", "345"),
    ("transpose.int", "x, 1, 2", "345"),
    ("view", "x.contiguous(), [3, -1]", "345"),
    ("reshape", "x, [3, -1]", "345"),
    ("reshape", "x, [3, 2, -1] + list(x.shape[2:])", "345"),
    ("flatten.using_ints", "x, 1", "345"),
    ("squeeze.dims", "x[:, :1], [1]", "345"),
    ("squeeze.dim", "x[..., :1], -1", "345"),
    ("constant_pad_nd", "x, [1, 2], 0.5", "345"),
    ("constant_pad_nd", "x, [1, 2, 2, 1], 0.5", "345"),
    ("constant_pad_nd", "x, [0, 0] * (r - 2) + [1, 2], 0.5", "345"),
    *((f"{kind}_pad1d", "x, [1, 2]", "3") for kind in ("reflection", "replication")),
    *((f"{kind}_pad2d", "x, [1, 2, 2, 1]", "4") for kind in ("reflection", "replication")),
    *((f"{kind}_pad3d", "x, [1, 2, 2, 1, 1, 2]", "5") for kind in ("reflection", "replication")),
    ("channel_shuffle", "x, 2", "345"),
    ("pixel_shuffle", "x, 2", "4"),
    ("pixel_unshuffle", "x, 2", "4"),
    _convolution("W, G", stride=1, padding=1),
    _convolution("O, None", stride=1, padding=0),
    _convolution("D, None", stride=2, padding=1, groups="x.shape[1]"),
    _convolution("T, None", stride=2, padding=1, transposed=True),
    ("linear", "x, L, M", "345"),
    ("matmul", "x, t", "345"),
    ("bmm", "x, t", "3"),
    ("mm", "x[:, 0], L.t()", "3"),
    ("addmm", "M, x[:, 0], L.t()", "3"),
    ("native_layer_norm", "x, [x.shape[-1]], V, V, 1e-5", "345"),
    ("native_layer_norm", "x, x.shape[1:], None, None, 1e-5", "345"),
    ("native_group_norm", "x.contiguous(), C, E, 3, 8, x.numel() // 24, 2, 1e-5", "345"),
    ("_native_batch_norm_legit_no_training", "x, C, E, C, E, 0.1, 1e-5", "345"),
    ("instance_norm", "x, E, C, None, None, True, 0.1, 1e-3, False", "345"),
    ("avg_pool1d", "x, [3], [2], [1]", "3"),
    ("avg_pool2d", "x, [3, 3], [2, 2], [1, 1]", "4"),
    ("avg_pool2d", "x, [2, 2], [2, 2]", "4"),
    ("avg_pool3d", "x, [2, 2, 2]", "5"),
    ("max_pool2d_with_indices", "x, [3, 3], [2, 2], [1, 1]", "4"),
    ("max_pool2d", "x, [2, 2], [2, 2]", "4"),
    ("max_pool3d", "x, [2, 2, 2]", "5"),
    ("max_pool1d", "x, [2]", "3"),
    ("_adaptive_avg_pool2d", "x, [2, 5]", "4"),
    ("_adaptive_avg_pool2d", "x, [1, 1]", "4"),
    ("adaptive_avg_pool1d", "x, [1]", "3"),
    ("adaptive_max_pool2d", "x, [2, 5]", "4"),
    ("upsample_bilinear2d.vec", "x, [12, 20], False, None", "4"),
    ("upsample_bilinear2d.vec", "x, [11, 19], True, None", "4"),
    ("upsample_nearest2d.vec", "x, [12, 20], None", "4"),
    ("upsample_nearest1d.vec", "x, [12], None", "3"),
    ("upsample_nearest3d.vec", "x, [8, 12, 20], None", "5"),
    ("upsample_bicubic2d.vec", "x, [12, 20], False, None", "4"),
    ("_upsample_bilinear2d_aa", "x, [4, 5], False", "4"),
    ("grid_sampler_2d", "x, f, 0, 0, False", "4"),
    ("im2col", "x, [2, 3], [1, 1], [0, 0], [1, 1]", "4"),
    ("embedding", "L, h[:, 0] % 11", "345"),
    ("_pdist_forward", "x[:, 0].contiguous(), 2.0", "3"),
    ("_cdist_forward", "x, y, 2.0, None", "345"),
    ("cosine_similarity", "x, y, 1", "345"),
    ("scaled_dot_product_attention", "x, y, x", "345"),
    ("mse_loss", "x, y, 0", "345"),
    ("cross", "x[:, :3], y[:, :3], 1", "345"),
    ("arange.start_step", "0, x.shape[-1], 1", "3"),
)


@dataclass(frozen=True)
class Case:
    """One call of an ATen operator, for a shape of `SHAPES` and an order of `ORDERS` of its operands.

    >>> case = Case("mul.Tensor", "x, b", "4", "channels_last")
    >>> case.module()(*case.inputs()).shape, [tuple(x.shape) for x in case.inputs()]
    (torch.Size([3, 8, 6, 10]), [(3, 8, 6, 10), (1, 8, 1, 1)])
    """

    operator: str
    call: str
    shape: str
    order: str

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that occur in the call, inputs before parameters."""
        code = compile(f"call({self.call})", self.operator, "eval")
        found = [name for name in code.co_names if name in _OPERANDS]
        return tuple(sorted(found, key=lambda name: (name.isupper(), found.index(name))))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every operand, with values seeded by its name, in the order of the case."""
        return {
            name: _with_channels_last(_operand(name, SHAPES[self.shape]), self._is_last(name))
            for name in self.names
        }

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for name, tensor in self.tensors().items() if not name.isupper())

    def module(self) -> torch.nn.Module:
        return _CaseModule(self)

    @property
    def row(self) -> tuple[str, str, str]:
        """The facts that all cases of one call share, in any order."""
        return self.operator, self.call, self.shape

    def _is_last(self, name: str) -> bool:
        inputs = [name for name in self.names if not name.isupper()]
        if self.order == "weights" or name.isupper():
            return self.order in ("weights", "channels_last") and name.isupper()
        first = name == inputs[0]
        return {
            "contiguous": False,
            "channels_last": True,
            "mixed": first,
            "mixed, rest": not first,
        }[self.order]

    def __str__(self) -> str:
        return f"{self.operator}({self.call}) rank {self.shape}, {self.order}"


def cases(operator: str | None = None) -> Iterator[Case]:
    """Return every case, or those of one operator. An order that tests nothing new for a call is omitted.

    >>> len({case.operator for case in cases()}) >= 150
    True
    >>> [case.order for case in cases("abs") if case.shape == "4"]
    ['contiguous', 'channels_last']
    """
    for name, call, ranks in _CALLS:
        if operator not in (None, name):
            continue
        for shape in SHAPES:
            if shape[0] not in ranks:
                continue
            seen = set()
            for order in ORDERS if shape.isdigit() else ORDERS[:2]:
                case = Case(name, call, shape, order)
                placed = tuple(case._is_last(n) and _has_order(n, shape) for n in case.names)
                if placed not in seen:
                    seen.add(placed)
                    yield case


class Together(torch.nn.Module):
    """The calls of several cases side by side; it takes all their inputs and returns a list of all results.

    >>> both = Together([Case("abs", "x", "4", "contiguous"), Case("neg", "x", "3", "contiguous")])
    >>> [tuple(result.shape) for result in both(*both.inputs)]
    [(3, 8, 6, 10), (3, 8, 6)]
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(case.module() for case in cases)
        given = [case.inputs() for case in cases]
        self.counts = [len(inputs) for inputs in given]
        self.inputs = tuple(itertools.chain(*given))

    def forward(self, *inputs: torch.Tensor) -> list[Any]:
        left = iter(inputs)
        return [
            part(*itertools.islice(left, count)) for part, count in zip(self.parts, self.counts, strict=True)
        ]


class _CaseModule(torch.nn.Module):
    """The call of a case as a module, with its inputs and parameters."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        packet, _, overload = case.operator.partition(".")
        found = getattr(torch.ops.aten, packet)
        self.run = getattr(found, overload) if overload else found
        self.code = compile(f"call({case.call})", str(case), "eval")
        tensors = case.tensors()
        self.inputs = [name for name in tensors if not name.isupper()]
        for name, tensor in tensors.items():
            if name.isupper():
                self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> Any:
        scope = dict(zip(self.inputs, inputs, strict=True))
        rank = max(x.dim() for x in inputs)
        parameters = dict(self.named_parameters())
        return eval(self.code, {"call": self.run, "r": rank, "float64": torch.float64, **parameters, **scope})


def _operand(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    size, kind = _OPERANDS[name]
    generator = torch.Generator().manual_seed(ord(name))
    if kind == "int":
        return torch.randint(1, 5, size(shape), generator=generator)
    if kind == "bool":
        return torch.randint(0, 2, size(shape), generator=generator).bool()
    if kind == "index":
        return torch.randint(0, min(3, *shape[1:]), size(shape), generator=generator)
    if kind == "positive":
        return torch.rand(size(shape), generator=generator) * 0.8 + 0.1
    if kind == "unit":
        return torch.rand(size(shape), generator=generator) * 2 - 1
    return torch.randn(size(shape), generator=generator)


def _with_channels_last(tensor: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """Return the tensor with channels last, if it has channels, with the strides that torch uses."""
    if not channels_last or tensor.dim() < 3:
        return tensor
    if tensor.dim() == 3:
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.to(memory_format=form)


def _has_order(name: str, shape: str) -> bool:
    return len(_OPERANDS[name][0](SHAPES[shape])) >= 3
