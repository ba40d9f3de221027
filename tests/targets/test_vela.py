"""The writer carries what integers need: a small quantised graph, on the reference model and through Vela."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tosa_reference_model")

import tosa_reference_model as reference

from dimorder.errors import UsageError
from dimorder.targets.tosa.graph import inspect_tosa
from dimorder.targets.tosa.rescale import multiplier, rescale
from dimorder.targets.tosa.writer import TosaWriter

Array = np.ndarray[Any, Any]

# y = conv(x) + z, each tensor int8 with its own scale and zero point, the weight with a scale per channel.
X, W, Y = (1, 9, 11, 6), (5, 3, 2, 6), (1, 7, 10, 5)
X_SCALE, X_ZERO = 0.05, -3
W_SCALES = np.array([0.01, 0.02, 0.005, 0.03, 0.015])
CONV_SCALE, CONV_ZERO = 0.3, 7
Z_SCALE, Z_ZERO = 0.2, -11
Y_SCALE, Y_ZERO = 0.45, 5
HEADROOM = 2**20  # a sum of int8 values is taken on this much finer a grid, in int32


@pytest.fixture(scope="module")
def arrays() -> dict[str, Array]:
    random = np.random.default_rng(0)
    drawn = {name: random.integers(-128, 128, shape, np.int8) for name, shape in (("x", X), ("z", Y))}
    weight = random.integers(-127, 128, W, np.int8)
    return {**drawn, "weight": weight, "bias": random.integers(-5000, 5000, W[:1], np.int32)}


@pytest.fixture(scope="module")
def graph(arrays: dict[str, Array]) -> bytes:
    w = TosaWriter()
    x, z = w.input("x", X, "INT8"), w.input("z", Y, "INT8")
    operands = [w.constant(arrays["weight"], "INT8"), w.constant(arrays["bias"], "INT32")]
    zeros = [w.number(X_ZERO, "INT8"), w.number(0, "INT8")]
    options = {"pad": [0] * 4, "stride": [1, 1], "dilation": [1, 1], "local_bound": False}
    sums = w.op("CONV2D", [x, *operands, *zeros], Y, "INT32", acc_type="INT32", **options)
    conv = rescale(w, sums, list(X_SCALE * W_SCALES / CONV_SCALE), "INT8", to_zero_point=CONV_ZERO)
    finest = max(CONV_SCALE, Z_SCALE)
    a = rescale(w, conv, [CONV_SCALE / finest * HEADROOM], "INT32", zero_point=CONV_ZERO)
    b = rescale(w, z, [Z_SCALE / finest * HEADROOM], "INT32", zero_point=Z_ZERO)
    total = w.elementwise("ADD", a, b)
    w.output(rescale(w, total, [finest / HEADROOM / Y_SCALE], "INT8", to_zero_point=Y_ZERO))
    return w.finish()


def expected(arrays: dict[str, Array]) -> Array:
    """The same in integer arithmetic."""
    x = arrays["x"].astype(np.int64) - X_ZERO
    windows = np.lib.stride_tricks.sliding_window_view(x, W[1:3], axis=(1, 2))
    sums = np.einsum("nhwcij,oijc->nhwo", windows, arrays["weight"].astype(np.int64)) + arrays["bias"]
    conv = _rescaled(sums, X_SCALE * W_SCALES / CONV_SCALE, CONV_ZERO, np.int8)
    finest = max(CONV_SCALE, Z_SCALE)
    a = _rescaled(conv - CONV_ZERO, np.array([CONV_SCALE / finest * HEADROOM]), 0, np.int32)
    z = arrays["z"].astype(np.int64) - Z_ZERO
    b = _rescaled(z, np.array([Z_SCALE / finest * HEADROOM]), 0, np.int32)
    return _rescaled(a + b, np.array([finest / HEADROOM / Y_SCALE]), Y_ZERO, np.int8)


def _rescaled(values: Array, factors: Array, zero: int, dtype: type) -> Array:
    """(v · m + 2^(s-1)) >> s, where m / 2^s is the factor to 31 bits; Python's integers do not overflow."""
    shifts = 31 - np.ceil(np.log2(factors)).astype(int)
    multipliers = np.round(factors * 2.0**shifts).astype(np.int64)
    pairs = np.broadcast_to(multipliers, values.shape), np.broadcast_to(shifts, values.shape)
    scaled = [
        (int(v) * int(m) + (1 << int(s) - 1) >> int(s)) + zero
        for v, m, s in zip(values.flat, pairs[0].flat, pairs[1].flat, strict=True)
    ]
    limits = np.iinfo(dtype)
    return np.array(scaled).clip(limits.min, limits.max).reshape(values.shape)


def test_a_quantised_graph_is_exact_on_the_reference_model(graph: bytes, arrays: dict[str, Array]) -> None:
    (got,), status = reference.run(graph, [arrays["x"], arrays["z"]])
    wanted = expected(arrays)
    assert status == reference.GraphStatus.TOSA_VALID
    assert got.dtype == np.int8
    assert len(np.unique(wanted)) > 100
    np.testing.assert_array_equal(got, wanted)


def test_its_types_are_those_that_were_asked_for(graph: bytes) -> None:
    found = inspect_tosa(graph)
    assert [(t.name, t.shape, t.dtype) for t in found.inputs] == [("x", X, "INT8"), ("z", Y, "INT8")]
    assert [(t.shape, t.dtype) for t in found.outputs] == [(Y, "INT8")]
    assert found.operators == {"CONV2D": 1, "RESCALE": 4, "ADD": 1}


@pytest.mark.parametrize("accelerator", ["ethos-u55-128", "ethos-u85-256"])
def test_vela_compiles_it(graph: bytes, accelerator: str, tmp_path: Path) -> None:
    pytest.importorskip("ethosu.vela")
    (tmp_path / "graph.tosa").write_bytes(graph)
    options = ["--accelerator-config", accelerator, "--output-format", "raw", "--output-dir", str(tmp_path)]
    command = [sys.executable, "-m", "ethosu.vela", str(tmp_path / "graph.tosa"), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with np.load(tmp_path / "graph_vela.npz", allow_pickle=True) as compiled:
        assert compiled["cmd_data"].size > 0
        assert [tuple(shape[-4:]) for shape in compiled["input_shape"]] == [X, Y]
        assert [tuple(shape[-4:]) for shape in compiled["output_shape"]] == [Y]


@pytest.mark.parametrize("factor", [1.0, 0.5, 1 - 2**-40, 1.7e-9, 123456.7])
def test_a_multiplier_is_right_to_31_bits(factor: float) -> None:
    integer, shift = multiplier(factor)
    assert 2**30 <= integer < 2**31
    assert integer / 2**shift == pytest.approx(factor, rel=2**-31)


@pytest.mark.parametrize("factor", [0.0, -0.5, 2.0**-40, 2.0**30])
def test_a_factor_that_no_shift_can_say_is_refused(factor: float) -> None:
    with pytest.raises(UsageError) as raised:
        multiplier(factor)
    assert str(raised.value).splitlines() == [
        "RESCALE",
        f"  found: the factor {factor}",
        "  fix: choose scales whose ratio is between 2^-31 and 2^29",
    ]
