"""Run `dimorder demo`: a face detector is lowered, run, quantised, and fed in the wrong order."""

from __future__ import annotations

import argparse
from pathlib import Path

from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser
from dimorder.errors import installed

COMMANDS = "pip install '.[executorch,demo]' && pip install --no-deps facenet-pytorch==2.6.0"
INSTALL = f"in dimorder's folder: {COMMANDS}"

EXAMPLES = f"""\
  dimorder demo
  dimorder demo -o faces

It needs about a minute, and no network connection. The pictures are scikit-image's, and the weights are
facenet-pytorch's. In dimorder's folder:

  {COMMANDS}"""


def add_options(parser: CommandParser) -> None:
    parser.add_argument(
        *("-o", "--output"),
        dest="folder",
        default="dimorder-demo",
        metavar="DIR",
        help="the folder for the programs and the picture (default dimorder-demo)",
    )


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    progress("loading torch and ExecuTorch")
    with installed("the demo", INSTALL):
        from dimorder.demo import face
    face.show(Path(options.folder), progress.print, progress)
    return Answer("")


COMMAND = Command("demo", "lower, run and quantise a face detector, step by step", EXAMPLES, add_options, run)
