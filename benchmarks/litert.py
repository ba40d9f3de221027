"""Compare our `.tflite` files with those of litert-torch and onnx2tf, and with our own `.pte`.

    python -m benchmarks.litert --tool litert-torch=PYTHON [--tool onnx2tf=PYTHON] [--networks NAME ...]

Each tool converts in its own environment, whose Python is given; `make build/TOOL/.installed` makes it.
One LiteRT with XNNPACK runs all files here, on one thread. They are checked against eager, and timed in turn,
each timed call after a pause and untimed ones. `--files FOLDER` keeps the files and uses them again. Results
are kept in benchmarks/results/litert.json after every network; the .md beside it is the table. Ends with 1 if
a bound does not hold.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dimorder
from benchmarks.command import Row, command_line, measured, verdict
from benchmarks.latency import NETWORKS
from benchmarks.record import record_lines
from benchmarks.tflite_tools import TOOLS, takes_pictures
from dimorder.latency.timing import Invocation, geometric_mean, interleaved, ratio
from dimorder.targets.litert.runtime import check

PACKAGES = ("torch", "ai-edge-litert", "executorch", "torchvision", "timm", "transformers")
OURS, PTE = "dimorder", "pte"
CONVERSION_LIMIT_S = 1800
MOST = 1.03  # of litert-torch's milliseconds, on any network
MEAN = 0.90  # the same, geometric mean
LEAST = {"convnext_tiny": 0.65}
SECONDS = {"litert-torch": 0.3, "onnx2tf": 0.05}  # our CPU seconds over a tool's, geometric mean
MAX_ERROR = 1e-4  # of ours, relative to the largest value


def timed(name: str, pythons: Mapping[str, str], files: Path, rounds: int) -> Row:
    """Return one row. A tool that fails has its error there instead of figures."""
    network = NETWORKS[name]
    model, (args, kwargs) = network.build(), network.call()
    inputs = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    fed = [inputs[0].permute(0, 2, 3, 1)] if takes_pictures(args, kwargs) else inputs
    expected = network.run(model)
    row: Row = {"network": name, "inputs": [list(x.shape) for x in inputs], "tools": {}}
    calls: dict[str, Invocation] = {}
    for tool, python in {OURS: sys.executable, **pythons}.items():
        path = files / tool / f"{name}.tflite"
        cell = row["tools"][tool] = convert(tool, python, name, path)
        if "error" in cell:
            continue
        try:
            cell |= content(path)
            calls[tool], results = _open(path, fed)
            cell["error_of_largest"] = _error(results, expected)
        except Exception as error:  # whatever LiteRT raises is what is recorded of the file
            row["tools"][tool] = {"error": f"{type(error).__name__}: {error}"[:200]}
            calls.pop(tool, None)
    if OURS not in calls:
        return {**row, "ms": {}, "ratios": {}}
    calls[PTE] = _open_pte(model, args, kwargs, inputs)
    times = interleaved(calls, rounds)
    row["ms"] = {tool: [round(each, 4) for each in ms] for tool, ms in times.items()}
    row["ratios"] = {tool: ratio(times[OURS], ms) for tool, ms in times.items() if tool != OURS}
    return row


def convert(tool: str, python: str, name: str, path: Path) -> Row:
    """Return what the conversion took, or its error. Another tool's file is used again if it is there."""
    kept = path.with_suffix(".json")
    if tool != OURS and kept.exists():
        return dict(json.loads(kept.read_text()))
    path.parent.mkdir(parents=True, exist_ok=True)
    folders = os.pathsep.join(("src", ".", os.environ.get("PYTHONPATH", "")))
    # onnx2tf runs programs of its environment, in a folder of its own.
    found = [str(Path(python).parent.absolute()), os.environ["PATH"]]
    environment = {
        **os.environ,
        "PYTHONPATH": folders,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join(found),
    }
    command = [python, "-m", "benchmarks.tflite_tools", tool, name, str(path)]
    try:
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CONVERSION_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        cell = {"error": f"not done after {CONVERSION_LIMIT_S} s"}
    else:
        last = (ran.stdout if ran.returncode == 0 else ran.stderr).strip().splitlines()[-1:]
        text = last[0].replace(f"{Path.cwd()}/", "") if last else f"ended with {ran.returncode}"
        cell = json.loads(text) if ran.returncode == 0 else {"error": text[:200]}
    kept.write_text(json.dumps(cell))
    return dict(cell)


def content(path: Path) -> Row:
    """Return what LiteRT has to do for a file: raises RuntimeError if it cannot run it."""
    summary = check(str(path), path.read_bytes())
    if summary.error:
        raise RuntimeError(summary.error)
    moving = [each for each in summary.operators if each.kind == "TRANSPOSE" and each.moves]
    return {
        "transposes": len(moving),
        "transposed_bytes": sum(each.bytes for each in moving),
        "reshapes": summary.counts["RESHAPE"],
        "operators": len(summary.operators),
        "partitions": summary.delegates,
        "beside": dict(summary.beside or {}),
        "file_bytes": path.stat().st_size,
    }


def _open(path: Path, inputs: Sequence[Tensor]) -> tuple[Invocation, list[Tensor]]:
    """Return a call of the loaded file on `inputs`, and its results, both in the network's order."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    signature = interpreter.get_signature_runner()
    details = [signature.get_input_details(), signature.get_output_details()]
    del signature  # an interpreter does not run while something else holds it
    # litert-torch numbers its names, and lists the tensors in another sequence; we list them in PyTorch's.
    by_name = [[each["index"] for _, each in sorted(found.items())] for found in details]
    listed = [interpreter.get_input_details(), interpreter.get_output_details()]
    as_listed = [[each["index"] for each in found] for found in listed]
    takes, gives = as_listed if path.parent.name == OURS else by_name
    for index, x in zip(takes, inputs, strict=True):
        interpreter.set_tensor(index, x.contiguous().numpy())
    interpreter.invoke()
    return interpreter.invoke, [torch.from_numpy(interpreter.get_tensor(index)) for index in gives]


def _open_pte(model: Any, args: Any, kwargs: Any, inputs: Sequence[Tensor]) -> Invocation:
    """Return a call of our `.pte` for XNNPACK, with the same promise on its input."""
    orders = "NHWC" if takes_pictures(args, kwargs) else None
    lowered = dimorder.lower(model, args, kwargs, target="xnnpack", input_orders=orders)
    with tempfile.TemporaryDirectory() as folder:
        lowered.save(Path(folder, "net.pte"))
        program = dimorder.load(Path(folder, "net.pte"), threads=1)
    fed = [inputs[0].contiguous(memory_format=torch.channels_last)] if orders else list(inputs)
    return partial(program.run, *fed)


def _error(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest error over the largest value. onnx2tf gives pictures channels-last."""
    worst = 0.0
    for y, wanted in zip(results, expected, strict=True):
        if y.shape != wanted.shape and y.dim() > 2:
            y = y.movedim(-1, 1)
        y = y.reshape(wanted.shape)
        worst = max(worst, float((y.double() - wanted.double()).abs().max() / wanted.double().abs().max()))
    return worst


# -- the table and the bounds


def _median(row: Row, tool: str) -> float | None:
    ms = row["ms"].get(tool)
    return statistics.median(ms) if ms else None


def cpu_share(rows: Sequence[Row], tool: str) -> float:
    """Return our CPU seconds over a tool's, geometric mean."""
    pairs = [[row["tools"].get(each, {}).get("cpu_s") for each in (OURS, tool)] for row in rows]
    return geometric_mean([ours / theirs for ours, theirs in pairs if ours and theirs])


def latency_share(rows: Sequence[Row], tool: str) -> float:
    """Return our milliseconds over a tool's, geometric mean."""
    return geometric_mean([row["ratios"][tool][0] for row in rows if tool in row["ratios"]])


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the bounds that do not hold."""
    found = []
    for row in rows:
        name, ours, theirs = row["network"], row["tools"][OURS], row["tools"].get("litert-torch", {})
        if "error" in ours:
            found.append(f"{name}: ours fails: {ours['error']}")
            continue
        if ours["error_of_largest"] > MAX_ERROR:
            found.append(f"{name}: ours is {ours['error_of_largest']:.1e} off")
        if ours["transposes"] > theirs.get("transposes", ours["transposes"]):
            found.append(f"{name}: {ours['transposes']} TRANSPOSEs, litert-torch {theirs['transposes']}")
        took, most = row["ratios"].get("litert-torch"), LEAST.get(name, MOST)
        if took and took[1] > most:
            found.append(f"{name}: {took[0]:.2f} of litert-torch's milliseconds, not {most}")
    if not latency_share(rows, "litert-torch") <= MEAN:
        found.append(f"{latency_share(rows, 'litert-torch'):.3f} of litert-torch's milliseconds, not {MEAN}")
    return [*found, *missed_seconds(rows)]


def missed_seconds(rows: Sequence[Row]) -> list[str]:
    """Return the bounds of CPU seconds that do not hold."""
    return [
        f"{cpu_share(rows, tool):.3f} of {tool}'s CPU seconds, not {most}"
        for tool, most in SECONDS.items()
        if cpu_share(rows, tool) > most
    ]


_FIGURES = ("transposes", "reshapes", "partitions")


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    tools = [tool for tool in TOOLS if any(tool in row["tools"] for row in rows)]
    others = [*tools[1:], PTE]
    head = (
        *("network", "input", "ours, ms", *(f"over {tool}" for tool in others)),
        *("transposes", "reshapes", "partitions", "beside XNNPACK", "MB", "CPU s", "error"),
    )
    lines = [
        "# `.tflite` files",
        "",
        "Milliseconds of our file on one thread, medians; ours over the others (95 % interval), and over our "
        f"own `.pte`. Then, ours / {' / '.join(tools[1:])}: TRANSPOSEs that move bytes, RESHAPEs, parts that "
        "XNNPACK computes, operators beside them, megabytes, CPU seconds of the conversion (ours verifies), "
        "and the error over the largest value.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- | --- |{' ---: |' * (len(head) - 2)}",
        *(_line(row, tools) for row in rows),
        "",
    ]
    for tool in others:
        took = f"{latency_share(rows, tool):.3f} of the milliseconds"
        spent = "" if tool == PTE else f", {cpu_share(rows, tool):.3f} of the CPU seconds"
        lines.append(f"Geometric mean, ours over {tool}: {took}{spent}.\n")
    return "\n".join([*lines, *error_lines(rows)]).rstrip() + "\n"


def error_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each conversion that failed."""
    return [
        f"{row['network']}, {tool}: `{cell['error']}`\n"
        for row in rows
        for tool, cell in row["tools"].items()
        if "error" in cell
    ]


def _line(row: Row, tools: Sequence[str]) -> str:
    cells = [row["tools"].get(tool, {}) for tool in tools]
    ms = _median(row, OURS)

    def each(key: str, form: str = "{}") -> str:
        return " / ".join("–" if cell.get(key) is None else form.format(cell[key]) for cell in cells)

    beside = " / ".join(str(sum(cell["beside"].values())) if "beside" in cell else "–" for cell in cells)
    sizes = " / ".join(f"{cell['file_bytes'] / 1e6:.1f}" if "file_bytes" in cell else "–" for cell in cells)
    parts = [
        row["network"],
        ", ".join("x".join(map(str, shape)) for shape in row["inputs"]),
        "fails" if ms is None else f"{ms:.2f}",
        *(
            "{:.2f} ({:.2f} to {:.2f})".format(*row["ratios"][tool]) if tool in row["ratios"] else "–"
            for tool in (*tools[1:], PTE)
        ),
        *map(each, _FIGURES),
        *(beside, sizes, each("cpu_s", "{:.1f}"), each("error_of_largest", "{:.0e}")),
    ]
    return f"| {' | '.join(parts)} |"


def _told(row: Row) -> str:
    ratios = ", ".join(f"{each[0]:.2f} of {tool}" for tool, each in row["ratios"].items())
    return f"{row['network']}: {ratios or row['tools'][OURS].get('error')}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("litert", __doc__, NETWORKS)
    parser.add_argument("--tool", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="keep the files, and use them again")
    options = parser.parse_args(arguments)
    pythons = dict(each.split("=", 1) for each in options.tool)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        files = options.files or Path(folder)
        measure = partial(timed, pythons=pythons, files=files, rounds=options.rounds)
        rows = measured("litert", options, NETWORKS, PACKAGES, measure, table, _told)
    return verdict(missed(rows))


if __name__ == "__main__":
    sys.exit(main())
