"""Test that we refuse for Ethos-U55 what Vela refuses: each row has a refused graph and one that is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("ethosu.vela")
pytest.importorskip("executorch")

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.plans.explanation import Place
from dimorder.targets.ethos_u.constraints import CONSTRAINTS, OF_TWO, refusals
from dimorder.targets.ethos_u.vela import compile_by_vela
from dimorder.targets.tosa.rescale import rescale
from dimorder.targets.tosa.writer import TosaValue, TosaWriter

Build = Callable[[TosaWriter], TosaValue]


def _filled(*shape: int, value: int = 3) -> torch.Tensor:
    return torch.full(shape, value, dtype=torch.int8)


def _conv(kind: str, kernel: tuple[int, int], channels: int = 5, stride: int = 1, value: int = 3) -> Build:
    def build(w: TosaWriter) -> TosaValue:
        height, width = kernel[0] + 2 * stride, kernel[1] + stride
        x = w.input("x", (1, height, width, channels), "INT8")
        shape = (7, *kernel, channels) if kind == "CONV2D" else (*kernel, channels, 1)
        outputs = 7 if kind == "CONV2D" else channels
        return _sums(w, kind, x, _filled(*shape, value=value), (1, 3, 2, outputs), stride)

    return build


def _sums(
    w: TosaWriter, kind: str, x: TosaValue, weight: torch.Tensor, shape: tuple[int, ...], stride: int
) -> TosaValue:
    zeros = [w.number(0, "INT8"), w.number(0, "INT8")]
    bias = w.constant(torch.arange(shape[-1], dtype=torch.int32))
    window = {"pad": [0] * 4, "stride": [stride] * 2, "dilation": [1, 1]}
    if kind == "TRANSPOSE_CONV2D":
        window = {"out_pad": [0] * 4, "stride": [stride] * 2}
    sums = w.op(
        kind,
        [x, w.constant(weight), bias, *zeros],
        shape,
        "INT32",
        acc_type="INT32",
        local_bound=False,
        **window,
    )
    return rescale(w, sums, [0.003], "INT8")


def _transposed(stride: int) -> Build:
    def build(w: TosaWriter) -> TosaValue:
        x = w.input("x", (1, 4, 6, 5), "INT8")
        shape = (1, 3 * stride + 3, 5 * stride + 3, 7)
        return _sums(w, "TRANSPOSE_CONV2D", x, _filled(7, 3, 3, 5), shape, stride)

    return build


def _resized(factor: int, mode: str = "NEAREST") -> Build:
    """By half-pixel centres."""

    def build(w: TosaWriter) -> TosaValue:
        x = w.input("x", (1, 3, 4, 5), "INT8")
        numbers = [w.sizes([2 * factor, 2] * 2), w.sizes([1 - factor] * 2), w.sizes([factor - 1] * 2)]
        dtype = "INT8" if mode == "NEAREST" else "INT32"
        y = w.op("RESIZE", [x, *numbers], (1, 3 * factor, 4 * factor, 5), dtype, mode=mode)
        return y if mode == "NEAREST" else rescale(w, y, [0.013], "INT8")

    return build


def _largest(channels: int, axis: int) -> Build:
    def build(w: TosaWriter) -> TosaValue:
        shape = (1, 6, 5, channels)
        x = w.input("x", shape, "INT8")
        return w.op("ARGMAX", [x], [size for d, size in enumerate(shape) if d != axis], "INT32", axis=axis)

    return build


def _gathered(w: TosaWriter) -> TosaValue:
    x, indices = w.input("x", (1, 6, 5), "INT8"), w.constant(torch.tensor([[4, 0, 2]], dtype=torch.int32))
    return w.op("GATHER", [x, indices], (1, 3, 5))


def _conv3d(depth: int) -> Build:
    def build(w: TosaWriter) -> TosaValue:
        x = w.input("x", (1, depth + 1, 5, 6, 4), "INT8")
        weight = w.constant(_filled(7, depth, 3, 3, 4))
        zeros = [w.number(0, "INT8"), w.number(0, "INT8")]
        bias = w.constant(torch.arange(7, dtype=torch.int32))
        window = {"pad": [0] * 6, "stride": [1] * 3, "dilation": [1] * 3}
        operands = [x, weight, bias, *zeros]
        sums = w.op(
            "CONV3D", operands, (1, 2, 3, 4, 7), "INT32", acc_type="INT32", local_bound=False, **window
        )
        return rescale(w, sums, [0.003], "INT8")

    return build


def _of_two(kind: str) -> Build:
    def build(w: TosaWriter) -> TosaValue:
        x, y = (rescale(w, w.input(name, (1, 6, 5), "INT8"), [1.0], "INT32") for name in ("x", "y"))
        return w.elementwise(kind, x, y, dtype="INT32" if kind == "MAXIMUM" else "BOOL")

    return build


def _selected(w: TosaWriter) -> TosaValue:
    x, y = (w.input(name, (1, 6, 5), "INT8") for name in ("x", "y"))
    return w.elementwise("SELECT", w.input("condition", (1, 6, 5), "BOOL"), x, y, dtype="INT8")


# What is refused, by which operator, and what is nearly the same and taken.
CASES: dict[str, tuple[str, Build, Build]] = {
    "depthwise stride": (
        "DEPTHWISE_CONV2D",
        _conv("DEPTHWISE_CONV2D", (3, 2), stride=4),
        _conv("DEPTHWISE_CONV2D", (3, 2), stride=3),
    ),
    "transposed": ("TRANSPOSE_CONV2D", _transposed(3), _transposed(2)),
    "resize": ("RESIZE", _resized(3), _resized(2)),
    "bilinear": ("RESIZE", _resized(4, "BILINEAR"), _resized(4)),
    "argmax": ("ARGMAX", _largest(128, 3), _largest(127, 3)),
    "argmax along": ("ARGMAX", _largest(7, 1), _largest(7, 3)),
    "gather": ("GATHER", _gathered, _conv("CONV2D", (65, 66), stride=5)),
    "depth": ("CONV3D", _conv3d(2), _conv3d(1)),
    **{
        kind.lower(): (kind, _of_two(kind), _of_two("MAXIMUM"))
        for kind in ("EQUAL", "GREATER", "GREATER_EQUAL")
    },
    "select": ("SELECT", _selected, _of_two("MAXIMUM")),
}


def written(build: Build) -> tuple[bytes, TosaWriter]:
    w = TosaWriter()
    w.output(build(w))
    return w.finish(), w


def reasons(build: Build, accelerator: str) -> list[tuple[str, str]]:
    found = refusals(written(build)[1].model({}), accelerator)
    return [(node.kind, reason) for node, reason in found]


def is_compiled(build: Build, accelerator: str) -> bool:
    try:
        compile_by_vela(written(build)[0], accelerator, lambda tensor: Place(tensor, ""))
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_the_table_says_what_vela_says(name: str) -> None:
    kind, refused, taken = CASES[name]
    assert [found for found, _ in reasons(refused, "ethos-u55-128")] == [kind]
    assert not is_compiled(refused, "ethos-u55-128")
    assert not reasons(taken, "ethos-u55-128")
    assert is_compiled(taken, "ethos-u55-128")
    assert not reasons(refused, "ethos-u85-256")
    assert is_compiled(refused, "ethos-u85-256")


def test_every_operator_of_the_table_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES.values()} == set(CONSTRAINTS) - set(OF_TWO)


@pytest.mark.parametrize("kind", OF_TWO)
def test_operands_for_which_vela_ends_the_process_are_refused(kind: str) -> None:
    def build(w: TosaWriter) -> TosaValue:
        operands = [w.input("x", (1, 5, 6, 1), "INT32"), w.input("y", (1, 1, 1, 4), "INT32")]
        options = {"round": False} if kind == "ARITHMETIC_RIGHT_SHIFT" else {}
        extra = (w.number(0, "INT8"),) if kind == "MUL" else ()
        return w.elementwise(kind, *operands, extra=extra, **options)

    assert [found for found, _ in reasons(build, "ethos-u65-256")] == [kind]
    assert not reasons(build, "ethos-u85-256")


def test_a_resize_with_weights_above_127_is_refused() -> None:
    from tests.targets.quantised import Between

    network = Between(lambda x: F.interpolate(x, (130, 7), mode="bilinear", align_corners=True), (0.0247, 5))
    x = torch.randn(1, 6, 5, 7, generator=torch.Generator().manual_seed(2))
    with pytest.raises(UnsupportedError) as raised:
        dimorder.lower(network, (x,), target="ethos-u55-128")
    assert str(raised.value).splitlines()[1] == (
        "  found: a resize, bilinear by 129/4 and 1, "
        "where these have nearest by 2, 4 or 8 in both, and weights up to 127"
    )


def test_a_refusal_names_the_operator_and_its_line() -> None:
    from tests.targets.quantised import by_arm

    class Stem(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.ConvTranspose2d(3, 5, 4, stride=3, dilation=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)

    x = torch.randn(1, 3, 12, 16, generator=torch.Generator().manual_seed(2))
    with pytest.raises(UnsupportedError) as raised:
        dimorder.lower(by_arm(Stem().eval(), x), (x,), target="ethos-u65-256")
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("dimorder.conv_transpose2d_nhwc (test_ethos_u_constraints.py:")
    assert lines[0].endswith(", in conv) on ethos-u65-256")
    assert lines[1] == "  found: a transposed convolution of stride (3, 3), where these have (2, 2)"
    assert lines[2] == "  fix: choose an ethos-u85, which has this, or replace it in the module"
