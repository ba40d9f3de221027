"""Show the Ethos-U example: two real networks from float to a `.pte` for Arm's NPUs.

Run it with `python -m examples.ethos_u.demo` after `make .venv/.dev-installed`; it writes into
`examples/ethos_u/out/`. Neither a board nor Arm's simulator is needed, for nothing is run on an NPU: outputs
are those of Arm's reference model.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

import dimorder
from dimorder.demo import face_networks as networks
from dimorder.demo import photo
from dimorder.lowered import Lowered

OUT = Path(__file__).parent / "out"
ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")
NETWORKS = {"rnet": networks.rnet, "onet": networks.onet}


def main(out: Path = OUT) -> None:
    """Quantises R-Net and O-Net on photos, lowers them for two accelerators, and looks for a face."""
    warnings.filterwarnings("ignore")  # deprecations inside torch and executorch
    out.mkdir(parents=True, exist_ok=True)
    print("network  accelerator      cycles      ms  SRAM bytes  flash bytes  .pte bytes  TRANSPOSEs")
    made = {}
    for name, factory in NETWORKS.items():
        with _quiet():
            crops = photo.crops(networks.INPUT_SHAPES[name][-1])
            quantised = dimorder.quantize(factory(), crops, target="ethos-u85-256")
        for accelerator in ACCELERATORS:
            with _quiet():
                lowered = dimorder.lower(
                    quantised, target=accelerator, input_orders="NHWC", objective="cycles"
                )
                lowered.save(out / f"{name}-{accelerator}.pte")
            npu = lowered.artifact.npu
            assert npu is not None
            print(
                f"{name:7}  {accelerator:14}{npu.cycles:9,}{npu.milliseconds:8.2f}{npu.sram_bytes:12,}"
                f"{npu.flash_bytes:13,}{len(lowered.artifact.data):12,}{len(lowered.plan.conversions):12}"
            )
            made[name] = lowered
    _compare(made["onet"])
    print(
        f"\nWritten into {out}. On a board, or Arm's Corstone simulator, ExecuTorch's `arm_executor_runner`"
    )
    print("runs these files; docs/npu.md says how their bytes go in and come out.")


def _compare(lowered: Lowered) -> None:
    """O-Net's int8 beside its float, on the face and on what is none."""
    image, eager = photo.photo(), networks.onet()
    print("\nO-Net            probability   box                          landmarks, in pixels of the photo")
    for title, box in (("the face", photo.FACE), ("the helmet", photo.NOT_A_FACE)):
        crop = photo.crop(image, box, 48)
        with torch.no_grad(), _quiet():
            outputs: Sequence[tuple[str, Sequence[Tensor]]] = (
                ("float", eager(crop)),
                ("int8", in_integers(lowered, crop)),
            )
        for how, output in outputs:
            found = photo.finding(box, tuple(output))
            places = " ".join(f"{value:5.1f}" for value in found.box)
            marks = " ".join(f"{value:5.1f}" for point in found.landmarks for value in point)
            print(f"{title:10} {how:5} {found.probability:11.5f}   {places}   {marks}")


def in_integers(lowered: Lowered, x: Tensor) -> list[Tensor]:
    """Run the lowered network on an input of numbers, and return the numbers that its integers stand for."""
    (of,) = lowered.contract.inputs
    outputs = lowered.run(of.quantized(x))
    return [spec.real(y) for spec, y in zip(lowered.contract.outputs, outputs, strict=True)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what exporters and quantizers log."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield


if __name__ == "__main__":
    main()
