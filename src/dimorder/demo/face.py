"""Run `dimorder demo`: lower three real networks, run them, and feed them in the wrong order."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

import dimorder
from dimorder.clock import Progress, report_each
from dimorder.demo import face_networks as networks
from dimorder.demo import photo
from dimorder.errors import DimorderError, writable
from dimorder.runtime.program import Program

NETWORKS: tuple[tuple[str, Callable[[], nn.Module]], ...] = (
    ("pnet", networks.pnet),
    ("rnet", networks.rnet),
    ("onet", networks.onet),
)
TITLES = {"pnet": "P-Net", "rnet": "R-Net", "onet": "O-Net"}

Classifier = Callable[[Tensor], Any]  # which returns tensors, the first of them probabilities
Say = Callable[[str], object]  # prints one line, or several


def show(out: Path, say: Say, progress: Progress = lambda step: None) -> None:
    """Lower, run and break the face networks, and draw what they find into the folder `out`."""
    start = time.perf_counter()
    warnings.filterwarnings("ignore")  # deprecations inside torch and executorch
    with writable(f"-o {out}", "name a folder that you can write to"):
        out.mkdir(parents=True, exist_ok=True)
    image = photo.photo()
    say("dimorder: the face detector MTCNN, from PyTorch to a guarded ExecuTorch program")

    with torch.no_grad():
        show_lowering(out, say, progress)
        progress("running")
        show_results(image, out, say)
        show_int8(image, out, say, progress)
        progress("feeding the wrong order")
        show_wrong_order(image, out, say)
    say(f"\nDone in {time.perf_counter() - start:.0f} s.")


def show_lowering(out: Path, say: Say, progress: Progress) -> None:
    """Lowers each network twice, for a contract in NCHW and one in NHWC, and saves the programs."""
    _heading(say, "1. Lower")
    say("O-Net and R-Net permute their features by hand, then flatten them into a dense layer.")
    say("Both vanish into the dense layer's weights. What is left is what the contract asks for:\n")
    say("           contract   conversions   bytes moved   proven least   delegates   relative error")
    plans = {}
    for name, factory in report_each(NETWORKS, "lowering", progress):
        model, example = factory(), torch.randn(networks.INPUT_SHAPES[name])
        for order in ("NCHW", "NHWC"):
            lowered = dimorder.lower(model, (example,), target="xnnpack", input_orders=order)
            lowered.save(_path(out, name, order))
            plan = plans[name, order] = lowered.plan
            say(
                f"  {TITLES[name]}    {order} {len(plan.conversions):17} {plan.cost[0]:13,}"
                f" {plan.certificate.lower_bound:14,} {lowered.artifact.delegates:11}"
                f" {lowered.max_rel_error:16.1e}"
            )
    say("\nThe plan of O-Net for an input in NCHW:\n")
    say(_indent(plans["onet", "NCHW"]))


def show_results(image: Image, out: Path, say: Say) -> None:
    """Runs the programs on both crops beside eager PyTorch, and draws what O-Net finds."""
    _heading(say, "2. Run in the ExecuTorch runtime")
    say("An image in memory is NHWC, and so is the programs' contract: nothing is converted on the way.")
    say("Probability of a face:\n")
    say("           the face                the helmet")
    say("           eager       .pte        eager       .pte")
    for name, factory in NETWORKS:
        eager, program = factory(), dimorder.load(_path(out, name, "NHWC"))
        values = [face_probability(run, name, image, box) for box in CROPS for run in (eager, program)]
        say(f"  {TITLES[name]}    " + "   ".join(f"{value:.7f}" for value in values))

    face = photo.finding(photo.FACE, tuple(program(photo.crop(image, photo.FACE, 48))))
    picture = out / "astronaut.png"
    photo.draw(image, face, photo.NOT_A_FACE, values[-1], picture)
    say(f"\nThe box and the five landmarks that O-Net's program finds: {_shown(picture)}")


def show_int8(image: Image, out: Path, say: Say, progress: Progress) -> None:
    """Quantises each network on crops of photos, and runs it beside the float one."""
    _heading(say, "3. Quantise to int8")
    say("Calibrated on 96 crops of four photos. Probability of a face, and size of the program:\n")
    say("           the face                the helmet              bytes")
    say("           float       int8        float       int8        float       int8")
    for name, factory in report_each(NETWORKS, "quantising", progress):
        path = _path(out, name, "int8")
        quantised = dimorder.quantize(factory(), photo.crops(networks.INPUT_SHAPES[name][-1]))
        lowered = dimorder.lower(quantised, target="xnnpack", input_orders="NHWC")
        lowered.save(path)
        paths = (_path(out, name, "NHWC"), path)
        runs = [dimorder.load(each) for each in paths]
        values = [face_probability(run, name, image, box) for box in CROPS for run in runs]
        sizes = "   ".join(f"{each.stat().st_size:9,}" for each in paths)
        say(f"  {TITLES[name]}    " + "   ".join(f"{value:.7f}" for value in values) + f"   {sizes}")

    real, quantised_face = (
        photo.finding(photo.FACE, run.run(photo.crop(image, photo.FACE, 48))) for run in runs
    )
    say("\nO-Net's box and landmarks, in pixels of the photo:\n")
    for title, found in (("float", real), ("int8", quantised_face)):
        places = (*found.box, *(value for point in found.landmarks for value in point))
        say(f"  {title:5}    " + " ".join(f"{value:6.1f}" for value in places))


def show_wrong_order(image: Image, out: Path, say: Say) -> None:
    """Feeds NHWC to programs that were made for NCHW: a stock one, and ours."""
    _heading(say, "4. Feed the wrong order")
    say("O-Net made for an input in NCHW, fed the NHWC tensor that the image is. Probability of a face:\n")
    say("                                       the face    the helmet")

    def row(title: str, model: Classifier, remark: Callable[[], str] = str) -> None:
        values = [face_probability(model, "onet", image, box) for box in CROPS]
        say(f"  {title:35}  {values[0]:.7f}   {values[1]:.7f}   {remark()}".rstrip())

    row("eager PyTorch", networks.onet())
    # Its XNNPACK partitioner stops at the PReLU behind O-Net's dense layer, hence its portable kernels.
    stock = _path(out, "onet", "stock")
    stock.write_bytes(stock_program(networks.onet(), networks.INPUT_SHAPES["onet"]))
    row("stock .pte in ExecuTorch", run_unguarded(stock), lambda: "wrong, and no error")
    guarded = dimorder.load(stock)
    row("the same .pte in dimorder.load", guarded, lambda: _converted(guarded))
    adapting = dimorder.load(_path(out, "onet", "NCHW"), on_mismatch="adapt")
    row('our .pte, on_mismatch="adapt"', adapting, lambda: _converted(adapting))
    say('  our .pte, on_mismatch="error"        refuses:\n')
    try:
        dimorder.load(_path(out, "onet", "NCHW"), on_mismatch="error")(photo.crop(image, photo.FACE, 48))
    except DimorderError as error:
        say(_indent(error))
    else:
        raise AssertionError("the program took an input that its contract forbids")


CROPS = (photo.FACE, photo.NOT_A_FACE)


def face_probability(model: Classifier, name: str, image: Image, box: photo.CropBox) -> float:
    """How sure `model`, one of the three networks, is that the crop shows a face."""
    probabilities = model(photo.crop(image, box, networks.INPUT_SHAPES[name][-1]))[0]
    return float(probabilities.flatten()[1])


def stock_program(model: nn.Module, shape: tuple[int, ...]) -> bytes:
    """The .pte that ExecuTorch makes of a network for a contiguous input, with its portable kernels."""
    from executorch.exir import to_edge

    edge = to_edge(torch.export.export(model, (torch.randn(shape),)))
    return bytes(edge.to_executorch().buffer)


def run_unguarded(path: Path) -> Classifier:
    """A .pte in ExecuTorch's runtime, as anyone would call it."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda x: [output.clone() for output in method.execute([x])]


def _path(out: Path, name: str, order: str) -> Path:
    return out / f"{name}-{order.lower()}.pte"


def _converted(program: Program) -> str:
    """Report what a program's guard has converted, after the calls."""
    return f"{program.stats.conversions} inputs converted, {program.stats.cost_bytes:,} bytes"


def _heading(say: Say, text: str) -> None:
    say(f"\n\n{text}\n{'─' * len(text)}")


def _indent(value: object) -> str:
    return "\n".join(f"  {line}" for line in str(value).splitlines())


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
