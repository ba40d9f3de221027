"""Set up every test: torch starts from the same seed, and every stage of the pipeline is checked. Commands
that a test starts check it too. After a file's tests their memory is freed. `at_root` is for some tests."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.fx import GraphModule

from dimorder.graph import passes

os.environ[passes.CHECK] = "1"
# oneDNN of PyTorch 2.13 never ends some depthwise convolutions in float16 where the CPU has AVX512-FP16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

ROOT = Path(__file__).parents[1]


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and leave out what lives to the end: the tests are millions of objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _freed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free what an earlier file had if the process has more than 3 GiB, or many graphs.

    glibc would keep what networks and compilers of an earlier file had: 12 GiB after some 5,000 tests. Each
    graph is a class of its own. torch sets methods of `Module` as it traces, which takes 1.5 ms with 1,500
    such classes.
    """
    yield
    if _resident() < 3 << 30 and len(GraphModule.__subclasses__()) < 200:
        return
    for module in (request.module, sys.modules.get("executorch.exir.backend.utils")):
        for value in vars(module).values() if module else ():
            if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                value.cache_clear()
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _resident() -> int:
    """Return how many bytes of memory this process has. macOS tells only the most that it had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's folder is the current one, in which `tests.…` can be imported by a command."""
    monkeypatch.chdir(ROOT)
