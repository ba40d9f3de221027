"""Test that no program reads memory that ExecuTorch has freed: from files, with every option of XNNPACK.

The loader gives each load memory of its own, and fills with NaN what ExecuTorch frees. ExecuTorch 1.5.1 frees
the segment of a delegate once the delegate is made, and the data of constants that XNNPACK packs. With the
weights cache on, it frees the data of all named constants.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("executorch")

import dimorder
from dimorder.cmake import PACKAGE, executorch_package
from dimorder.executorch import pte
from tests.device import emulation
from tests.device.networks import image
from tests.marks import slow_but
from tests.targets import quantised


@pytest.fixture(scope="module")
def lifetimes() -> Path:
    if reason := emulation.missing(emulation.HOST):
        pytest.skip(reason)
    folder, source = emulation.BUILD / "lifetimes", Path(__file__).with_name("lifetimes")
    options = (f"-Ddimorder_DIR={PACKAGE}", f"-Dexecutorch_DIR={executorch_package()}")
    emulation.cmake(source, folder, *options)
    return folder / "lifetimes"


class Shared(nn.Module):
    """A convolution whose bias is read beside it, by an operator that keeps a pointer to it."""

    def __init__(self, read: Callable[[Tensor, Tensor], Tensor], bias: Tensor | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 24, (3, 5))
        self.read = read
        if bias is not None:
            self.conv.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.conv(x), self.conv.bias)


class Parts(nn.Module):
    """Several delegates with portable operators between them, all of which read one constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 11), nn.Linear(11, 11)
        self.shared = nn.Parameter(torch.linspace(0.5, 1.5, 11))
        with torch.no_grad():
            self.first.bias.copy_(self.shared)
            self.second.bias.copy_(self.shared)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cumsum(torch.tanh(self.first(x)) * self.shared, 0)
        x = torch.cumsum(torch.sigmoid(self.second(x)) - self.shared, 0)
        return self.second(x) / self.shared


class Norms(nn.Module):
    """Norms as their constructors leave them, all of ones and zeros, round a linear layer without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 20, 3)
        nn.init.zeros_(self.conv.bias)
        self.norm, self.linear = nn.LayerNorm(20), nn.Linear(20, 20)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).mean((2, 3)))
        return self.linear(y) * self.norm.weight + self.linear.bias


class Equal(nn.Module):
    """Weights of equal bytes that XNNPACK packs in several ways: other shapes, other kinds of node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 24, 1, bias=False), nn.Conv2d(24, 3, 1, bias=False)
        self.third, self.fourth = nn.Linear(3, 24, bias=False), nn.Linear(24, 3, bias=False)
        for layer in (self.first, self.second, self.third, self.fourth):
            nn.init.constant_(layer.weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x))).mean((2, 3))
        return self.fourth(torch.tanh(self.third(y)))


class Again(nn.Module):
    """A linear layer that is called twice, on values of other scales."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(7, 7, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(3 * torch.relu(self.linear(x)))


BIAS = torch.linspace(-1.0, 1.0, 24)
PICTURE = (image((2, 3, 9, 13)),)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "bias added": (lambda: Shared(lambda y, b: torch.tanh(y.mean((2, 3))) + b), PICTURE),
    "zero bias added": (lambda: Shared(lambda y, b: torch.tanh(y.mean((2, 3))) + b, BIAS * 0), PICTURE),
    "bias multiplied": (lambda: Shared(lambda y, b: y * b.view(1, -1, 1, 1), BIAS), PICTURE),
    "bias as slope": (lambda: Shared(lambda y, b: F.prelu(y, b), BIAS), PICTURE),
    "bias as maximum": (lambda: Shared(lambda y, b: torch.maximum(y, b.view(1, -1, 1, 1)), BIAS), PICTURE),
    "bias as divisor": (lambda: Shared(lambda y, b: y / (3 + b.view(1, -1, 1, 1)), BIAS), PICTURE),
    "several delegates": (Parts, (image((5, 7)),)),
    "norms of ones": (Norms, PICTURE),
    "weights of equal bytes": (Equal, PICTURE),
    "a layer called twice": (Again, (image((5, 7)),)),
}
OPTIONS = [
    *itertools.product(("", "cache"), ("sharing=0", "sharing=1", "sharing=2"), ("", "twice")),
]


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    make, args = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval(), args


@pytest.mark.parametrize(
    ("numbers", "name"),
    slow_but(
        itertools.product(["float32", "float16"], NETWORKS),
        [
            *(("float32", name) for name in NETWORKS),
            *(("float16", name) for name in ("bias added", "several delegates", "weights of equal bytes")),
        ],
    ),
)
def test_constants_outlive_what_executorch_frees(
    name: str, numbers: str, lifetimes: Path, tmp_path: Path
) -> None:
    network, args = made(name)
    if numbers == "float16":
        network, args = network.half(), tuple(x.half() for x in args)
    path = dimorder.lower(network, args, target="xnnpack").save(tmp_path / "net.pte")
    wanted = dimorder.load(path)(*args)
    for options in OPTIONS:
        assert_same(by_executorch(lifetimes, path, args, wanted, options), wanted, options)


@pytest.mark.parametrize(
    ("name", "by"),
    slow_but(
        [
            ("bias multiplied", "by_xnnpack"),
            ("bias multiplied", "by_arm"),
            ("several delegates", "by_xnnpack_dynamically"),
            ("weights of equal bytes", "by_xnnpack"),
            ("a layer called twice", "by_xnnpack"),
            ("a layer called twice", "by_arm"),
        ],
        [
            ("bias multiplied", "by_arm"),
            ("several delegates", "by_xnnpack_dynamically"),
            ("weights of equal bytes", "by_xnnpack"),
        ],
    ),
)
def test_so_do_those_of_integers(name: str, by: str, lifetimes: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    network, args = made(name)
    path = dimorder.lower(getattr(quantised, by)(network, *args), args, target="xnnpack").save(
        tmp_path / "net.pte"
    )
    wanted = dimorder.load(path)(*args)
    for options in OPTIONS:
        assert_same(by_executorch(lifetimes, path, args, wanted, options), wanted, options)


def test_a_method_keeps_its_program(tmp_path: Path) -> None:
    network, args = made("norms of ones")
    lowered = dimorder.lower(network, args, target="xnnpack")
    method = pte.method_of(lowered.artifact.data)  # of a file that is gone by now
    gc.collect()
    torch.testing.assert_close(method(args)[0], network(*args))


def test_a_file_may_be_replaced_while_its_program_is_open(tmp_path: Path) -> None:
    network, args = made("norms of ones")
    path = dimorder.lower(network, args, target="xnnpack").save(tmp_path / "net.pte")
    program = dimorder.load(path)
    (tmp_path / "other").write_bytes(b"another file")
    os.replace(tmp_path / "other", path)
    torch.testing.assert_close(program(*args), network(*args))


def by_executorch(
    lifetimes: Path, path: Path, args: tuple[Tensor, ...], like: Tensor, options: tuple[str, ...]
) -> Tensor:
    """Return the output of ExecuTorch's own API, from a loader that fills freed memory with NaN."""
    folder = path.parent
    (folder / "input").write_bytes(b"".join(x.contiguous().numpy().tobytes() for x in args))
    command = [
        str(lifetimes),
        str(path),
        str(folder / "input"),
        str(folder / "output"),
        *filter(None, options),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    data = np.frombuffer((folder / "output").read_bytes(), like.numpy().dtype)
    return torch.from_numpy(data.copy()).view(like.shape)


def assert_same(got: Tensor, wanted: Tensor, options: tuple[str, ...]) -> None:
    assert torch.equal(got, wanted), f"{options}: {int((got != wanted).sum())} of {got.numel()} differ"
