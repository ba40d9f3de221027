"""The C and C++ sources compile without warnings, under each compiler that is found."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from dimorder.cmake import CPP, executorch_package
from dimorder.errors import UnsupportedError
from tests.marks import slow_but

C_COMPILERS = ("gcc", "clang", "aarch64-linux-gnu-gcc", "arm-none-eabi-gcc")
CPP_COMPILERS = ("g++", "clang++", "aarch64-linux-gnu-g++")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
STRICT = (*WARNINGS, "-Wsign-conversion", "-Wshadow", "-pedantic")
USES_ALL = """
#include <dimorder/contract.h>

int use(const void *pte, size_t bytes, const dimorder_view *given);
int use(const void *pte, size_t bytes, const dimorder_view *given) {
    char text[512];
    dimorder_message why = {text, sizeof text, 0};
    dimorder_contract contract;
    size_t length = 0;
    const char *lines = dimorder_find_contract(pte, bytes, &length);
    float numbers[2] = {0.5f, -1.0f};
    int8_t integers[2];
    if (dimorder_parse_with(lines, length, &contract, &why) != DIMORDER_OK) return 1;
    if (contract.inputs < 1 || contract.outputs < 1) return 2;
    dimorder_tensor tensor = dimorder_output(&contract, 0);
    dimorder_quantize(&tensor, numbers, 2, integers);
    dimorder_dequantize(&tensor, integers, 2, numbers);
    return (int)dimorder_check(&contract, given, (size_t)contract.inputs, &why);
}
"""


def compile_one(compiler: str, source: Path, *flags: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    command = [compiler, "-c", source, "-o", "/dev/null", "-I", CPP / "include", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def executorch_flags() -> list[str]:
    try:
        root = executorch_package().parents[1] / "include"
    except UnsupportedError as error:
        pytest.skip(error.found)
    portable = root / "executorch" / "runtime" / "core" / "portable_type" / "c10"
    return ["-isystem", str(root), "-isystem", str(portable), "-DC10_USING_CUSTOM_GENERATED_MACROS"]


@pytest.mark.parametrize("level", ["-O0", "-O2", "-Os"])
@pytest.mark.parametrize("compiler", C_COMPILERS)
def test_the_header_is_c99_without_warnings(compiler: str, level: str, tmp_path: Path) -> None:
    source = tmp_path / "use.c"
    source.write_text(USES_ALL)
    compile_one(compiler, source, "-std=c99", level, *STRICT)


@pytest.mark.parametrize("standard", slow_but(["c++17", "c++20"], ["c++17"]))
@pytest.mark.parametrize("compiler", CPP_COMPILERS)
def test_the_header_is_cpp_without_warnings(compiler: str, standard: str, tmp_path: Path) -> None:
    source = tmp_path / "use.cpp"
    source.write_text(USES_ALL)
    compile_one(compiler, source, f"-std={standard}", "-O2", *STRICT)


def test_a_file_of_cpp_without_messages_leaves_other_files_their_own(tmp_path: Path) -> None:
    source, made = tmp_path / "use.cpp", tmp_path / "use.o"
    source.write_text(USES_ALL)
    compile_one("g++", source, "-std=c++17", "-DDIMORDER_WITHOUT_MESSAGES", *STRICT, "-o", str(made))
    symbols = subprocess.run(["nm", "--defined-only", made], capture_output=True, text=True, check=True)
    shared = [line.split()[2] for line in symbols.stdout.splitlines() if line.split()[1] in "TDRBWVu"]
    assert [name for name in shared if "dimorder" in name] == ["_Z3usePKvmPK13dimorder_view"]


@pytest.mark.parametrize("alone", ["-std=c99", "-std=c11", "-std=gnu17"])
def test_the_header_needs_no_other_before_it(alone: str, tmp_path: Path) -> None:
    source = tmp_path / "alone.c"
    source.write_text("#include <dimorder/contract.h>\n#include <dimorder/contract.h>\nint unused(void);\n")
    compile_one("gcc", source, alone, *STRICT, "-Wno-unused-function")


SOURCES = sorted((CPP / "src").glob("*.cpp")) + sorted((CPP / "runner").glob("*.cpp"))


NAMES = [f"{path.parent.name}/{path.name}" for path in SOURCES]


@pytest.mark.parametrize(
    ("name", "compiler"),
    slow_but(
        itertools.product(NAMES, CPP_COMPILERS),
        [*((name, "g++") for name in NAMES), *(("src/program.cpp", compiler) for compiler in CPP_COMPILERS)],
    ),
)
def test_the_sources_compile_without_warnings(name: str, compiler: str) -> None:
    source = CPP / name
    flags = ["-fno-exceptions", "-fno-rtti"] if source.parent.name == "src" else []
    # What is seen only by following values needs an optimising compiler: one of them does it.
    flags.append("-O2" if compiler == "g++" else "-fsyntax-only")
    compile_one(compiler, source, "-std=c++17", *WARNINGS, *flags, *executorch_flags())


@pytest.mark.parametrize("compiler", C_COMPILERS[:3])
def test_the_transposition_compiles_without_warnings(compiler: str) -> None:
    compile_one(compiler, CPP / "src" / "transpose.c", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
