"""Lower the face networks to `.tflite`, and look for a face as an app does: by LiteRT alone, and guarded.

Run it with `python -m examples.litert.face`; it writes into `examples/litert/out/`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

import dimorder
from dimorder.demo import face_networks as networks
from dimorder.demo import photo
from dimorder.errors import DimorderError

OUT = Path(__file__).parent / "out"
NETWORKS = {"pnet": networks.pnet, "rnet": networks.rnet, "onet": networks.onet}


def main(out: Path = OUT) -> None:
    """Lower, run and feed wrongly the face networks; print what comes out."""
    warnings.filterwarnings("ignore")  # deprecations inside torch
    out.mkdir(parents=True, exist_ok=True)
    image = photo.photo()
    print("A .tflite of each network, for a picture as a camera has it (NHWC):\n")
    print("  network  TRANSPOSEs  bytes moved  operators beside XNNPACK  relative error")
    for name, factory in NETWORKS.items():
        example = torch.randn(networks.INPUT_SHAPES[name])
        lowered = dimorder.lower(factory(), (example,), target="litert", input_orders="NHWC")
        lowered.save(out / f"{name}.tflite")
        beside = sum(lowered.artifact.outside.values())
        print(
            f"  {name:7}  {len(lowered.plan.conversions):10}  {lowered.plan.cost[0]:11,}"
            f"  {beside:24}  {lowered.max_rel_error:14.1e}"
        )

    print("\nProbability of a face:\n")
    print("                             the face    the helmet")
    face, helmet = (photo.crop(image, box, 48) for box in (photo.FACE, photo.NOT_A_FACE))
    path = out / "onet.tflite"
    program = dimorder.load(path, on_mismatch="adapt")
    rows = {
        "PyTorch": [_probability(networks.onet()(x)) for x in (face, helmet)],
        "LiteRT alone": [_run_by_litert(path, x) for x in (face, helmet)],
        "dimorder.load": [_probability(program(x)) for x in (face, helmet)],
        "the same, fed NCHW": [_probability(program(x.contiguous())) for x in (face, helmet)],
    }
    for title, values in rows.items():
        print(f"  {title:24}   " + "   ".join(f"{value:.7f}" for value in values))
    print(f"\n{program.stats.conversions} inputs converted, {program.stats.cost_bytes:,} bytes")

    print('\nWith on_mismatch="error" the program refuses an NCHW tensor:\n')
    try:
        dimorder.load(path, on_mismatch="error")(face.contiguous())
    except DimorderError as error:
        print("\n".join(f"  {line}" for line in str(error).splitlines()))
    else:
        raise AssertionError("the program took an input that its contract forbids")


def _run_by_litert(path: Path, picture: Tensor) -> float:
    """Return O-Net's probability of a face, by the interpreter that an app has."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    run = interpreter.get_signature_runner("serving_default")
    (name,) = run.get_input_details()
    results = run(**{name: picture.permute(0, 2, 3, 1).contiguous().numpy()})
    (probabilities,) = (y for y in results.values() if y.shape == (1, 2))
    return float(probabilities[0, 1])


def _probability(results: tuple[Tensor, ...]) -> float:
    return float(results[0].flatten()[1])


if __name__ == "__main__":
    with torch.no_grad():
        main()
