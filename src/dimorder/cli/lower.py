"""Run `dimorder lower`: lower a network to a program with a proven plan and a contract."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dimorder.cli.console import Console
from dimorder.cli.options import (
    DONE,
    Command,
    CommandParser,
    check_outputs,
    json_option,
    network,
    network_options,
    pipeline,
    report_option,
    report_page,
    target_of,
    write_json,
)
from dimorder.errors import UsageError

if TYPE_CHECKING:
    from dimorder.lowered import Lowered
    from dimorder.quantization.fidelity import OutputFidelity

EXAMPLES = """\
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
  dimorder lower net.pt2 -o net.pte --input-order NHWC --report net.html
  dimorder lower net.pt2 --target tosa -o net.tosa
  dimorder lower mymodels:unet --input Nx3xHxW --range H=64..256:32 --range W=64..256:32 -o unet.pte
  dimorder lower net.pt2 -o net.pte --quantize int8 --calibrate photos/ --mean 0.5 --std 0.5
  dimorder lower quantised.pt2 -o net.pte --input-type uint8 --input-order NHWC
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 --print physical
  dimorder lower mymodels:Ranker --arg width=64 --input ids=1x128:int64 -o ranker.pte --json ranker.json

Target tosa writes a second file, net.tosa.json: the contract, without which the first is not run.
The keys of --json are stable: docs/json.md.
A factory is called with torch's seed at 0, and its network put in eval mode."""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the program: a .pte for xnnpack, a .pt2 for torch, a .tflite for litert, a .tosa for tosa "
        "(its contract beside it)",
    )
    parser.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        help="run what was emitted and compare it with the network (the default, but for tosa: slow)",
    )
    parser.add_argument(
        "--print",
        choices=("captured", "plan", "physical"),
        help="print the network's normal form, the plan, or the program that it becomes, and nothing else",
    )
    json_option(parser, "what was planned, and how it was lowered")
    report_option(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    written = {"-o": options.output, "--json": options.json, "--report": options.report}
    check_outputs(written)
    if not any((*written.values(), options.print)):
        fix = "give -o FILE, --json FILE, --report FILE or --print physical"
        raise UsageError("dimorder lower", "nothing to write", fix)
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import api, files

        _check_artifact_name(options, written)
        named = network(options, progress)
        lowered = pipeline(api.lower, named, options, progress, run_artifact=options.run)
        told = lowered.to_dict()
        if options.quantize:
            progress("comparing with the float network")
            fidelity = named[0].compare(lowered)
            told["fidelity"] = [each.to_dict() for each in fidelity]
        data = lowered.artifact.data if options.output else b""
        report = report_page(options, lowered, progress)
        console.check_interrupt()
        if options.output:
            files.write_whole(options.output, data, lowered.artifact.companions)
        if options.report:
            files.write_whole(options.report, report)
        write_json(options.json, told, console)
    if options.print:
        console.print(lowered.text(options.print))
    if options.json == "-" or options.print:
        return DONE
    outside = ", ".join(f"{count} {name}" for name, count in lowered.artifact.outside.items())
    console.print(lowered.plan)
    verified = lowered.verified
    what = "program and file" if verified.artifact_ran else "the physical program, before it was emitted"
    console.print(f"verified     {verified.max_rel_error:.1e} relative error on random inputs: {what}")
    if verified.eager_error is not None:
        console.print(f"             where PyTorch's own is {verified.eager_error:.1e} from float64")
    if not verified.input_matters:
        console.print(
            "             which shows little: other inputs give the same outputs; are the weights real?"
        )
    _print_quantised(lowered, fidelity if options.quantize else (), console)
    console.print(f"delegates    {lowered.artifact.delegates}, outside of them: {outside or 'nothing'}")
    console.print(f"constants    {lowered.constant_bytes_added:,} bytes added")
    if lowered.artifact.npu is not None:
        console.print(lowered.artifact.npu)
    if options.output:
        seconds = sum(lowered.seconds.values())
        beside = "".join(f", beside it {options.output}{end}" for end in lowered.artifact.companions)
        console.print(f"written      {options.output}, {len(data):,} bytes, in {seconds:.1f} s{beside}")
    return DONE


def _print_quantised(lowered: Lowered, fidelity: Sequence[OutputFidelity], console: Console) -> None:
    """Print how close a quantised network is to its float one, and the levels that its quantizer wastes."""
    for title, each in zip(("fidelity", *[""] * len(fidelity)), fidelity, strict=False):
        console.print(f"{title:13}{each}")
    wasted = sorted((each for each in lowered.wasted if each.wasted), key=lambda each: -each.wasted)
    if wasted:
        worst = wasted[0]
        console.print(
            f"levels       {len(wasted)} values hold integers that a clamp takes away, {worst.value} most: "
            f"{worst.wasted} of {worst.levels}; quantise with dimorder.quantize, which observes behind clamps"
        )


def _check_artifact_name(options: argparse.Namespace, written: Mapping[str, str | None]) -> None:
    """Raise `UsageError` for an -o that cannot be loaded, or whose companion files cannot be written."""
    target = target_of(options)
    if options.output:
        target.check_name(Path(options.output))
        check_outputs(
            {**written, **{f"{end} beside -o": options.output + end for end in target.files.companions}}
        )


COMMAND = Command(
    "lower", "lower a network to a program with a proven plan and a contract", EXAMPLES, add_options, run
)
