"""Damaged files and damaged contracts in C++, under the address and undefined behaviour sanitizers.

Each ends in an error of three lines or in a program that can be run, never in a read outside of its memory.
ExecuTorch's own libraries are not instrumented, and what they leave allocated is not counted.
"""

from __future__ import annotations

import os
import subprocess
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import Contract, StateSpec, Symbol, TensorSpec
from dimorder.contract_file import contract_lines
from dimorder.executorch.pte import read_contract
from tests.device.guarded_programs import file_of
from tests.device.native_fixture import NativeContract, built

FEW, MANY = 500, 10_000
QUICK = [("NHWC", "anywhere"), ("two dynamic", "lines"), ("NLC", "lines"), ("foreign conv", "unsealed")]
NAMES = ("NHWC", "NLC", "int8", "two dynamic", "state")
STOCK = ("foreign", "foreign conv", "foreign dynamic")


def run(program: str, *arguments: object) -> list[int]:
    """Run a sanitized program, and return the numbers that it prints."""
    folder = built(program, sanitized=True)
    options = {
        # XNNPACK fills the memory of a value with zeros, up to 23 GB if its size is damaged.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    done = subprocess.run(
        [folder / program, *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",  # ExecuTorch's log has the damaged bytes
        env={**os.environ, **options, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
    return [int(word) for word in done.stdout.split()]


def damage(name: str, count: int, seed: int, where: str) -> None:
    opened, ran, refused, refused_calls = run("damage", file_of(name), count, seed, where)
    assert opened + refused > 0.9 * count and opened >= ran + refused_calls
    if where == "unsealed":
        assert ran and refused  # a weight may change
    elif where == "anywhere":
        assert opened == 0  # the seal finds each change
    else:
        assert opened and refused and ran  # a name may change


@pytest.mark.parametrize(("name", "where"), QUICK)
def test_a_damaged_file_is_refused_or_can_be_run(name: str, where: str) -> None:
    damage(name, FEW // 3, 1, where)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "where"),
    [*product(NAMES, ["lines", "anywhere", "unsealed"]), *product(STOCK, ["unsealed"])],
)
def test_many_damaged_files_are_refused_or_can_be_run(name: str, where: str) -> None:
    damage(name, MANY // len(NAMES) // 2, 2, where)


NHWC = DimOrder(0, 2, 3, 1)
CONTRACTS = {
    "one": Contract((TensorSpec("x", (2, 3, 5, 7), "float32", NHWC),), ()),
    "dynamic": Contract(
        (
            TensorSpec("a b", ("n", 1, "h", 7), "uint8", NHWC, scale=1 / 128, zero_point=127),
            TensorSpec("it's", ("n", 5, "m"), "int16", DimOrder(0, 2, 1), scale=0.021, zero_point=-3),
            TensorSpec("größe", (), "bool", DimOrder()),
        ),
        (TensorSpec("y", ("n", "2*h + 1"), "float16", DimOrder(1, 0)),),
        (Symbol("n", 1, 8), Symbol("h", 2, 16, 2)),
        (StateSpec("last", (2, 3), "float32", "row-major"),),
    ),
    "ranks": Contract(
        tuple(TensorSpec(f"x{i}", (2,) * i, "int64", DimOrder(*reversed(range(i)))) for i in range(7)), ()
    ),
}


@pytest.mark.parametrize("name", CONTRACTS)
def test_damaged_lines_are_read_to_a_verdict_and_tensors_checked_against_them(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_text(contract_lines(CONTRACTS[name]))
    accepted, right, other_order, refused = run("damage_text", path, 100_000, 1)
    assert accepted == right + other_order + refused
    assert 1000 < accepted < 90_000 and right and other_order and refused


def test_the_sanitizers_are_on() -> None:
    """The programs above call them at each access, so that what they say means something."""
    folder = built("damage_text", sanitized=True)
    symbols = subprocess.run(["nm", "-D", folder / "damage_text"], capture_output=True, text=True, check=True)
    assert "__asan_report_load1" in symbols.stdout and "__ubsan_handle_add_overflow_abort" in symbols.stdout


def test_the_contract_is_found_in_a_file_as_python_writes_it() -> None:
    path = file_of("NHWC")
    found = NativeContract().find(path.read_bytes())
    assert found == contract_lines(read_contract(path)).encode()
