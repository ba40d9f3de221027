"""Measure what the C++ guard costs a call whose inputs are in order, and how large the guard is.

    python -m benchmarks.device_guard [--rounds 400] [--calls 200] [--out device_guard.json]

dimorder::Program, ExecuTorch's Module::forward, and its bare Method take turns in one process. The networks
are so small that the guard shows. A figure is a median over all rounds, and a difference is within one round.
Sizes are those of code and constants of each object, at -Os.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor, nn

import dimorder
from benchmarks import record
from dimorder.cmake import CPP, PACKAGE, executorch_package

SHAPE = (1, 3, 5, 7)
PROMISED_NS = 2000
COMPILERS = {"x86_64": ("gcc", "g++"), "aarch64": ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")}
BARE_METAL = ("cortex-m55", "arm-none-eabi-gcc", ("-mcpu=cortex-m55", "-mthumb"))  # the header alone
PROJECT = """
cmake_minimum_required(VERSION 3.19)
project(device-guard LANGUAGES C CXX)
find_package(dimorder REQUIRED)
add_executable(device_guard "{source}")
target_link_libraries(device_guard PRIVATE dimorder::program dimorder::backends)
"""
# What a program without ExecuTorch needs of the header: to read a contract and check tensors.
CHECKER = """
#include <dimorder/contract.h>
int check(const char *text, size_t length, const dimorder_view *given, size_t count, char *why, size_t room) {
    dimorder_contract contract;
    dimorder_message message = {why, room, 0};
    dimorder_status status = dimorder_parse_with(text, length, &contract, &message);
    return (int)(status != DIMORDER_OK ? status : dimorder_check(&contract, given, count, &message));
}
"""


class Sum(nn.Module):
    """As little as a delegate can do with all of its inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return sum(inputs[1:], inputs[0] + 0.25)


def build(folder: Path) -> Path:
    (folder / "CMakeLists.txt").write_text(
        PROJECT.format(source=Path(__file__).with_suffix(".cpp").resolve())
    )
    configure = ["cmake", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-Ddimorder_DIR={PACKAGE}", f"-Dexecutorch_DIR={executorch_package()}"]
    for command in (configure, ["cmake", "--build", folder / "build", "-j2"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "build" / "device_guard"


def measure(program: Path, folder: Path, inputs: int, rounds: int, calls: int) -> dict[str, object]:
    """Nanoseconds and heap allocations of a call in each way, of a network with so many inputs."""
    generator = torch.Generator().manual_seed(1)
    example = tuple(torch.randn(SHAPE, generator=generator) for _ in range(inputs))
    lowered = dimorder.lower(Sum().eval(), example, target="xnnpack", input_orders="NHWC")
    path = lowered.save(folder / f"sum{inputs}.pte")
    command = [program, path, str(rounds), str(calls)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    times: dict[str, list[float]] = defaultdict(list)
    allocations = {}
    for line in done.stdout.splitlines():
        name, *numbers = line.split()
        if len(numbers) == 2:
            allocations[name] = float(numbers[1])
        else:
            times[name].append(float(numbers[0]))
    beyond = {
        way: statistics.median(a - b for a, b in zip(times["program"], times[way], strict=True))
        for way in ("module", "method")
    }
    return {
        "inputs": inputs,
        "median_ns": {name: round(statistics.median(found)) for name, found in times.items()},
        "beyond_module_ns": round(beyond["module"]),
        "beyond_method_ns": round(beyond["method"]),
        "allocations": allocations,
        "rounds": rounds,
        "calls": calls,
    }


def code_bytes(compiler: str, source: Path, *flags: str) -> int:
    """Bytes of code and constants that one source becomes."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "one.o"
        command = [compiler, "-c", source, "-o", target, "-Os", "-I", CPP / "include", *flags]
        subprocess.run(command, check=True)
        size = shutil.which(compiler.rpartition("-")[0] + "-size") or "size"
        table = subprocess.run([size, "-A", target], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[1]) for row in rows if row and row[0].startswith((".text", ".rodata", ".data.rel.ro")))


def sizes(folder: Path) -> dict[str, dict[str, int]]:
    """Bytes of each part of the guard for each machine that there is a compiler for."""
    checker = folder / "checker.c"
    checker.write_text(CHECKER)
    root = executorch_package().parents[1] / "include"
    cpp = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-isystem", str(root)]
    cpp += ["-isystem", str(root / "executorch/runtime/core/portable_type/c10")]
    cpp += ["-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_LOG_ENABLED=0"]
    found = {}
    for machine, (c, cxx) in COMPILERS.items():
        if shutil.which(c) is None or shutil.which(cxx) is None:
            continue
        one = header_bytes(c, checker)
        for source in sorted((CPP / "src").glob("*.c*")):
            is_c = source.suffix == ".c"
            one[source.name] = code_bytes(c if is_c else cxx, source, *([] if is_c else cpp))
        one["src together"] = sum(one[source.name] for source in (CPP / "src").glob("*.c*"))
        found[machine] = one
    machine, c, flags = BARE_METAL
    if shutil.which(c) is not None:
        found[machine] = header_bytes(c, checker, *flags)
    return found


def header_bytes(compiler: str, checker: Path, *flags: str) -> dict[str, int]:
    """Bytes of a C program that reads a contract and checks tensors, with messages and without."""
    return {
        "contract.h in a C program": code_bytes(compiler, checker, "-std=c99", *flags),
        "contract.h without messages": code_bytes(
            compiler, checker, "-std=c99", "-DDIMORDER_WITHOUT_MESSAGES", *flags
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dimorder-") as name:
        folder = Path(name)
        program = build(folder)
        rows = [measure(program, folder, inputs, options.rounds, options.calls) for inputs in (1, 4)]
        code = sizes(folder)
    for row in rows:
        print(
            f"{row['inputs']} inputs  {row['median_ns']} ns  beyond Module {row['beyond_module_ns']} ns, "
            f"beyond Method {row['beyond_method_ns']} ns  allocations {row['allocations']}"
        )
    for machine, parts in code.items():
        print(machine, parts)
    if options.out:
        record.write(
            options.out,
            "device_guard",
            ("torch", "executorch"),
            promised_ns=PROMISED_NS,
            calls=rows,
            code_bytes=code,
        )


if __name__ == "__main__":
    main()
