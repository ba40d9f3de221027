"""Run `dimorder ops`: judge torch's operators or ExecuTorch's kernels, order by order."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dimorder.cli.answer import DONE, NO, Answer, read_json
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import Command, CommandParser, json_option
from dimorder.errors import UsageError

_SHIPPED = "the shipped table"

EXAMPLES = """\
  dimorder ops
  dimorder ops --device cuda --json ops.json
  dimorder ops --diff ops.json
  dimorder ops --runtime executorch
  dimorder ops --runtime executorch --regenerate --diff

Operators are probed by running them, on tensors of 3, 4 and 5 dims. With --diff the exit code is 1 if
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


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    if options.runtime == "executorch":
        return _kernels(options, progress)
    if options.regenerate or options.diff == _SHIPPED:
        raise UsageError(
            "dimorder ops", "--regenerate, or --diff without a file", "these need --runtime executorch"
        )
    old = read_json(options.diff) if options.diff else None
    progress("loading torch")
    from dimorder.eager.inspection.probe import operators

    table = operators(options.device, progress)
    if old is None:
        return Answer(table.markdown() if options.markdown else table, table.to_dict())
    return _changes(table.diff(old), len(table.cells), table.to_dict())


def _kernels(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    """Return the truth table of ExecuTorch's kernels: as shipped, or probed again."""
    progress("loading torch")
    from dimorder import executorch
    from dimorder.runtime.kernels import KernelTable

    shipped = old = KernelTable.shipped()
    if options.diff not in (None, _SHIPPED):
        old = KernelTable.from_dict(read_json(options.diff))
    table = executorch.probe(progress=progress) if options.regenerate else shipped
    if not options.diff:
        return Answer(table, table.to_json())
    return _changes(old.differences(table), sum(map(len, table.rows.values())), table.to_json())


def _changes(changes: Sequence[object], operators: int, data: object) -> Answer:
    lines = [*map(str, changes)] or [f"nothing changed in {operators} operators"]
    return Answer("\n".join(lines), data, code=NO if changes else DONE)


COMMAND = Command(
    "ops", "show what each operator of this torch does with channels-last", EXAMPLES, add_options, run
)
