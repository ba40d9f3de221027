"""Test that faster copies are exact copies: in every way, of every type, whatever the table says."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.layout import Layout
from dimorder.eager import conversion, transposition
from dimorder.eager.channels_last import to_channels_last, to_contiguous
from dimorder.eager.conversion import convert, unblock
from dimorder.eager.inspection.inspection import inspect
from dimorder.eager.transposition import WAYS, ChosenWay, Transposition, choose, fast_copy, ways
from dimorder.errors import UsageError
from tests.conftest import ROOT

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64, torch.int64)


def table_of(way):
    """A table that has one way for everything."""
    cells = {
        f"{rows}x{columns}": {way: 99.0} for rows in transposition.SIZES for columns in transposition.SIZES
    }
    return {str(size): cells for size in transposition.CARRIERS}


@pytest.fixture
def uncached(monkeypatch):
    """Nothing that was found before the test is known in it, and nothing of it afterwards."""
    for cached in (transposition._library, conversion._conversion):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (transposition._library, conversion._conversion):
        cached.cache_clear()


@given(st.permutations(range(4)), st.permutations(range(4)), st.sampled_from(sorted(ways())))
def test_every_way_moves_every_transposition(held, wanted, way):
    shape = (2, 3, 5, 4)
    held, wanted = DimOrder(*held), DimOrder(*wanted)
    moved = Transposition.between(shape, held, wanted)
    if moved is None:
        return
    assert moved.batch * moved.rows * moved.columns == 120
    x = torch.arange(120.0).view(held.physical_shape(shape)).permute(held.inverse.dims)
    y = fast_copy(x, ChosenWay(way, moved), wanted.strides(shape))
    assert torch.equal(x, y) and y.stride() == wanted.strides(shape)


def test_transpositions_are_found_where_they_are():
    nchw, nhwc, chwn = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1), DimOrder(1, 2, 3, 0)
    shape = (2, 3, 5, 7)
    assert Transposition.between(shape, nchw, nhwc) == Transposition(2, 3, 35)
    assert Transposition.between(shape, nchw, chwn) == Transposition(1, 2, 105)
    assert Transposition.between(shape, nhwc, chwn) is None
    assert Transposition.between((2, 1, 5, 7), nchw, nhwc) is None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("way", sorted(ways()))
def test_types_keep_every_bit(dtype, way, monkeypatch):
    """With a table that has this way for everything; -0.0 and NaN are bits too."""
    monkeypatch.setattr(transposition, "_table", lambda: table_of(way))
    bits = torch.randint(0, 256, (2, 24, 40, 18 * dtype.itemsize), dtype=torch.uint8)
    x = bits.bool() if dtype == torch.bool else bits.view(dtype)
    x = x if x.shape[-1] == 18 else x[..., :18].contiguous()
    choice = choose(tuple(x.shape), x.element_size(), DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1))
    assert choice and choice.way == way
    y = fast_copy(x, choice, DimOrder(0, 2, 3, 1).strides(x.shape))
    assert y.dtype == x.dtype and y.stride() == DimOrder(0, 2, 3, 1).strides(x.shape)
    same = y.contiguous().view(torch.uint8) == x.contiguous().view(torch.uint8)
    assert same.all()


@pytest.mark.parametrize("threads", [1, 2])
def test_large_conversions_are_right_by_the_shipped_table(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shape in ((1, 64, 56, 56), (8, 64, 28, 28), (2, 48, 6, 20, 28), (3, 96, 1000)):
            x = torch.randn(shape)
            last = DimOrder.channels_last(len(shape))
            y = convert(x, last)
            assert torch.equal(x, y) and y.stride() == last.strides(shape)
            assert torch.equal(convert(y, "contiguous"), x)
    finally:
        torch.set_num_threads(before)


def test_lazy_conjugates_gradients_and_subclasses_go_the_slow_way():
    x = torch.randn(2, 64, 40, 40, dtype=torch.complex64)
    assert torch.equal(convert(x.conj(), "NHWC"), x.conj())
    leaf = torch.randn(2, 64, 56, 56, requires_grad=True)
    convert(leaf, "NHWC").square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * leaf.detach())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """transpose.c as this machine's GCC compiles it, whatever was installed."""
    pytest.importorskip("hatchling")
    if shutil.which("gcc") is None:
        pytest.skip("no GCC")
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        from hatch_build import SOURCE, compile_into

        patch.setenv("CC", "gcc")
        assert not compile_into(folder / "transpose.so", ROOT / SOURCE)
        patch.setattr(transposition, "LIBRARY", folder / "transpose.so")
        transposition._library.cache_clear()
        yield
    transposition._library.cache_clear()


@pytest.mark.usefixtures("compiled")
@given(
    *(st.integers(1, most) for most in (3, 300, 300, 3)),
    st.sampled_from((torch.int8, torch.int16, torch.int32, torch.int64)),
)
def test_tiles_transpose_blocks_of_every_size(batch, rows, columns, threads, dtype):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randint(-100, 100, (batch, rows, columns), dtype=dtype)
        moved = Transposition(batch, rows, columns)
        y = WAYS["tiles"].run(x, moved, (rows * columns, 1, rows))
        assert y.stride() == (rows * columns, 1, rows) and torch.equal(x, y)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("uncached")
def test_without_the_compiled_library_conversions_are_right(monkeypatch, tmp_path):
    monkeypatch.setattr(transposition, "LIBRARY", tmp_path / "none.so")
    assert ways() == {"shuffle", "block"}
    x = torch.randn(8, 64, 56, 41)
    assert torch.equal(convert(x, "NHWC"), x) and torch.equal(convert(convert(x, "NHWC"), "NCHW"), x)


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-compiler", "No such file"), ("false", ""), ("true", "No such")]
)
def test_a_compiler_that_fails_leaves_no_library(compiler, reason, monkeypatch, tmp_path):
    pytest.importorskip("hatchling")
    monkeypatch.syspath_prepend(ROOT)
    from hatch_build import SOURCE, compile_into

    monkeypatch.setenv("CC", compiler)
    (tmp_path / "transpose.so").write_bytes(b"of an older source")
    found = compile_into(tmp_path / "transpose.so", ROOT / SOURCE)
    assert found and reason in found and not list(tmp_path.iterdir())


# What is not only memory on the CPU, or is watched, goes by operators that torch knows.

IMAGE = torch.arange(2 * 3 * 80 * 70.0).view(2, 3, 80, 70)


def to_nhwc(x):
    return convert(x, "NHWC")


@pytest.mark.usefixtures("uncached")
def test_memory_on_the_cpu_goes_by_the_table(monkeypatch):
    monkeypatch.setattr(transposition, "_table", lambda: table_of("shuffle"))
    ways_taken = []

    def spied(tensor, choice, strides):
        ways_taken.append(choice.way)
        return fast_copy(tensor, choice, strides)

    monkeypatch.setattr(conversion, "fast_copy", spied)
    to_nhwc(IMAGE)
    to_nhwc(torch.nn.Parameter(IMAGE).detach())
    with torch.inference_mode():
        to_nhwc(IMAGE.clone())
    with torch.no_grad():
        to_nhwc(torch.nn.Parameter(IMAGE))
    assert ways_taken == ["shuffle"] * 4
    to_nhwc(torch.nn.Parameter(IMAGE))
    assert len(ways_taken) == 4


def test_recorded_conversions_are_right_when_they_are_played():
    graph = make_fx(to_nhwc)(IMAGE)
    assert torch.equal(graph(IMAGE + 1), IMAGE + 1) and graph(IMAGE).stride()[1] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # shapes become constants, as always there
        traced = torch.jit.trace(to_nhwc, IMAGE)
    assert torch.equal(traced(IMAGE + 1), IMAGE + 1)


def test_conversions_have_tangents():
    tangent = torch.func.jvp(to_nhwc, (IMAGE,), (IMAGE.square(),))[1]
    assert torch.equal(tangent, IMAGE.square())
    with forward_ad.dual_level():
        dual = convert(forward_ad.make_dual(IMAGE, IMAGE.square()), "NHWC")
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, IMAGE.square())


def test_conversions_in_batches():
    batch = torch.stack((IMAGE, IMAGE + 1))
    assert torch.equal(torch.vmap(to_nhwc)(batch), batch)
    assert torch.equal(torch.func.functionalize(to_nhwc)(IMAGE), IMAGE)


def test_conversions_beside_tensors_without_memory():
    with torch.device("meta"):
        assert torch.equal(to_nhwc(IMAGE), IMAGE)
    assert to_nhwc(IMAGE.to("meta")).stride()[1] == 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert to_nhwc(IMAGE).stride()[1] == 1
    with torch.inference_mode():
        assert torch.equal(to_nhwc(IMAGE), IMAGE)


def test_a_conversion_inside_a_network_is_found_by_inspect():
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 3, 3)

        def forward(self, x):
            return self.conv(convert(self.conv(x), "NCHW"))

    lost = [finding for finding in inspect(Network(), (IMAGE,)).findings if finding.verdict == "lost"]
    assert len(lost) == 1 and lost[0].bytes == 2 * 3 * 78 * 68 * 4


def test_orders_in_sequences_of_every_kind():
    for order in ([0, 2, 3, 1], (0, 2, 3, 1), np.array([0, 2, 3, 1])):
        assert convert(IMAGE, order).stride()[1] == 1


def test_the_shipped_table_names_known_ways():
    table = json.loads(transposition.TABLE.read_text())
    assert table
    for sizes in table.values():
        for itemsize, cells in sizes.items():
            assert int(itemsize) in transposition.CARRIERS
            gains = [gain for ways_of in cells.values() for gain in ways_of.items()]
            assert all(way in WAYS and gain >= transposition.LEAST_GAIN for way, gain in gains)


def test_measuring_gives_such_a_table():
    table = transposition.measure(sizes=(49, 196))
    assert set(table) == {"1", "2", "4", "8"}
    gains = [gain for cells in table.values() for ways_of in cells.values() for gain in ways_of.items()]
    assert all(way in ways() and gain >= transposition.LEAST_GAIN for way, gain in gains)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_it_is_traced_with_dynamic_sizes_too(mode):
    graph = make_fx(lambda x: convert(x, "NHWC"), tracing_mode=mode)(torch.randn(2, 3, 4, 5))
    x = torch.randn((3, 2, 6, 5) if mode == "symbolic" else (2, 3, 4, 5))
    assert torch.equal(graph(x), x) and graph(x).stride() == convert(x, "NHWC").stride()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per")
def test_what_has_no_strides_is_refused():
    blocked = Layout.parse("nChw16c", 4)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    sparse = torch.zeros(2, 3, 5, 7, 16).to_sparse()
    for call, found in (
        (lambda: convert(nested, "NLC"), "a nested tensor"),
        (lambda: convert(torch.ones(2, 3, 4).numpy(), "NLC"), "found: a ndarray\n  fix: pass a tensor"),
        (lambda: to_channels_last([torch.ones(2, 3, 4)]), "found: a list\n  fix: pass a tensor"),
        (lambda: to_contiguous(None), "found: a NoneType\n  fix: pass a tensor"),
        (lambda: convert(nested, blocked), "a nested tensor"),
        (lambda: unblock(sparse, blocked, (2, 35, 5, 7)), "layout torch.sparse_coo"),
    ):
        with pytest.raises(UsageError, match=found):
            call()


@pytest.mark.parametrize("order", [[[0, 1], [2, 3]], ([0], 2, 3, 1)])
def test_an_order_of_lists_is_refused(order):
    with pytest.raises(UsageError, match="a dim that is not an int"):
        convert(torch.zeros(2, 3, 5, 7), order)


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_integers_with_a_scale_per_channel_are_converted_or_refused():
    def quantized(*shape):
        scales, zeros = torch.arange(1.0, shape[1] + 1) / 8, torch.arange(shape[1])
        return torch.quantize_per_channel(torch.randn(shape), scales, zeros, 1, torch.qint8)

    x = quantized(2, 6, 5, 7)
    last = convert(x, "NHWC")
    assert last.stride() == (210, 1, 42, 6) and torch.equal(last.dequantize(), x.dequantize())
    for each, order in ((x, "CHWN"), (x, Layout.parse("nChw16c", 4)), (quantized(2, 6, 1, 1), "NHWC")):
        with pytest.raises(UsageError, match="integers of scheme"):
            convert(each, order)
