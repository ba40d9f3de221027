"""Run `make demo`: lower three real networks, run them, and feed them in the wrong order.

Run it with `python -m examples.face.demo`; it writes into `examples/face/out/`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import DimorderError
from dimorder.runtime.guard import OnMismatch
from dimorder.runtime.program import Program
from examples.face import networks, photo

OUT = Path(__file__).parent / "out"
NETWORKS: tuple[tuple[str, Callable[[], nn.Module]], ...] = (
    ("pnet", networks.pnet),
    ("rnet", networks.rnet),
    ("onet", networks.onet),
)
TITLES = {"pnet": "P-Net", "rnet": "R-Net", "onet": "O-Net"}

Model = Callable[[Tensor], Sequence[Tensor]]


def main(out: Path = OUT) -> None:
    """Lowers, runs and breaks the face networks, and draws what they find into `out`."""
    start = time.perf_counter()
    warnings.filterwarnings("ignore")  # deprecations inside torch and executorch
    out.mkdir(parents=True, exist_ok=True)
    image = photo.photo()
    print("dimorder: the face detector MTCNN, from PyTorch to a guarded ExecuTorch program")

    with torch.no_grad():
        show_lowering(out)
        show_results(image, out)
        show_int8(image, out)
        show_wrong_order(image, out)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")


def show_lowering(out: Path) -> None:
    """Lowers each network twice, for a contract in NCHW and one in NHWC, and saves the programs."""
    _heading("1. Lower")
    print("O-Net and R-Net permute their features by hand, then flatten them into a dense layer.")
    print("Both vanish into the dense layer's weights. What is left is what the contract asks for:\n")
    print("           contract   conversions   bytes moved   proven least   delegates   relative error")
    plans = {}
    for name, factory in NETWORKS:
        model, example = factory(), torch.randn(networks.INPUT_SHAPES[name])
        for order in ("NCHW", "NHWC"):
            with _quiet():
                lowered = dimorder.lower(model, (example,), target="xnnpack", input_orders=order)
                lowered.save(_path(out, name, order))
            plan = plans[name, order] = lowered.plan
            print(
                f"  {TITLES[name]}    {order} {len(plan.conversions):17} {plan.cost[0]:13,}"
                f" {plan.certificate.lower_bound:14,} {lowered.artifact.delegates:11}"
                f" {lowered.max_rel_error:16.1e}"
            )
    print("\nThe plan of O-Net for an input in NCHW:\n")
    print(_indent(plans["onet", "NCHW"]))


def show_results(image: photo.Image.Image, out: Path) -> None:
    """Runs the programs on both crops beside eager PyTorch, and draws what O-Net finds."""
    _heading("2. Run in the ExecuTorch runtime")
    print("An image in memory is NHWC, and so is the programs' contract: nothing is converted on the way.")
    print("Probability of a face:\n")
    print("           the face                the helmet")
    print("           eager       .pte        eager       .pte")
    for name, factory in NETWORKS:
        eager, program = factory(), _load(_path(out, name, "NHWC"))
        with _quiet():
            values = [face_probability(run, name, image, box) for box in CROPS for run in (eager, program)]
        print(f"  {TITLES[name]}    " + "   ".join(f"{value:.7f}" for value in values))

    face = photo.finding(photo.FACE, tuple(program(photo.crop(image, photo.FACE, 48))))
    picture = out / "astronaut.png"
    photo.draw(image, face, photo.NOT_A_FACE, values[-1], picture)
    print(f"\nThe box and the five landmarks that O-Net's program finds: {_shown(picture)}")


def show_int8(image: photo.Image.Image, out: Path) -> None:
    """Quantises each network on crops of photos, and runs it beside the float one."""
    _heading("3. Quantise to int8")
    print("Calibrated on 96 crops of four photos. Probability of a face, and size of the program:\n")
    print("           the face                the helmet              bytes")
    print("           float       int8        float       int8        float       int8")
    for name, factory in NETWORKS:
        path = _path(out, name, "int8")
        with _quiet():
            quantised = dimorder.quantize(factory(), photo.crops(networks.INPUT_SHAPES[name][-1]))
            lowered = dimorder.lower(quantised, target="xnnpack", input_orders="NHWC")
            lowered.save(path)
        paths = (_path(out, name, "NHWC"), path)
        runs = [_load(each) for each in paths]
        with _quiet():
            values = [face_probability(run, name, image, box) for box in CROPS for run in runs]
        sizes = "   ".join(f"{each.stat().st_size:9,}" for each in paths)
        print(f"  {TITLES[name]}    " + "   ".join(f"{value:.7f}" for value in values) + f"   {sizes}")

    real, quantised_face = (
        photo.finding(photo.FACE, run.run(photo.crop(image, photo.FACE, 48))) for run in runs
    )
    print("\nO-Net's box and landmarks, in pixels of the photo:\n")
    for title, found in (("float", real), ("int8", quantised_face)):
        places = (*found.box, *(value for point in found.landmarks for value in point))
        print(f"  {title:5}    " + " ".join(f"{value:6.1f}" for value in places))


def show_wrong_order(image: photo.Image.Image, out: Path) -> None:
    """Feeds NHWC to programs that were made for NCHW: a stock one, and ours."""
    _heading("4. Feed the wrong order")
    print("O-Net made for an input in NCHW, fed the NHWC tensor that the image is. Probability of a face:\n")
    print("                                       the face    the helmet")

    def row(title: str, model: Model, remark: Callable[[], str] = str) -> None:
        with _quiet():
            values = [face_probability(model, "onet", image, box) for box in CROPS]
        print(f"  {title:35}  {values[0]:.7f}   {values[1]:.7f}   {remark()}".rstrip())

    row("eager PyTorch", networks.onet())
    # Its XNNPACK partitioner stops at the PReLU behind O-Net's dense layer, hence its portable kernels.
    stock = _path(out, "onet", "stock")
    stock.write_bytes(stock_program(networks.onet(), networks.INPUT_SHAPES["onet"]))
    row("stock .pte in ExecuTorch", run_unguarded(stock), lambda: "wrong, and no error")
    guarded = _load(stock)
    row("the same .pte in dimorder.load", guarded, lambda: _converted(guarded))
    adapting = _load(_path(out, "onet", "NCHW"), on_mismatch="adapt")
    row('our .pte, on_mismatch="adapt"', adapting, lambda: _converted(adapting))
    print('  our .pte, on_mismatch="error"        refuses:\n')
    try:
        _load(_path(out, "onet", "NCHW"), on_mismatch="error")(photo.crop(image, photo.FACE, 48))
    except DimorderError as error:
        print(_indent(error))
    else:
        raise AssertionError("the program took an input that its contract forbids")


CROPS = (photo.FACE, photo.NOT_A_FACE)


def face_probability(model: Model, name: str, image: photo.Image.Image, box: photo.Box) -> float:
    """How sure `model`, one of the three networks, is that the crop shows a face."""
    probabilities = model(photo.crop(image, box, networks.INPUT_SHAPES[name][-1]))[0]
    return float(probabilities.flatten()[1])


def stock_program(model: nn.Module, shape: tuple[int, ...]) -> bytes:
    """The .pte that ExecuTorch makes of a network for a contiguous input, with its portable kernels."""
    with _quiet():
        from executorch.exir import to_edge

        return to_edge(torch.export.export(model, (torch.randn(shape),))).to_executorch().buffer


def run_unguarded(path: Path) -> Model:
    """A .pte in ExecuTorch's runtime, as anyone would call it."""
    with _quiet():
        from executorch.runtime import Runtime

        method = Runtime.get().load_program(path).load_method("forward")
    return lambda x: [output.clone() for output in method.execute([x])]


def _load(path: Path, on_mismatch: OnMismatch = "adapt") -> Program:
    with _quiet():
        return dimorder.load(path, on_mismatch=on_mismatch)


def _path(out: Path, name: str, order: str) -> Path:
    return out / f"{name}-{order.lower()}.pte"


def _converted(program: Program) -> str:
    """Report what a program's guard has converted, after the calls."""
    return f"{program.stats.conversions} inputs converted, {program.stats.cost_bytes:,} bytes"


def _heading(text: str) -> None:
    print(f"\n\n{text}\n{'─' * len(text)}")


def _indent(value: object) -> str:
    return "\n".join(f"  {line}" for line in str(value).splitlines())


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what native libraries write to stderr as they start; shows it if the step fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(stderr, log.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)


if __name__ == "__main__":
    main()
