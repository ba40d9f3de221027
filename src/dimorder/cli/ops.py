"""Run `dimorder ops`: judge torch's operators or ExecuTorch's kernels, order by order."""

from __future__ import annotations

import argparse

from dimorder.cli.console import Console
from dimorder.cli.options import (
    DONE,
    NO,
    Command,
    CommandParser,
    check_outputs,
    json_option,
    read_json,
    write_json,
)
from dimorder.errors import UsageError

_SHIPPED = "the shipped table"

EXAMPLES = """\
  dimorder ops
  dimorder ops --device cuda --json ops.json
  dimorder ops --diff ops.json
  dimorder ops --runtime executorch
  dimorder ops --runtime executorch --regenerate --diff

Operators are probed by running them, on tensors of 3, 4 and 5 dims. With --diff the exit code is 1 where
something changed."""


def add_options(parser: CommandParser) -> None:
    parser.add_argument("--device", default="cpu", help="where to run them: cpu (default), cuda, xpu")
    parser.add_argument(
        "--diff",
        nargs="?",
        const=_SHIPPED,
        metavar="FILE",
        help="only what changed since this --json; for executorch, without FILE, since the shipped table",
    )
    parser.add_argument(
        "--runtime",
        choices=("torch", "executorch"),
        default="torch",
        help="whose operators: torch's, or ExecuTorch's kernels in the orders they get",
    )
    parser.add_argument(
        "--regenerate",
        action="store_true",
        help="with --runtime executorch: probe the kernels that are installed (minutes)",
    )
    parser.add_argument("--markdown", action="store_true", help="as a page of documentation")
    json_option(parser, "the table")


def run(options: argparse.Namespace, console: Console) -> int:
    check_outputs({"--json": options.json})
    if options.runtime == "executorch":
        return _kernels(options, console)
    if options.regenerate or options.diff == _SHIPPED:
        raise UsageError(
            "dimorder ops", "--regenerate, or --diff without a file", "these need --runtime executorch"
        )
    old = read_json(options.diff) if options.diff else None
    with console.progress() as progress:
        progress("loading torch")
        from dimorder.eager import inspection

        table = inspection.operators(options.device, progress)
        console.check_interrupt()
    changes = table.diff(old) if old is not None else ()
    write_json(options.json, table.to_dict(), console)
    if options.json == "-":
        return NO if changes else DONE
    if old is None:
        console.print(table.markdown() if options.markdown else table)
        return DONE
    for change in changes:
        console.print(change)
    if not changes:
        console.print(f"nothing changed in {len(table.cells)} operators")
    return NO if changes else DONE


def _kernels(options: argparse.Namespace, console: Console) -> int:
    """Print the truth table of ExecuTorch's kernels: as shipped, or probed again."""
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import executorch
        from dimorder.runtime.kernels import KernelTable

        shipped = old = KernelTable.shipped()
        if options.diff not in (None, _SHIPPED):
            old = KernelTable.from_dict(read_json(options.diff))
        table = executorch.probe(progress=progress) if options.regenerate else shipped
        console.check_interrupt()
    changes = old.differences(table) if options.diff else []
    if options.json == "-":
        console.print(table.to_json().rstrip())
        return NO if changes else DONE
    if options.json:
        from dimorder import files

        files.write_whole(options.json, table.to_json().encode())
    if not options.diff:
        console.print(table)
    for change in changes:
        console.print(change)
    if options.diff and not changes:
        console.print(f"nothing changed in {sum(map(len, table.rows.values()))} operators")
    return NO if changes else DONE


COMMAND = Command(
    "ops", "say what each operator of this torch does with channels-last", EXAMPLES, add_options, run
)
