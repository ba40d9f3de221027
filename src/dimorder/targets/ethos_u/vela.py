"""Compile a TOSA graph with Vela, and keep its estimates.

ExecuTorch's own functions call Vela and pack its output in the format of the Ethos-U runtime. This module
needs executorch and ethos-u-vela.
"""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import ethosu.vela  # noqa: F401  # ExecuTorch imports without it
from executorch.backends.arm.arm_vela import vela_compile
from executorch.backends.arm.ethosu.compile_spec import EthosUCompileSpec
from executorch.exir.backend.compile_spec_schema import CompileSpec

from dimorder.errors import UnsupportedError, UsageError
from dimorder.plans.explanation import Place
from dimorder.targets.npu_report import NpuLayer, NpuReport

_ONE_AT_A_TIME = threading.Lock()  # Vela keeps tables of its own, and its output is redirected
KILO = 1024  # Vela's tables have memories in units of 1024 bytes


@dataclass(frozen=True)
class Compiled:
    """The NPU's command stream, the compile options of its delegate, and Vela's report."""

    stream: bytes
    options: Sequence[CompileSpec]
    report: NpuReport


def compile_by_vela(
    graph: bytes,
    accelerator: str,
    place_of: Callable[[str], Place],
    *,
    system_config: str | None = None,
    memory_mode: str | None = None,
) -> Compiled:
    """Compile a TOSA graph for an accelerator.

    `place_of` finds the operator of a tensor by the tensor's name.

    The configurations are sections of Vela's `Arm/vela.ini`, by default those of ExecuTorch. Raises
    `UsageError` for an unknown configuration, and `UnsupportedError` for a graph that Vela does not compile.
    """
    spec = EthosUCompileSpec(accelerator, system_config, memory_mode, ["--verbose-performance"])
    said = io.StringIO()
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory() as folder:
        _require_words(folder, system_config, memory_mode)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                made = vela_compile(graph, list(spec.compiler_flags), intermediate_path=folder)
        except (Exception, SystemExit) as error:
            raise _refused(accelerator, system_config, memory_mode, error, said.getvalue()) from error
        report = _report(Path(folder, "output"), accelerator, place_of)
    # The option for the performance report is not for the runtime.
    plain = EthosUCompileSpec(accelerator, system_config, memory_mode)
    return Compiled(bytes(made.processed_bytes), plain._to_list(), report)


def _require_words(*given: str | None) -> None:
    """Refuse white space in the options, since ExecuTorch passes them to Vela as one line."""
    for each in given:
        if each is not None and len(each.split()) != 1:
            raise UsageError("Vela's options", f"white space in {each!r}", "name one without")


def _refused(
    accelerator: str, system: str | None, memory: str | None, error: BaseException, said: str
) -> UnsupportedError | UsageError:
    found = str(getattr(error, "error_msg", error)).strip() or type(error).__name__
    found = " ".join(found.split())
    asked = ", ".join(filter(None, (system, memory)))
    if asked and type(error).__name__ in ("ConfigOptionError", "CliOptionError"):
        return UsageError(
            f"{accelerator} with {asked}", found, "choose a section of Vela's Arm/vela.ini, or leave it out"
        )
    last = " ".join(said.strip().splitlines()[-1:])
    return UnsupportedError(
        f"Vela for {accelerator}",
        found if not last or last in found else f"{found}: {last}",
        "choose another accelerator, or target tosa, which writes the graph as it is",
    )


def _report(folder: Path, accelerator: str, place_of: Callable[[str], Place]) -> NpuReport:
    (summary,) = _rows(next(folder.glob("*_summary_*.csv")))
    layers = [
        (row["Target"], NpuLayer(place_of(row["Name"]), row["NNG Operator"], *_counts(row)))
        for path in folder.glob("*_per-layer.csv")
        for row in _rows(path)
    ]

    def held(*areas: str) -> int:
        return round(sum(float(summary[f"{area}_memory_used"]) for area in areas) * KILO)

    return NpuReport(
        accelerator,
        summary["system_config"],
        summary["memory_mode"],
        metadata.version("ethos-u-vela"),
        round(float(summary["cycles_total"])),
        1000 * float(summary["inference_time"]),
        held("sram"),
        held("dram"),
        held("on_chip_flash", "off_chip_flash"),
        sum(where == "NPU" for where, _ in layers),
        sum(where != "NPU" for where, _ in layers),
        tuple(layer for _, layer in layers),
    )


def _counts(row: dict[str, str]) -> tuple[int, int]:
    return round(float(row["Op Cycles"])), round(float(row["MAC Count"]))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
