"""Convert one network to a `.tflite` by one tool: ours, litert-torch or onnx2tf.

    python -m benchmarks.tflite_tools TOOL NETWORK FILE

The tools cannot be installed side by side, so benchmarks/litert.py runs this command in the environment of
each. A picture goes in channels-last, and results come out in PyTorch's order (onnx2tf: channels-last). The
last line printed is JSON: the seconds of the conversion, and the CPU seconds of its threads and processes.
They are measured after the conversion of a network of one operator, for which the tool imports its framework.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import latency
from tests import zoo

NETWORKS = {**{each.name: each for each in zoo.networks() if not each.targets}, **latency.NETWORKS}
_PICTURES = "calibration_image_sample_data_20x128x128x3_float32.npy"
Convert = Callable[[nn.Module, "tuple[Any, ...]", "dict[str, Any]", Path], None]


def takes_pictures(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the one input of a call is of rank 4."""
    return len(args) == 1 and not kwargs and args[0].dim() == 4


def _by_dimorder(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> None:
    import dimorder

    orders = "NHWC" if takes_pictures(args, kwargs) else None
    dimorder.lower(model, args, kwargs, target="litert", input_orders=orders).save(path)


def _by_litert_torch(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> None:
    import litert_torch

    if takes_pictures(args, kwargs):
        model = litert_torch.to_channel_last_io(model, args=[0])
        args = (args[0].permute(0, 2, 3, 1).contiguous(),)
    litert_torch.convert(model, args, kwargs or None).export(str(path))


def _by_onnx2tf(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> None:
    """Convert by ONNX. onnx2tf would download pictures for its own checks, unless such a file is there."""
    import onnx2tf

    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, _PICTURES), torch.rand(20, 128, 128, 3).numpy())
        network = Path(folder, "net.onnx")
        torch.onnx.export(model, args, str(network), kwargs=kwargs, dynamo=True, external_data=False)
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            onnx2tf.convert(str(network), output_folder_path=folder, non_verbose=True)
        Path(folder, "net_float32.tflite").rename(path)


TOOLS: Mapping[str, Convert] = {
    "dimorder": _by_dimorder,
    "litert-torch": _by_litert_torch,
    "onnx2tf": _by_onnx2tf,
}


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(tool: str, name: str, path: str) -> None:
    """Convert a network, and print what it took as JSON."""
    warnings.simplefilter("ignore")
    network = NETWORKS[name]
    model, (args, kwargs) = network.build(), network.call()
    with tempfile.TemporaryDirectory() as folder:  # untimed: a tool imports its framework once
        TOOLS[tool](nn.ReLU(), (torch.randn(1, 3, 5, 7),), {}, Path(folder, "first.tflite"))
    start, cpu = time.perf_counter(), _cpu_s()
    TOOLS[tool](model, args, kwargs, Path(path))
    print(json.dumps({"seconds": time.perf_counter() - start, "cpu_s": _cpu_s() - cpu}))


if __name__ == "__main__":
    main(*sys.argv[1:])
