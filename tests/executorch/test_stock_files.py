"""Test that .pte files of stock ExecuTorch give right numbers or are refused, however they are fed."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import pytest
import torch
from torch import nn

pytest.importorskip("executorch")

from dimorder.algebra import strides
from dimorder.algebra.dim_order import DimOrder, describe
from dimorder.api import load
from dimorder.errors import ContractError, UnsupportedError
from dimorder.executorch.attempt import disagreement
from dimorder.executorch.lowering_paths import run_bare, stock
from tests import zoo

NCHW, NHWC = DimOrder.contiguous(4), DimOrder.channels_last(4)
MAIN = (2, 3, 40, 56)
GREY = (2, 1, 40, 56)
PIXEL = (2, 3, 1, 1)

# Name → backend, order and shape that it is exported with. Its weights stay row-major: stock lowering crashes
# on others.
FILES = {
    "pnet": ("xnnpack", NCHW, MAIN),
    "squeezenet1_1": ("portable", NCHW, MAIN),
    "shufflenet_v2_x0_5": ("portable", NCHW, MAIN),
    "mobilenet_v2": ("xnnpack", NCHW, MAIN),
    "mobilenet_v3_small": ("xnnpack", NHWC, MAIN),
    "resnet18": ("xnnpack", NHWC, MAIN),
    "resnet18 of grey images": ("xnnpack", NCHW, GREY),
    "resnet18 of one pixel": ("portable", NCHW, PIXEL),
}
torchvision = pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="no torchvision")
NAMES = [
    pytest.param(name, marks=[] if name == "pnet" else [pytest.mark.slow, torchvision]) for name in FILES
]

# How memory of that shape can come to lie, in tensors of the same values.
FED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NCHW": lambda x: laid(x, NCHW),
    "NHWC": lambda x: laid(x, NHWC),
    "channel slice": lambda x: torch.cat([x, x, x], 1)[:, x.shape[1] : 2 * x.shape[1]],
    "strided step": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "transposed view": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "strides of another size-1 reading": lambda x: x.as_strided(x.shape, odd_strides(x)),
    "expanded": lambda x: x[:1].expand(x.shape),
}


def laid(x, order):
    return torch.empty_strided(x.shape, order.strides(x.shape)).copy_(x)


def odd_strides(x):
    """Dense row-major strides, in which dims of size 1 have whatever they like."""
    return tuple(7 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True))


def example(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def network(name):
    if name == "pnet":
        return zoo.network(name).build()
    make = functools.partial(_grey, name.split()[0]) if "grey" in name else zoo.torchvision(name.split()[0])
    shape = (1, GREY[1] if "grey" in name else MAIN[1], 96, 96)
    return zoo.Network(name, make, shape, frozenset()).build()


def _grey(name):
    module = zoo.torchvision(name)()
    module.conv1 = nn.Conv2d(1, 64, 7, stride=2, padding=3, bias=False)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A function that gives the network of a name, and the .pte that stock lowering makes of it."""
    folder = tmp_path_factory.mktemp("stock")

    @functools.cache
    def make(name):
        backend, order, shape = FILES[name]
        module = network(name)
        path = folder / f"{name}.pte"
        path.write_bytes(stock(backend)(torch.export.export(module, (laid(example(shape), order),))))
        return module, path

    return make


def outputs(module, x):
    with torch.no_grad():
        found = module(x)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_right_when_fed_as_exported_and_bare_execu_torch_misreads_another_order(files, name):
    module, path = files(name)
    _, order, shape = FILES[name]
    other = NCHW if order == NHWC else NHWC
    expected = outputs(module, example(shape))
    assert disagreement(expected, run_bare(path.read_bytes(), [laid(example(shape), order)])) == ""
    if not order.equivalent(other, shape):
        assert disagreement(expected, run_bare(path.read_bytes(), [laid(example(shape), other)]))


@pytest.mark.parametrize("fed", FED)
@pytest.mark.parametrize("name", NAMES)
def test_adapted_it_is_right_however_it_is_fed(files, name, fed):
    module, path = files(name)
    x = FED[fed](example(FILES[name][2]))
    assert disagreement(outputs(module, x), load(path).run(x)) == ""


@pytest.mark.parametrize("fed", FED)
@pytest.mark.parametrize("name", NAMES)
def test_strictly_it_is_right_or_names_the_input_and_both_orders(files, name, fed):
    module, path = files(name)
    _, order, shape = FILES[name]
    x = FED[fed](example(shape))
    try:
        found = load(path, "error").run(x)
    except ContractError as error:
        reading = strides.read(shape, x.stride())
        other = isinstance(reading, strides.NotDense) or not reading.equivalent(order, shape)
        assert other, "what was promised is refused"
        where, text, fix = str(error).splitlines()
        assert where == f"input 'input0', promised in {describe(order)}"
        assert "not dense" in text or "(0, " in text
        assert f"strides {x.stride()}" in text and fix.startswith("  fix: ")
    else:
        assert disagreement(outputs(module, x), found) == ""


@pytest.mark.slow
@torchvision
def test_squeezenet_exported_channels_last_to_portable_kernels_is_refused_at_load(tmp_path):
    module = network("squeezenet1_1").to(memory_format=torch.channels_last)
    x = laid(example(MAIN), NHWC)
    path = tmp_path / "squeezenet.pte"
    path.write_bytes(stock("portable")(torch.export.export(module, (x,))))
    assert disagreement(outputs(module, x), run_bare(path.read_bytes(), [x])), "wrong even as exported"
    with pytest.raises(UnsupportedError) as caught:
        load(path)
    where, found, fix = str(caught.value).splitlines()
    assert where == f"loading {path}"
    assert found.startswith("  found: it calls aten::cat.out in NHWC (0, 2, 3, 1), NHWC (0, 2, 3, 1) (and ")
    assert found.endswith("that kernel returns wrong numbers, silently")
    assert "canonicalize(program)" in fix
