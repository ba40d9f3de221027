"""Run `dimorder run`: feed files to a saved program, and check its contract."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from dimorder.cli.answer import Answer, check_outputs, output_paths
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser, file_input_options, json_option, normalization

EXAMPLES = """\
  dimorder run net.pte --input x.npy -o y.npy
  dimorder run net.tosa --input x.npy -o y.npy
  dimorder run resnet18.pte --input photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
  dimorder run net.pte --input x.npy --json > y.json
  dimorder run ranker.pte --input ids=ids.npy --input mask=mask.npy -o scores.npz --on-mismatch error

An array keeps the order that it has in its file. An image is resized to the input's height and width,
becomes (x / 255 - mean) / std, and is channels-last."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a .pte of any tool, which gets a guard, or a .tflite, .tosa or .pt2 that dimorder wrote",
    )
    file_input_options(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="the output as .npy, or several as one .npz")
    parser.add_argument(
        "--on-mismatch",
        choices=("adapt", "error", "warn"),
        default="adapt",
        help="an input in another order is converted (the default), refused, or converted with a warning",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="number of threads (default: the runtime's choice)"
    )
    json_option(parser, "the outputs and the conversions of the guard")


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    progress("loading torch")
    from dimorder import api, targets
    from dimorder.cli import tensors

    if options.output:
        tensors.check_output_name(options.output)
    companions = targets.target_for_file(Path(options.program)).files.companions
    check_outputs(output_paths(options), [options.program + end for end in companions])
    progress(f"loading {options.program}")
    program = api.load(options.program, options.on_mismatch, threads=options.threads)
    contract = program.contract
    if options.output:
        tensors.check_output_name(options.output, contract)
    progress("reading inputs")
    inputs = tensors.read_inputs(contract, options.input, normalization(options))
    progress("running")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outputs = program.run(*inputs)
    for warning in caught if options.on_mismatch == "warn" else ():
        progress.console.warn(f"dimorder: {warning.message}")
    count, cost = program.stats.conversions, program.stats.cost_bytes
    lines = [tensors.summary(spec, output) for spec, output in zip(contract.outputs, outputs, strict=True)]
    lines.append(f"guard  converted {count or 'nothing'}{f', {cost:,} bytes' if count else ''}")
    lines += [f"  {conversion}" for conversion in program.stats.last]
    files = []
    if options.output:
        files.append((options.output, tensors.encode_outputs(options.output, contract, outputs)))
    return Answer("\n".join(lines), tensors.run_report(program, outputs), files)


COMMAND = Command(
    "run", "run a .pte, .tflite, .tosa or .pt2, with its contract checked", EXAMPLES, add_options, run
)
