"""Compare our int8 `.tflite` of EfficientNet-Lite0 with what ai-edge-quantizer makes of our float file.

    python -m benchmarks.litert_int8 --tool PYTHON

PYTHON has ai-edge-quantizer: `make build/litert-torch/.installed` makes its environment. Both are calibrated
on the same crops of photos. One LiteRT with XNNPACK runs both here, on one thread and other crops. It counts
the crops on which they name the float network's class. It also measures the signal-to-noise ratio of their
logits, and milliseconds, timed in turn. Ends with 1 if ours agrees less often or is slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dimorder
from benchmarks.record import write
from dimorder.latency.timing import interleaved, ratio
from dimorder.targets.litert.runtime import check
from tests.quantization import photos

CALIBRATED, TRIED = 32, 200
OURS, THEIRS = "dimorder", "ai-edge-quantizer"
PACKAGES = ("torch", "ai-edge-litert", "torchao")
MOST = 1.0  # of their milliseconds
# What runs in the other environment: float file, calibration inputs, quantised file.
QUANTIZE = """
import sys, numpy
from ai_edge_quantizer import quantizer, recipe
plain, inputs, made = sys.argv[1:]
pictures = numpy.load(inputs)
made_of = quantizer.Quantizer(plain, recipe.static_wi8_ai8())
calls = {"serving_default": [{NAME: each} for each in pictures]}
found = made_of.calibrate(calls)
made_of.quantize(found).export_model(made)
"""


def files(folder: Path, python: str) -> dict[str, Path]:
    """Return our int8 file and that of ai-edge-quantizer, both int8 at the boundary and NHWC."""
    network, crops = photos.efficientnet_lite0(), list(photos.crops(CALIBRATED, seed=0))
    plain = dimorder.lower(network, (crops[0],), target="litert", input_orders="NHWC")
    plain.save(folder / "float.tflite")
    quantised = dimorder.quantize(network, [(each,) for each in crops], "int8", target="litert")
    types = {"input_types": "int8", "output_types": "int8"}
    ours = dimorder.lower(quantised, (crops[0],), target="litert", input_orders="NHWC", **types)
    made = {OURS: ours.save(folder / "ours.tflite"), THEIRS: folder / "theirs.tflite"}
    np.save(folder / "crops.npy", np.stack([each.permute(0, 2, 3, 1).numpy() for each in crops]))
    (name,) = (spec.name for spec in plain.contract.inputs)
    script = QUANTIZE.replace("NAME", repr(name))
    given = [str(folder / each) for each in ("float.tflite", "crops.npy", "theirs.tflite")]
    subprocess.run([python, "-c", script, *given], check=True, capture_output=True)
    return made


def opened(path: Path) -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    """Return a file as a function of an NCHW picture, and a call of it on the last picture."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=1)
    interpreter.allocate_tensors()
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(picture: Tensor) -> Tensor:
        scale, zero = taken["quantization"]
        levels = (picture.permute(0, 2, 3, 1) / scale + zero).round().clamp(-128, 127)
        interpreter.set_tensor(taken["index"], levels.to(torch.int8).contiguous().numpy())
        interpreter.invoke()
        scale, zero = given["quantization"]
        return (torch.from_numpy(interpreter.get_tensor(given["index"])).float() - zero) * scale

    return run, interpreter.invoke


def measured(folder: Path, python: str, rounds: int) -> dict[str, Any]:
    """Return what is recorded of both files."""
    network, pictures = photos.efficientnet_lite0(), list(photos.crops(TRIED, seed=1))
    with torch.no_grad():
        wanted = torch.cat([network(each) for each in pictures])
    record: dict[str, Any] = {"network": "efficientnet_lite0", "calibrated": CALIBRATED, "tried": TRIED}
    calls = {}
    for tool, path in files(folder, python).items():
        run, calls[tool] = opened(path)
        got = torch.cat([run(each) for each in pictures])
        summary = check(str(path), path.read_bytes())
        noise = ((got - wanted).double() ** 2).sum() / (wanted.double() ** 2).sum()
        record[tool] = {
            "same_class": int((got.argmax(1) == wanted.argmax(1)).sum()),
            "signal_to_noise_db": round(float(-10 * noise.log10()), 2),
            "operators": len(summary.operators),
            "partitions": summary.delegates,
            "beside": dict(summary.beside or {}),
            "file_bytes": path.stat().st_size,
        }
    times = interleaved(calls, rounds)
    for tool, ms in times.items():
        record[tool]["ms"] = round(statistics.median(ms), 3)
    record["ratio"] = ratio(times[OURS], times[THEIRS])
    return record


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", required=True, metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/litert_int8.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        record = measured(Path(folder), options.tool, options.rounds)
    ours, theirs = record[OURS], record[THEIRS]
    write(options.out, "litert_int8", PACKAGES, **record)
    print(json.dumps(record, indent=1))
    return int(ours["same_class"] < theirs["same_class"] or record["ratio"][0] > MOST)


if __name__ == "__main__":
    sys.exit(main())
