"""Decides what the commands are, what each does, and how it ends (the exit codes).

Everything heavy is imported by the command that needs it: `dimorder --help` must not wait for torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dimorder.cli import models
from dimorder.cli.console import Console, open_console
from dimorder.errors import DimorderError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from dimorder.lowering.network_plan import NetworkPlan

# NO is for a check that failed, and for a tensor or a network that is refused.
DONE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130

_INSPECT_ORDERS = {"channels-last": "channels_last", "contiguous": "contiguous", "as-is": None}
_SHIPPED = "the shipped table"
_MODEL_HELP = (
    "a .pt2 file, or package.module:factory (a callable that returns a torch.nn.Module, or a Module)"
)
_DESCRIPTION = "See, check, choose and lower the order in which tensors lie in memory."
_EXAMPLES = {
    "": """\
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
  dimorder run resnet18.pte --input photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
  dimorder explain torchvision.models:resnet18 --input 1x3x224x224

every command has examples of its own: dimorder lower --help
exit codes: 0 done, 1 the answer is no, 2 wrong usage, 130 interrupted""",
    "lower": """\
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
  dimorder lower net.pt2 -o net.pte --input-order NHWC --report net.html
  dimorder lower net.pt2 --target tosa -o net.tosa
  dimorder lower mymodels:Ranker --arg width=64 --input ids=1x128:int64 -o ranker.pte --json ranker.json

Target tosa writes a second file, net.tosa.json: the contract, without which the first is not run.
The keys of --json are stable: docs/json.md.
A factory is called with torch's seed at 0, and its network put in eval mode.""",
    "run": """\
  dimorder run net.pte --input x.npy -o y.npy
  dimorder run net.tosa --input x.npy -o y.npy
  dimorder run resnet18.pte --input photo.jpg --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225
  dimorder run ranker.pte --input ids=ids.npy --input mask=mask.npy -o scores.npz --on-mismatch error

An array is taken as it lies in its file. An image is resized to the input's height and width,
lies channels-last, and becomes (x / 255 - mean) / std.""",
    "plan": """\
  dimorder plan torchvision.models:swin_t --input 1x3x224x224
  dimorder plan mypackage.nets:unet --input 1x3x64x96 --output-order NHWC --objective count
  dimorder plan net.pt2 --json > plan.json""",
    "explain": """\
  dimorder explain torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
  dimorder explain net.pt2 --conversion 2 --target torch""",
    "inspect": """\
  dimorder inspect torchvision.models:shufflenet_v2_x1_0 --input 1x3x224x224
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --compare --report unet.html
  dimorder inspect mypackage.nets:unet --input 2x3x64x96 --order as-is --json

The network is run for real, in channels-last unless --order says otherwise. The exit code is 1 where an
order is lost, memory is copied into another, or operands are mixed.""",
    "ops": """\
  dimorder ops
  dimorder ops --device cuda --json ops.json
  dimorder ops --diff ops.json
  dimorder ops --runtime executorch
  dimorder ops --runtime executorch --regenerate --diff

Operators are probed by running them, on tensors of 3, 4 and 5 dims. With --diff the exit code is 1 where
something changed.""",
    "bench": """\
  dimorder bench convert
  dimorder bench convert -o src/dimorder/eager/conversion.json

Measures which way of moving memory is fastest here; -o puts the result, for this kind of CPU, into
a table.""",
    "check": """\
  dimorder check net.tosa
  dimorder check net.tosa --json > net.json
  dimorder check anybodys.pte
  dimorder check mypackage.nets:unet --input 1x3x64x96 --input-order NHWC

For ExecuTorch each operator has a verdict on the orders it gets: right, refused, wrong (silently) or unknown;
the exit code is 1 where one is wrong or refused.

Operators of a .tosa file are counted in all of its regions, constants left out. A TRANSPOSE moves the bytes
of its input; one that moves dimensions of size 1 alone moves none.""",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; its exit code. Errors are three lines on stderr, and tracebacks with `--debug`."""
    try:
        options = _parser().parse_args(argv)
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    with open_console(options.debug) as console:
        code = _finish(options, console)
    if code == INTERRUPTED and argv is None:
        # CPython ends by SIGINT, whatever the exit code, where the interrupt has passed through an exec().
        sys.stdout.flush()
        os._exit(code)
    return code


def _finish(options: argparse.Namespace, console: Console) -> int:
    """Runs the command; how it ended."""
    try:
        command: Callable[[argparse.Namespace, Console], int] = options.command
        return command(options, console)
    except BrokenPipeError:  # whoever read stdout has seen enough
        return DONE
    except (KeyboardInterrupt, Exception) as error:
        if console.interrupted or isinstance(error, KeyboardInterrupt):
            console.warn("dimorder: interrupted")
            return INTERRUPTED
        return _fail(error, console, options.debug)


def _fail(error: Exception, console: Console, debug: bool) -> int:
    if debug:
        console.warn("".join(traceback.format_exception(error)).rstrip())
    if not isinstance(error, DimorderError):
        where = f"an unexpected {type(error).__name__}"
        error = DimorderError(
            where, str(error) or "no message", "run again with --debug, and report what you see"
        )
    if isinstance(error.__cause__, RuntimeError):
        for line in console.runtime_errors():
            console.warn(line)
    console.warn(error)
    return USAGE if isinstance(error, UsageError) else NO


# The commands


def _lower(options: argparse.Namespace, console: Console) -> int:
    written = {"-o": options.output, "--json": options.json, "--report": options.report}
    _check_outputs(written)
    if not any(written.values()):
        raise UsageError("dimorder lower", "nothing to write", "give -o FILE, --json FILE or --report FILE")
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import api, files

        _check_artifact_name(options, written)
        lowered = _pipeline(api.lower, options, progress, run_artifact=options.run)
        data = lowered.artifact.data if options.output else b""
        report = _report(options, lowered, progress)
        console.check_interrupt()
        if options.output:
            files.write_whole(options.output, data, lowered.artifact.beside)
        if options.report:
            files.write_whole(options.report, report)
        _write_json(options.json, lowered.to_dict(), console)
    if options.json == "-":
        return DONE
    outside = ", ".join(f"{count} {name}" for name, count in lowered.artifact.outside.items())
    console.print(lowered.plan)
    verified = lowered.verified
    what = "program and file" if verified.artifact_ran else "the physical program, before it was emitted"
    console.print(f"verified     {verified.max_rel_error:.1e} relative error on random inputs: {what}")
    if not verified.input_matters:
        console.print(
            "             which shows little: other inputs give the same outputs; are the weights real?"
        )
    console.print(f"delegates    {lowered.artifact.delegates}, outside of them: {outside or 'nothing'}")
    console.print(f"constants    {lowered.constant_bytes_added:,} bytes added")
    if options.output:
        seconds = sum(lowered.seconds.values())
        beside = "".join(f", beside it {options.output}{end}" for end in lowered.artifact.beside)
        console.print(f"written      {options.output}, {len(data):,} bytes, in {seconds:.1f} s{beside}")
    return DONE


def _run(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"-o": options.output})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import api, files
        from dimorder.cli import tensors

        if options.output:
            tensors.check_output_name(options.output)
        progress(f"loading {options.program}")
        program = api.load(options.program, options.on_mismatch)
        if options.output:
            tensors.check_output_name(options.output, program.contract)
        progress("reading inputs")
        inputs = tensors.read_inputs(program.contract, options.input, _normalisation(options))
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
    for spec, output in zip(program.contract.outputs, outputs, strict=True):
        console.print(tensors.summary(spec, output))
    count, cost = program.stats.conversions, program.stats.cost_bytes
    console.print(f"guard  converted {count or 'nothing'}{f', {cost:,} bytes' if count else ''}")
    for conversion in program.stats.last:
        console.print(f"  {conversion}")
    return DONE


def _plan(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"--json": options.json, "--report": options.report})
    found = _planned(options, console)
    if options.report:
        from dimorder import files

        with console.progress() as progress:
            report = _report(options, found, progress)
        console.check_interrupt()
        files.write_whole(options.report, report)
    _write_json(options.json, found.to_dict(), console)
    if options.json != "-":
        console.print(found)
    return DONE


def _explain(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"--json": options.json})
    found = _planned(options, console)
    count = len(found.conversions)
    if options.conversion is not None and not 0 <= options.conversion < count:
        raise UsageError(
            f"--conversion {options.conversion}",
            f"a plan of {count or 'no'} conversions",
            f"give 0 to {count - 1}" if count else "leave --conversion out: there is nothing to explain",
        )
    chosen = range(count) if options.conversion is None else [options.conversion]
    with console.progress() as progress:
        reasons = []
        for index in chosen:
            progress(f"explaining conversion {index}")
            reasons.append(found.explain(index))
    _write_json(options.json, [reason.to_dict() for reason in reasons], console)
    if options.json == "-":
        return DONE
    if not count:
        console.print("no conversions: nothing to explain")
    for index, reason in zip(chosen, reasons, strict=True):
        console.print(f"{index}  {reason}")
    return DONE


def _check(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"--json": options.json})
    with console.progress() as progress:
        progress(f"reading {options.model}")
        found = _checked(options, progress)
        console.check_interrupt()
    _write_json(options.json, found.to_dict(), console)
    if options.json != "-":
        console.print(found)
    return DONE if getattr(found, "is_safe", True) else NO


def _checked(options: argparse.Namespace, progress: Callable[[str], None]) -> Any:
    """What a .tosa or .pte file holds, or what ExecuTorch would make of a network."""
    from dimorder.cli import checks

    if not options.model.endswith(".pt2") and (":" not in options.model or Path(options.model).exists()):
        return checks.check(options.model)
    from dimorder import executorch

    model = models.load_model(options.model, dict(options.arg))
    args, kwargs = models.example_inputs(model, options.input)
    progress("exporting")
    return executorch.check_program(checks.exported(model, args, kwargs, options.input_order))


def _inspect(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"--json": options.json, "--report": options.report})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import files, report
        from dimorder.eager import inspection

        progress(f"loading {options.model}")
        model = models.load_model(options.model, dict(options.arg))
        module = models.runnable(model)
        args, kwargs = models.example_inputs(model, options.input)
        progress("running")
        try:
            found = inspection.inspect(module, args, kwargs, order=_INSPECT_ORDERS[options.order])
        except Exception:
            models.check_runs(module, args, kwargs)
            raise
        compared = None
        if options.compare:
            progress("running in both orders in turn")
            compared = inspection.compare(module, args, kwargs)
        console.check_interrupt()
        if options.report:
            files.write_whole(
                options.report, report.render_inspection(found, options.model, compared).encode()
            )
    data = found.to_dict() | ({"compare": compared.to_dict()} if compared else {})
    _write_json(options.json, data, console)
    if options.json != "-":
        console.print(found.text(colour=console.out.isatty() and "NO_COLOR" not in os.environ))
        if compared:
            console.print(compared)
    return DONE if found.keeps else NO


def _ops(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"--json": options.json})
    if options.runtime == "executorch":
        return _kernels(options, console)
    if options.regenerate or options.diff == _SHIPPED:
        raise UsageError(
            "dimorder ops", "--regenerate, or --diff without a file", "these need --runtime executorch"
        )
    old = _read_json(options.diff) if options.diff else None
    with console.progress() as progress:
        progress("loading torch")
        from dimorder.eager import inspection

        table = inspection.operators(options.device, progress)
        console.check_interrupt()
    changes = table.diff(old) if old is not None else ()
    _write_json(options.json, table.to_dict(), console)
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
    """The truth table of ExecuTorch's kernels: as shipped, or probed again."""
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import executorch
        from dimorder.runtime.kernels import KernelTable

        shipped = old = KernelTable.shipped()
        if options.diff not in (None, _SHIPPED):
            old = KernelTable.from_dict(_read_json(options.diff))
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


def _bench(options: argparse.Namespace, console: Console) -> int:
    _check_outputs({"-o": options.output})
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import files
        from dimorder.eager import transposition

        table = transposition.measure(progress=progress)
        console.check_interrupt()
    if options.output:
        old = _read_json(options.output) if Path(options.output).exists() else {}
        new = json.dumps({**old, transposition.family(): table}, indent=1)
        files.write_whole(options.output, f"{new}\n".encode())
    console.print(f"{transposition.family()}, one thread, over torch's copy; elsewhere torch's copy is taken")
    for itemsize, cells in table.items():
        for cell, gains in cells.items():
            ways = ", ".join(f"{way} {gain:.2f}×" for way, gain in gains.items())
            console.print(f"  {itemsize} bytes  {cell:10}  {ways}")
    return DONE


def _planned(options: argparse.Namespace, console: Console) -> NetworkPlan:
    with console.progress() as progress:
        progress("loading torch")
        from dimorder import api

        found: NetworkPlan = _pipeline(api.plan, options, progress)
        console.check_interrupt()
    return found


def _pipeline(
    step: Callable[..., Any], options: argparse.Namespace, progress: Callable[[str], None], **more: Any
) -> Any:
    """`api.lower` or `api.plan` of what the options name."""
    from dimorder import targets

    targets.find(options.target)
    progress(f"loading {options.model}")
    model = models.load_model(options.model, dict(options.arg))
    args, kwargs = models.example_inputs(model, options.input)
    try:
        return step(
            model,
            args,
            kwargs,
            target=options.target,
            input_orders=_orders(options.input_order),
            output_orders=_orders(options.output_order),
            objective=options.objective,
            progress=progress,
            **more,
        )
    except UnsupportedError:
        models.check_runs(model, args, kwargs)
        raise


def _orders(given: Sequence[str]) -> Any:
    return (given[0] if len(given) == 1 else list(given)) if given else None


def _normalisation(options: argparse.Namespace) -> Any:
    if options.mean is None and options.std is None:
        return None
    from dimorder.cli.tensors import Normalisation

    return Normalisation(options.mean or (0.0,), options.std or (1.0,))


# What is written


def _check_outputs(paths: Mapping[str, str | None]) -> None:
    """Raises `UsageError` for a path that cannot be written, before the long work begins."""
    files = {option: Path(path) for option, path in paths.items() if path and path != "-"}
    for option, path in files.items():
        where = f"{option} {path}"
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(where, "a folder or a device", "name a file")
        if list(files.values()).count(path) > 1:
            raise UsageError(where, "given for two files", "give each its own name")
        probe = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            fix = "name a file in a folder that exists and that you can write to"
            raise UsageError(where, f"cannot be written: {error.strerror or error}", fix) from error


def _check_artifact_name(options: argparse.Namespace, written: Mapping[str, str | None]) -> None:
    """Raises `UsageError` for an -o that nobody could load, or beside which there is no place."""
    from dimorder import targets

    target = targets.find(options.target)
    if options.output:
        target.check_name(Path(options.output))
        _check_outputs({**written, **{f"{end} beside -o": options.output + end for end in target.beside}})


def _write_json(path: str | None, data: object, console: Console) -> None:
    if path is None:
        return
    text = json.dumps(data, indent=2, ensure_ascii=False)
    if path == "-":
        console.print(text)
        return
    from dimorder import files

    files.write_whole(path, f"{text}\n".encode())


def _read_json(path: str) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or f"no JSON: {error}"
        raise UsageError(path, found, "give a file that --json wrote") from error


def _report(options: argparse.Namespace, result: Any, progress: Callable[[str], None]) -> bytes:
    if not options.report:
        return b""
    from dimorder import report

    return report.render(result, options.model, progress).encode()


# The options


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `UsageError`s, and whose help ends with the targets where `tells_targets`."""

    tells_targets = False

    def format_help(self) -> str:
        # Written when it is asked for: other packages' listings are imported, and by no other command.
        return super().format_help() + (f"\n{_targets_told()}" if self.tells_targets else "")

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message, f"see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _command_parser(_Parser, "", prog="dimorder", description=_DESCRIPTION)
    parser.tells_targets = True
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    lower = _command(
        commands, "lower", _lower, "lower a network to a program with a proven plan and a contract"
    )
    _network_options(lower)
    lower.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the program: a .pte for xnnpack, a .pt2 for torch, a .tosa for tosa (its contract beside it)",
    )
    lower.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        help="run what was emitted and compare it with the network (the default, but for tosa: slow)",
    )
    _json_option(lower, "what was planned, and how it was lowered")
    _report_option(lower)

    run = _command(commands, "run", _run, "run a .pte, .tosa or .pt2, with its contract checked")
    run.add_argument(
        "program",
        metavar="PROGRAM",
        help="a .pte, which has a guard even if dimorder did not write it, or a .tosa or .pt2 of dimorder's",
    )
    run.add_argument(
        *("--input", "-i"),
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a .npy or an image, one per input",
    )
    run.add_argument("-o", "--output", metavar="FILE", help="the output as .npy, or several as one .npz")
    run.add_argument(
        "--on-mismatch",
        choices=("adapt", "error", "warn"),
        default="adapt",
        help="an input in another order is converted (the default), refused, or converted with a warning",
    )
    run.add_argument(
        "--mean", type=_numbers, metavar="A,B,C", help="of an image's channels, from 0 to 1 (default 0)"
    )
    run.add_argument("--std", type=_numbers, metavar="A,B,C", help="of an image's channels (default 1)")

    plan = _command(commands, "plan", _plan, "plan a network's orders and print the plan; nothing is lowered")
    _network_options(plan)
    _json_option(plan, "the plan")
    _report_option(plan)

    explain = _command(
        commands, "explain", _explain, "say why a plan's conversions are there, and what would avoid them"
    )
    _network_options(explain)
    explain.add_argument("--conversion", type=int, metavar="N", help="only this one, from 0 (default: all)")
    _json_option(explain, "the reasons")

    inspect = _command(commands, "inspect", _inspect, "run a network, and show where it loses its order")
    _model_options(inspect)
    inspect.add_argument(
        "--order",
        choices=tuple(_INSPECT_ORDERS),
        default="channels-last",
        help="what weights and images are put in for the run (default channels-last)",
    )
    inspect.add_argument("--compare", action="store_true", help="time both orders, and recommend one")
    _json_option(inspect, "the findings")
    _report_option(inspect)

    ops = _command(commands, "ops", _ops, "say what each operator of this torch does with channels-last")
    ops.add_argument("--device", default="cpu", help="where to run them: cpu (default), cuda, xpu")
    ops.add_argument(
        "--diff",
        nargs="?",
        const=_SHIPPED,
        metavar="FILE",
        help="only what changed since this --json; for executorch, without FILE, since the shipped table",
    )
    ops.add_argument(
        "--runtime",
        choices=("torch", "executorch"),
        default="torch",
        help="whose operators: torch's, or ExecuTorch's kernels in the orders they get",
    )
    ops.add_argument(
        "--regenerate",
        action="store_true",
        help="with --runtime executorch: probe the kernels that are installed (minutes)",
    )
    ops.add_argument("--markdown", action="store_true", help="as a page of documentation")
    _json_option(ops, "the table")

    bench = _command(commands, "bench", _bench, "measure conversions between orders on this machine")
    bench.add_argument("what", choices=("convert",), help="what to measure")
    bench.add_argument("-o", "--output", metavar="FILE", help="the table to put the result into")

    check = _command(
        commands,
        "check",
        _check,
        "say what a .tosa or .pte file holds, or what ExecuTorch would get wrong",
    )
    _model_options(check)
    check.add_argument(
        "--input-order", metavar="ORDER", help="how a network's inputs lie (default contiguous)"
    )
    _json_option(check, "what it holds")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace, Console], int], description: str
) -> _Parser:
    parser = _command_parser(
        commands.add_parser, name, help=description, description=f"{description.capitalize()}."
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks, and what libraries print")
    parser.set_defaults(command=run)
    return parser


def _command_parser(make: Callable[..., _Parser], name: str, /, *args: str, **options: Any) -> _Parser:
    return make(
        *([name] if name else []),
        **options,
        epilog=f"examples:\n{_EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _targets_told() -> str:
    """A line for each target: its name, the suffix of its files, its summary."""
    from dimorder import targets

    rows = []
    for name in targets.names():
        try:
            told = targets.listing(name)
            rows.append((name, told.suffix, told.summary))
        except UsageError as error:
            rows.append((name, "", error.found))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {name:{widths[0]}}  {suffix:{widths[1]}}  {summary}\n" for name, suffix, summary in rows]
    return "targets:\n" + "".join(lines)


def _network_options(parser: _Parser) -> None:
    _model_options(parser)
    parser.tells_targets = True
    parser.add_argument(
        "--target", default="xnnpack", help="what to lower for, of the targets below (default xnnpack)"
    )
    for kind in ("input", "output"):
        parser.add_argument(
            f"--{kind}-order",
            action="append",
            default=[],
            metavar="ORDER",
            help=f"what the contract promises of {kind}s, such as NHWC or 0,2,3,1 (default contiguous); "
            f"once for all, or once per {kind}",
        )
    parser.add_argument(
        "--objective",
        choices=("bytes", "count"),
        default="bytes",
        help="minimise bytes moved (default) or conversions",
    )


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=_MODEL_HELP)
    parser.add_argument(
        *("--input", "-i"),
        action="append",
        default=[],
        type=models.InputOption.parse,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help="one per input, such as 1x3x224x224 or ids=1x128:int64 (float32 by default); a .pt2 needs none",
    )
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        type=models.parse_argument,
        metavar="KEY=VALUE",
        help="an argument of the factory, as a Python literal or else as text",
    )


def _json_option(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help=f"{what} as JSON; - or nothing is stdout"
    )


def _report_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report", metavar="FILE", help="a page (.html) that shows the plan operator by operator"
    )


def _numbers(text: str) -> tuple[float, ...]:
    with contextlib.suppress(ValueError):
        return tuple(float(part) for part in text.split(","))
    raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 0.5,0.5,0.5")


def _version() -> str:
    from importlib import metadata

    try:
        return f"dimorder {metadata.version('dimorder')}"
    except metadata.PackageNotFoundError:
        return "dimorder, not installed"
