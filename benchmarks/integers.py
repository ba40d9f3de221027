"""Compare the speed of our int8 programs with ExecuTorch's int8, our float32, and ONNX Runtime's uint8.

    python -m benchmarks.integers [--networks NAME ...] [--rounds 60] [--repeats 1]

Each network is quantised by PT2E with XNNPACKQuantizer, per channel; ours and ExecuTorch's are made of that
one program. ONNX Runtime quantises the float network itself (QDQ, uint8 activations, int8 weights per
channel). It is left out if onnx and onnxruntime are not installed (extra `peers`). All take and give float32,
NCHW. The programs of a network are called in turn, each timed call after a pause and untimed ones. Results
are kept in benchmarks/results/integers.json after every network; the .md beside it is the table. Ends with 1
if a bound does not hold.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dimorder
from benchmarks.record import failed, record_lines, rows_kept
from dimorder.cpu import machine
from dimorder.files import write_whole
from dimorder.latency.timing import Invocation, geometric_mean, interleaved, ratio
from tests import zoo
from tests.targets.quantised import by_xnnpack, stock_pte
from tests.zoo.network import Network

CONVOLUTIONAL = (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "squeezenet1_1"),
    *("shufflenet_v2_x1_0", "densenet121", "efficientnet_b0", "regnet_y_400mf", "mobilenetv4_conv_small"),
    *("deeplabv3_mobilenet_v3_large", "unet", "yolo", "onet"),
)
NETWORKS = (*CONVOLUTIONAL, "convnext_tiny", "vit_tiny", "swin_t")
OTHERS = {"vit_tiny": Network("vit_tiny", zoo.timm("vit_tiny_patch16_224"), zoo.SQUARE_224, frozenset())}
SHAPES = {"onet": (1, 3, 48, 48), "unet": (1, 3, 256, 256), "yolo": (1, 3, 256, 256)}  # others: 224 x 224
PACKAGES = ("torch", "executorch", "torchao", "torchvision", "timm")
MOST = 1.02  # of ExecuTorch's int8, on any network
LEAST = {"convnext_tiny": 0.35, "vit_tiny": 0.6, "shufflenet_v2_x1_0": 0.85}  # where its conversions cost
OF_FLOAT = 0.55  # of our float32, geometric mean over the convolutional networks
OF_ONNX = 1.05  # of ONNX Runtime's uint8, geometric mean
OF_LOWERING = 0.2  # of ExecuTorch's seconds, geometric mean

Row = dict[str, Any]
_Make = Callable[
    [nn.Module, nn.Module, Tensor], bytes
]  # of the float network, the quantised one and an input


def _ours(model: nn.Module, quantised: nn.Module, x: Tensor) -> bytes:
    return bytes(dimorder.lower(quantised, (x,), target="xnnpack").artifact.data)


def _ours_in_float(model: nn.Module, quantised: nn.Module, x: Tensor) -> bytes:
    return bytes(dimorder.lower(model, (x,), target="xnnpack").artifact.data)


def _executorch(model: nn.Module, quantised: nn.Module, x: Tensor) -> bytes:
    return stock_pte(quantised, x)


PROGRAMS: Mapping[str, _Make] = {"ours": _ours, "ours float32": _ours_in_float, "ExecuTorch": _executorch}


def _call(pte: bytes, x: Tensor) -> Invocation:
    import executorch.kernels.quantized  # noqa: F401  the kernels of what ExecuTorch leaves outside
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(pte)
    method = program.load_method("forward")

    def call(keep: Any = program) -> object:  # a method does not keep its program
        return method.execute([x])

    return call


def _onnx_runtime(model: nn.Module, x: Tensor, folder: Path) -> Invocation:
    """ONNX Runtime's program of its own quantised network."""
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Examples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.examples = iter([{"x": x.numpy()}, {"x": (x.flip(-1) * 1.1).numpy()}])

        def get_next(self) -> Any:
            return next(self.examples, None)

    plain, prepared, quantised = (str(folder / f"{name}.onnx") for name in ("plain", "prepared", "quantised"))
    torch.onnx.export(
        model, (x,), plain, input_names=["x"], opset_version=18, dynamo=True, external_data=False
    )
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        quantised,
        Examples(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(quantised, options, providers=["CPUExecutionProvider"])
    given = {"x": x.numpy()}
    return lambda: session.run(None, given)


def measure(name: str, rounds: int, repeats: int) -> Row:
    """One row of the table. A way that fails has its error there instead of figures."""
    model = (OTHERS.get(name) or zoo.network(name)).build()
    x = torch.randn(SHAPES.get(name, zoo.SQUARE_224), generator=torch.Generator().manual_seed(1))
    quantised = by_xnnpack(model, x)
    measured: Row = {"network": name, "input": "x".join(map(str, x.shape))}
    calls: dict[str, Invocation] = {}
    for way, make in PROGRAMS.items():
        seconds = []
        try:
            for _ in range(repeats):
                gc.collect()  # what was lowered before is not freed on this one's time
                start = time.perf_counter()
                pte = make(model, quantised, x)
                seconds.append(round(time.perf_counter() - start, 2))
            calls[way] = _call(pte, x)
            calls[way]()
            measured[way] = {"lowering_s": seconds, "file_kB": len(pte) // 1000}
        except Exception as error:  # whatever a way raises is what is recorded of it
            calls.pop(way, None)
            measured[way] = failed(error)
    with tempfile.TemporaryDirectory() as folder:
        try:
            calls["ONNX Runtime"] = _onnx_runtime(model, x, Path(folder))
            measured["ONNX Runtime"] = {}
        except Exception as error:
            measured["ONNX Runtime"] = failed(error)
        for way, times in interleaved(calls, rounds).items():
            measured[way]["ms"] = [round(each, 3) for each in times]
    return measured


def _lower_once() -> None:
    """Lowers a small network each way, not timed: the first lowering of a process imports what it needs."""
    x = torch.randn(1, 3, 20, 24)
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    for make in PROGRAMS.values():
        make(small, by_xnnpack(small, x), x)


# -- what is made of it


def against(row: Row, way: str) -> tuple[float, float, float] | None:
    """Our int8 milliseconds over another way's, with its interval; None where one of the two failed."""
    ours, theirs = (row[each].get("ms") for each in ("ours", way))
    return ratio(ours, theirs) if ours and theirs else None


def lowering_share(row: Row) -> float | None:
    """Our seconds of lowering over ExecuTorch's."""
    ours, theirs = (row[each].get("lowering_s") for each in ("ours", "ExecuTorch"))
    return statistics.median(ours) / statistics.median(theirs) if ours and theirs else None


def means(rows: Sequence[Row]) -> dict[str, float]:
    """The geometric means that have a bound."""

    def mean(found: Sequence[float | None]) -> float:
        return geometric_mean([each for each in found if each is not None])

    def of(way: str, networks: Sequence[str]) -> float:
        found = [against(row, way) for row in rows if row["network"] in networks]
        return mean([each and each[0] for each in found])

    return {
        "our float32, over the convolutional networks": of("ours float32", CONVOLUTIONAL),
        "ONNX Runtime's uint8": of("ONNX Runtime", NETWORKS),
        "ExecuTorch's int8": of("ExecuTorch", NETWORKS),
        "ExecuTorch's seconds of lowering": mean([lowering_share(row) for row in rows]),
    }


def missed(rows: Sequence[Row]) -> list[str]:
    """The bounds that do not hold."""
    found = [
        f"ours fails on {row['network']}: {row['ours']['error']}" for row in rows if "error" in row["ours"]
    ]
    for row in rows:
        share, most = against(row, "ExecuTorch"), LEAST.get(row["network"], MOST)
        if share and share[0] > most:
            found.append(
                f"ours takes {share[0]:.2f} of ExecuTorch's milliseconds on {row['network']}, not {most}"
            )
    for (what, mean), bound in zip(means(rows).items(), (OF_FLOAT, OF_ONNX, MOST, OF_LOWERING), strict=True):
        if mean > bound:
            found.append(f"ours takes {mean:.2f} of {what}, not {bound}")
    return found


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    lines = [
        "# int8 programs",
        "",
        "Milliseconds of a call, medians; ours over each of the others (95 % interval); seconds of lowering.",
        "",
        *record_lines(record),
        "| network | input | ours | ExecuTorch int8 | our float32 | ONNX Runtime uint8 | ours / ExecuTorch "
        "| ours / float32 | ours / ONNX Runtime | lowering, ours | ExecuTorch's |",
        f"| --- | --- |{' ---: |' * 9}",
        *(_line(row) for row in rows),
        "",
        *(f"Geometric mean of ours over {what}: {mean:.2f}.\n" for what, mean in means(rows).items()),
    ]
    for row in rows:
        for way in (*PROGRAMS, "ONNX Runtime"):
            if "error" in row[way]:
                lines += [f"{row['network']}, {way}: `{row[way]['error']}`", ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    def ms(way: str) -> str:
        return f"{statistics.median(row[way]['ms']):.2f}" if "ms" in row[way] else "fails"

    def share(way: str) -> str:
        found = against(row, way)
        return "" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})"

    def seconds(way: str) -> str:
        found = row[way].get("lowering_s")
        return f"{statistics.median(found):.1f}" if found else ""

    others = ("ExecuTorch", "ours float32", "ONNX Runtime")
    cells = [row["network"], row["input"], ms("ours"), *map(ms, others), *map(share, others)]
    return f"| {' | '.join([*cells, seconds('ours'), seconds('ExecuTorch')])} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.integers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="measure these anew")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=1, help="lowerings of each network")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    kept = options.results / "integers.json"
    here = machine(PACKAGES)
    record = {
        "command": "python -m benchmarks.integers",
        "environment": here,
        "rows": rows_kept(kept, here),
    }
    _lower_once()
    for name in options.networks or NETWORKS:
        if not options.networks and any(row["network"] == name for row in record["rows"]):
            continue
        found = measure(name, options.rounds, options.repeats)
        rows = [*(each for each in record["rows"] if each["network"] != name), found]
        record["rows"] = sorted(rows, key=lambda each: NETWORKS.index(each["network"]))
        print(_line(found), flush=True)
        write_whole(kept, (json.dumps(record, indent=1) + "\n").encode())
        write_whole(kept.with_suffix(".md"), table(record).encode())
    for fault in missed(record["rows"]):
        print(fault, file=sys.stderr)
    return int(bool(missed(record["rows"])))


if __name__ == "__main__":
    sys.exit(main())
