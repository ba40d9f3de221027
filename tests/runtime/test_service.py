"""A program that is called for long, by several threads, and with as many of its own as one says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import dimorder
from dimorder.errors import UsageError

pytest.importorskip("executorch")

SHAPE = (2, 3, 13, 17)
NETWORK = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Hardswish(), nn.Conv2d(5, 7, 2)).eval()


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.pte"
    dimorder.lower(NETWORK, (numbers(0),), target="xnnpack", input_orders="NHWC").save(path)
    return path


def test_several_threads_may_call_one_program(saved: Path) -> None:
    program = dimorder.load(saved)
    fed = [numbers(seed) for seed in range(5)]
    with torch.no_grad():
        wanted = [NETWORK(x) for x in fed]
    errors: list[float] = []

    def work(first: int) -> None:
        for turn in range(200):
            i = (first + turn) % len(fed)
            errors.append(float((program(fed[i]) - wanted[i]).abs().max()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 800 and max(errors) < 1e-5


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="tells no resident memory")
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
def test_ten_thousand_calls_take_no_more_memory(saved: Path, order: torch.memory_format) -> None:
    program, x = dimorder.load(saved), numbers(1).contiguous(memory_format=order)
    for _ in range(500):
        program(x)
    before = resident()
    for _ in range(10_000):
        program(x)
    assert resident() < 1.01 * before
    assert program.stats.calls == 10_500


def test_a_guard_in_order_copies_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x = dimorder.load(saved), numbers(1).contiguous(memory_format=torch.channels_last)
    read: list[tuple[int, bool]] = []
    given: list[int] = []
    method = program._method

    def called(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        read.extend((each.data_ptr(), each.requires_grad) for each in inputs)
        results = list(method(inputs))
        given.extend(each.data_ptr() for each in results)
        return results

    monkeypatch.setattr(program, "_method", called)
    y = program(x.requires_grad_())
    assert read == [(x.data_ptr(), False)] and given == [y.data_ptr()]
    assert program.stats.conversions == 0


def in_a_process(code: str, saved: Path) -> str:
    """Return what a new process prints for `code`; `path` is the program, `pool()` the size of its pool."""
    begin = (
        "import sys, torch, dimorder\n"
        "from executorch.extension.pybindings import _C\n"
        "path, pool = sys.argv[1], _C._threadpool_get_thread_count\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin + code, str(saved)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_program_has_as_many_threads_as_one_says(saved: Path) -> None:
    code = "for n in (1, 3): print(dimorder.load(path, threads=n)(torch.ones(2, 3, 13, 17)).shape, pool())"
    shape = "torch.Size([2, 7, 10, 14])"
    assert in_a_process(code, saved).splitlines()[-2:] == [f"{shape} 1", f"{shape} 3"]


def test_a_pool_is_not_changed_under_a_loaded_program(saved: Path) -> None:
    code = """
first = dimorder.load(path, threads=3)
second = dimorder.load(path, threads=3)
try:
    dimorder.load(path, threads=1)
except dimorder.errors.UsageError as error:
    print(error)
print(pool())
"""
    assert in_a_process(code, saved).splitlines()[-4:] == [
        "1 threads",
        "  found: a program with 3 is loaded in this process, and all share one pool",
        "  fix: say threads=1 where the first is loaded, or load this one in another process",
        "3",
    ]


def test_a_program_that_waits_for_the_garbage_collector_holds_no_threads(saved: Path) -> None:
    code = """
import gc
gc.disable()
cycle = [dimorder.load(path, threads=3)]
cycle.append(cycle)
del cycle
dimorder.load(path, threads=1)
print(pool())
"""
    assert in_a_process(code, saved).splitlines()[-1] == "1"


def test_threads_that_cannot_be_are_wrong_usage(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no threads to run with"):
        dimorder.load(saved, threads=0)
    with pytest.raises(UsageError, match="more than 1024 threads\n  fix: say at most as many as processors"):
        dimorder.load(saved, threads=100_000)
    for count in (2.5, "2"):
        with pytest.raises(UsageError, match=f"{count!r} threads\n  found: {count!r}, which is not an int"):
            dimorder.load(saved, threads=count)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="say one of adapt, error, warn"):
        dimorder.load(saved, "always")  # type: ignore[arg-type]
