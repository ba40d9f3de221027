"""How much faster networks are in channels-last order on an accelerator, by `to_channels_last`.

python -m benchmarks.accelerator [--device cuda] [--rounds 15] [--seconds 500] [--out accelerator.json]

Each figure is the row-major time over the channels-last time, of runs in turn. It is measured for inference
and for a training step, in float32 and bfloat16, eager and under `torch.compile`. Target `torch` is measured
for inference in float32 under `torch.compile`.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

import dimorder
from benchmarks import record
from benchmarks.eager import tcn_of_words, temporal
from dimorder.cpu import machine
from dimorder.latency.timing import interleaved, ratio

PACKAGES = ("torch", "torchvision")
DTYPES = (torch.bfloat16, torch.float32)
TARGET = "target torch, compiled"  # in float32 alone
COLUMNS = (
    ("inference", "eager"),
    ("training", "eager"),
    ("inference", "compiled"),
    ("inference", TARGET),
    ("training", "compiled"),
)
# Rounding moves a result by this share of its largest value at most: TF32 is off, and bfloat16 has 8 bits.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


def _torchvision(name: str, *shape: int) -> tuple[nn.Module, Tensor]:
    import torchvision

    models = torchvision.models.video if len(shape) == 5 else torchvision.models
    return getattr(models, name)(weights=None), torch.randn(shape)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "resnet50": lambda: _torchvision("resnet50", 64, 3, 224, 224),
    "convnext_tiny": lambda: _torchvision("convnext_tiny", 64, 3, 224, 224),
    "r3d_18": lambda: _torchvision("r3d_18", 16, 3, 16, 112, 112),
    "TCN": lambda: (temporal(1, 25, 7, 8), torch.randn(256, 1, 784)),
    "TCN of words": tcn_of_words,
}


@dataclass(frozen=True)
class Case:
    """One comparison: a network, its type, what is done with it, and how torch runs it."""

    network: str
    dtype: torch.dtype
    mode: str
    how: str

    def describe(self) -> dict[str, Any]:
        return {**vars(self), "dtype": str(self.dtype)[6:]}


def cases(networks: Sequence[str]) -> Iterator[Case]:
    """Yield the fast cases first: a run that ends early has a table of whole columns."""
    for mode, how in COLUMNS:
        dtypes = (torch.float32,) if how == TARGET else DTYPES
        yield from (Case(name, dtype, mode, how) for dtype in dtypes for name in networks)


def synchronize(device: torch.device) -> None:
    """Wait for what the device was given to compute; a CPU computes it in the call."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def inference(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Return a function that runs the model and waits for its result."""

    def run() -> Tensor:
        with torch.no_grad():
            (result,) = pytree.tree_leaves(model(x))
        synchronize(x.device)
        return cast(Tensor, result)

    return run


def training(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Return a function that takes one step of SGD, waits for it, and returns the loss before it."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        synchronize(x.device)
        return loss.detach()

    return step


def compare(case: Case, device: torch.device, rounds: int) -> dict[str, Any]:
    """Return a row with the milliseconds of both orders and the ratio of their medians with its interval."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = NETWORKS[case.network]()
    model.train(case.mode == "training")
    if case.how == TARGET:
        lowered = dimorder.lower(model, (x,), target="torch")
        planned: nn.Module = move_to_device_pass(lowered.artifact.program, str(device)).module()
    model, x = model.to(device, case.dtype), x.to(device, case.dtype)
    ways = {"row_major": (model, x)}
    if case.how == TARGET:
        ways["planned"] = planned, x
    else:
        ways["channels_last"] = dimorder.to_channels_last(copy.deepcopy(model)), dimorder.to_channels_last(x)
    begin = training if case.mode == "training" else inference
    calls = {
        name: begin(network if case.how == "eager" else torch.compile(network), given)
        for name, (network, given) in ways.items()
    }
    return case.describe() | timed(calls, rounds, TOLERANCE[case.dtype])


def timed(calls: dict[str, Callable[[], Tensor]], rounds: int, tolerance: float) -> dict[str, Any]:
    """Check that the calls agree, and time them in turn."""
    results = []
    for call in calls.values():
        torch.manual_seed(0)  # ConvNeXt drops blocks at random while it trains
        results.append(call().double())
    expected, found = results
    error = float((expected - found).abs().max() / expected.abs().max())
    if not error <= tolerance:
        raise ArithmeticError(f"results differ by {error:.1e}, where {tolerance:.0e} is allowed")
    for call in calls.values():
        for _ in range(3):  # cuDNN and the allocator settle
            call()
    times = interleaved(calls, rounds)
    row: dict[str, Any] = {f"{name}_ms": [round(each, 4) for each in ms] for name, ms in times.items()}
    return {**row, "error": error, "ratio": ratio(*times.values())}


def table(measured: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    lines = ["# Channels-last order on an accelerator", "", *record.record_lines(measured)]
    lines += ["| network | type | mode | how | row-major, ms | channels-last, ms | times as fast |"]
    lines += ["| --- | --- | --- | --- | ---: | ---: | ---: |"]
    for row in measured["rows"]:
        cells = [row["network"], row["dtype"], row["mode"], row["how"]]
        if "ratio" in row:
            times = [row[key] for key in row if key.endswith("_ms")]
            cells += [f"{sorted(ms)[len(ms) // 2]:.2f}" for ms in times]
            cells.append("{:.2f} ({:.2f} to {:.2f})".format(*row["ratio"]))
        else:
            cells += ["", "", row["error"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=torch.device, default=torch.accelerator.current_accelerator())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=500, help="begin no comparison after these seconds")
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=tuple(NETWORKS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    environment = machine(PACKAGES)
    if options.device.type == "cuda":
        environment["accelerator"] = torch.cuda.get_device_name(options.device)
    begun = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for case in cases(options.networks):
        if time.perf_counter() - begun > options.seconds:
            break
        try:
            rows.append(compare(case, options.device, options.rounds))
        except Exception as error:  # whatever is raised is what is recorded of it
            rows.append(case.describe() | record.failed(error))
        record.keep(options.out, "accelerator", environment, rows, table)
        shown = rows[-1].get("ratio", rows[-1]["error"])
        print(f"{time.perf_counter() - begun:5.0f} s", *case.describe().values(), shown, flush=True)


if __name__ == "__main__":
    main()
