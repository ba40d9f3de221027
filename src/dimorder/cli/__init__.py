"""Run the commands, each of which has its own file, and set their exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dimorder.cli import (
    bench,
    check,
    completion,
    demo,
    explain,
    export_runner,
    inspect,
    lower,
    models,
    ops,
    plan,
    run,
)
from dimorder.cli.answer import (
    DONE,
    INTERRUPTED,
    NO,
    USAGE,
    check_outputs,
    input_paths,
    output_paths,
    print_answer,
    write_files,
)
from dimorder.cli.console import TEMPORARY_FIX, Console, flushing, open_console
from dimorder.cli.options import Command, CommandParser
from dimorder.errors import DimorderError, UsageError

__all__ = ["COMMANDS", "EXAMPLES", "main"]

COMMANDS: tuple[Command, ...] = (
    lower.COMMAND,
    run.COMMAND,
    export_runner.COMMAND,
    plan.COMMAND,
    explain.COMMAND,
    inspect.COMMAND,
    ops.COMMAND,
    bench.COMMAND,
    check.COMMAND,
    demo.COMMAND,
)
_WORDS = {"model": "MODEL", "more": "FILE", "program": "PROGRAM", "output": "-o", "folder": "-o"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # of a disk for temporary files
_DESCRIPTION = "Show, check and choose the order in which tensors lie in memory, and lower networks by it."
EXAMPLES = """\
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
  dimorder run resnet18.pte --input photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
  dimorder explain torchvision.models:resnet18 --input 1x3x224x224

every command has examples of its own: dimorder lower --help
exit codes: 0 done, 1 refused or a check failed, 2 wrong usage, 130 interrupted"""

WELCOME = f"""\
{_DESCRIPTION} Three commands to try:

  dimorder plan torchvision.models:swin_t --input 1x3x224x224 --target xnnpack
      each conversion that is left, with its operators, bytes and source lines
  dimorder inspect torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
      the order in which PyTorch runs each operator, and where channels-last is lost
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
      a verified program for a phone's CPU

dimorder --help lists all commands and targets."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, with errors as three lines on stderr, and return its exit code.

    Without a command, three to try are shown.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # its encoding may lack letters of the help
    try:
        with flushing(sys.stdout):  # also when argparse ends Python after its help
            options = _parse(argv)
        if options is None:
            return DONE
        with open_console(options.debug) as console:
            code = _finish(options, console)
    except BrokenPipeError:
        return DONE
    except DimorderError as error:
        print(error, file=sys.stderr)
        return USAGE
    if code == INTERRUPTED and argv is None:
        # CPython ends by SIGINT, whatever the exit code, if the interrupt has passed through an exec().
        sys.stdout.flush()
        os._exit(code)
    return code


def _close_option(word: str, command: str) -> str:
    """Return a hint at the option of a command that was meant, or nothing."""
    known = next(each for each in COMMANDS if each.name == command)
    options = CommandParser()
    known.add_options(options)
    names = [flag for action in options._actions for flag in action.option_strings]
    if re.fullmatch(r"\d+(x\d+)+", word) and "--input" in names:
        return f"write --input {word}; "
    close = difflib.get_close_matches(word.partition("=")[0], names, n=1) if word.startswith("--") else []
    return f"did you mean {close[0]}? " if close else ""


def _parse(argv: Sequence[str] | None) -> argparse.Namespace | None:
    """Return the options, or None if there are no words, for which the welcome is printed."""
    if completion.is_requested():
        completion.complete(parser())
    if not (sys.argv[1:] if argv is None else argv):
        print(WELCOME)
        return None
    options, unknown = parser().parse_known_args(argv)
    if hasattr(options, "more") and not any(word.startswith("-") for word in unknown):
        options.more, unknown = [*options.more, *unknown], []  # argparse knows no files after an option
    if unknown:
        name = options.command.name  # argparse itself would name the help of `dimorder` alone
        fix = f"{_close_option(unknown[0], name)}see dimorder {name} --help"
        raise UsageError(f"dimorder {name}", f"unrecognized arguments: {' '.join(unknown)}", fix)
    _refuse_empty_words(options)
    return options


def _refuse_empty_words(options: argparse.Namespace) -> None:
    """Raise `UsageError` for an option or an argument that is an empty text, which means nothing."""
    for name, value in vars(options).items():
        if value == "" or (isinstance(value, list) and "" in value):
            word = _WORDS.get(name, f"--{name.replace('_', '-')}")
            fix = "give a value, or leave it out"
            raise UsageError(f"dimorder {options.command.name}", f"an empty text for {word}", fix)


def _finish(options: argparse.Namespace, console: Console) -> int:
    """Run the command, write its files, print its text, and return its exit code."""
    try:
        check_outputs(output_paths(options), input_paths(options))
        with console.progress(quiet=getattr(options, "json", None) == "-") as progress:
            command: Command = options.command
            try:
                answer = command.run(options, progress)
            except SystemExit as error:  # only code of a network ends Python
                raise models.exit_error(options.model, error) from error
            console.check_interrupt()
            write_files(answer, options)
        print_answer(answer, options, console)
        return answer.code
    except BrokenPipeError:  # the reader of stdout has closed it
        return DONE
    except (KeyboardInterrupt, Exception) as error:
        if console.interrupted or isinstance(error, KeyboardInterrupt):
            console.warn("dimorder: interrupted")
            return INTERRUPTED
        return _fail(error, console, options.debug)


def _fail(error: Exception, console: Console, debug: bool) -> int:
    if debug:
        console.warn("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError) and error.errno in _FULL:
        error = UsageError("a temporary file", f"cannot be written: {error.strerror}", TEMPORARY_FIX)
    elif not isinstance(error, DimorderError):
        where = f"an unexpected {type(error).__name__}"
        error = DimorderError(
            where, str(error) or "no message", "run again with --debug, and report what you see"
        )
    if isinstance(error.__cause__, RuntimeError):
        for line in console.runtime_errors():
            console.warn(line)
    console.warn(error)
    return USAGE if isinstance(error, UsageError) else NO


def parser() -> CommandParser:
    """Return the parser of all commands; the parsed options have the command as `command`."""
    parser = _command_parser(CommandParser, EXAMPLES, prog="dimorder", description=_DESCRIPTION)
    parser.lists_targets = True
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        of_command = _command_parser(
            subparsers.add_parser,
            command.examples,
            command.name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        )
        of_command.add_argument(
            "--debug", action="store_true", help="show tracebacks, and what libraries print"
        )
        of_command.set_defaults(command=command)
        command.add_options(of_command)
    return parser


def _command_parser(
    make: Callable[..., CommandParser], examples: str, *args: str, **options: Any
) -> CommandParser:
    return make(
        *args,
        **options,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _version() -> str:
    from importlib import metadata

    try:
        return f"dimorder {metadata.version('dimorder')}"
    except metadata.PackageNotFoundError:
        return "dimorder, not installed"
