"""Run `dimorder export-runner`: write a CMake project that checks a .pte on a phone or a board."""

from __future__ import annotations

import argparse

from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser, file_input_options, normalization

EXAMPLES = """\
  dimorder export-runner net.pte -o check-net
  dimorder export-runner net.pte --input photo.jpg --mean 0.5 --std 0.5 -o check-net
  cd check-net
  cmake -B build -Dexecutorch_DIR=$(python -m dimorder.cmake --executorch) && cmake --build build
  ./check.sh build/dimorder/runner/dimorder-run

The project has the program, its inputs, the outputs on this machine, and the sources of dimorder-run.
Its README.md says how to build it for Arm and Android."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument("program", metavar="PROGRAM.pte", help="a program of dimorder's, or of another tool")
    file_input_options(parser, " (default: random numbers)")
    parser.add_argument(
        *("-o", "--output"),
        dest="folder",
        required=True,
        metavar="DIR",
        help="the folder to write; new or empty",
    )


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    progress("loading ExecuTorch")
    from dimorder.cli import tensors
    from dimorder.executorch import pte
    from dimorder.executorch.runner_project import export_runner

    inputs = None
    if options.input:
        progress("reading inputs")
        contract = pte.read_contract(options.program)
        inputs = tensors.read_inputs(contract, options.input, normalization(options))
    progress("running the program")
    folder = export_runner(options.program, options.folder, inputs)
    return Answer(f"{folder}: cd there, then see README.md")


COMMAND = Command(
    "export-runner", "write a CMake project that checks a .pte where it will run", EXAMPLES, add_options, run
)
