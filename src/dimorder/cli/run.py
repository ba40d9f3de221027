"""Run `dimorder run`: feed files to a saved program, and check its contract."""

from __future__ import annotations

import argparse
import warnings

from dimorder.cli.console import Console
from dimorder.cli.options import (
    DONE,
    Command,
    CommandParser,
    check_outputs,
    json_option,
    normalization,
    normalization_options,
    write_json,
)

EXAMPLES = """\
  dimorder run net.pte --input x.npy -o y.npy
  dimorder run net.tosa --input x.npy -o y.npy
  dimorder run resnet18.pte --input photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
  dimorder run net.pte --input x.npy --json > y.json
  dimorder run ranker.pte --input ids=ids.npy --input mask=mask.npy -o scores.npz --on-mismatch error

An array is taken as it lies in its file. An image is resized to the input's height and width,
lies channels-last, and becomes (x / 255 - mean) / std."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        "program",
        metavar="PROGRAM",
        help="a .pte, which has a guard even if dimorder did not write it, or a .tflite, .tosa or .pt2 of "
        "dimorder's",
    )
    parser.add_argument(
        *("--input", "-i"),
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a .npy or an image, one per input",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the output as .npy, or several as one .npz")
    parser.add_argument(
        "--on-mismatch",
        choices=("adapt", "error", "warn"),
        default="adapt",
        help="an input in another order is converted (the default), refused, or converted with a warning",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads to run with (default: what the runtime thinks best)"
    )
    normalization_options(parser)
    json_option(parser, "what the outputs hold and what the guard converted")


def run(options: argparse.Namespace, console: Console) -> int:
    check_outputs({"-o": options.output, "--json": options.json})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import api, files
        from dimorder.cli import tensors

        if options.output:
            tensors.check_output_name(options.output)
        progress(f"loading {options.program}")
        program = api.load(options.program, options.on_mismatch, threads=options.threads)
        if options.output:
            tensors.check_output_name(options.output, program.contract)
        progress("reading inputs")
        inputs = tensors.read_inputs(program.contract, options.input, normalization(options))
        progress("running")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outputs = program.run(*inputs)
        for warning in caught if options.on_mismatch == "warn" else ():
            console.warn(f"dimorder: {warning.message}")
        console.check_interrupt()
        if options.output:
            files.write_whole(
                options.output, tensors.encode_outputs(options.output, program.contract, outputs)
            )
    if options.json is not None:
        write_json(options.json, tensors.run_report(program, outputs), console)
    if options.json == "-":
        return DONE
    for spec, output in zip(program.contract.outputs, outputs, strict=True):
        console.print(tensors.summary(spec, output))
    count, cost = program.stats.conversions, program.stats.cost_bytes
    console.print(f"guard  converted {count or 'nothing'}{f', {cost:,} bytes' if count else ''}")
    for conversion in program.stats.last:
        console.print(f"  {conversion}")
    return DONE


COMMAND = Command(
    "run", "run a .pte, .tflite, .tosa or .pt2, with its contract checked", EXAMPLES, add_options, run
)
