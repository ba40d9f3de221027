"""Decides what `dimorder bench` does: conversions between orders are measured on this machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dimorder.cli.console import Console
from dimorder.cli.options import DONE, Command, CommandParser, check_outputs, read_json

EXAMPLES = """\
  dimorder bench convert
  dimorder bench convert -o src/dimorder/eager/conversion.json

Measures which way of moving memory is fastest here; -o puts the result, for this kind of CPU, into
a table."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument("what", choices=("convert",), help="what to measure")
    parser.add_argument("-o", "--output", metavar="FILE", help="the table to put the result into")


def run(options: argparse.Namespace, console: Console) -> int:
    check_outputs({"-o": options.output})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import files
        from dimorder.eager import transposition

        table = transposition.measure(progress=progress)
        console.check_interrupt()
    if options.output:
        old = read_json(options.output) if Path(options.output).exists() else {}
        new = json.dumps({**old, transposition.family(): table}, indent=1)
        files.write_whole(options.output, f"{new}\n".encode())
    console.print(f"{transposition.family()}, one thread, over torch's copy; elsewhere torch's copy is taken")
    for itemsize, cells in table.items():
        for cell, gains in cells.items():
            ways = ", ".join(f"{way} {gain:.2f}×" for way, gain in gains.items())
            console.print(f"  {itemsize} bytes  {cell:10}  {ways}")
    return DONE


COMMAND = Command("bench", "measure conversions between orders on this machine", EXAMPLES, add_options, run)
