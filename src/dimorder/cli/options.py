"""Define the form in which a command is declared, and the options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dimorder.cli import models, sizes
from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.errors import UnsupportedError, UsageError
from dimorder.text import columns

if TYPE_CHECKING:
    from dimorder.plans.network_plan import NetworkPlan
    from dimorder.reading import Normalization
    from dimorder.targets.base import Target

MODULE_HELP = (
    "module:name, such as mynet:Net for the class Net of mynet.py in this folder; "
    "the name is a callable that returns a torch.nn.Module, or a Module"
)
# --json takes the next word as its file, be that MODEL or a source.
_JSON_FIX = "write --json FILE.json, or --json after all other words for stdout"
INPUT_HELP = "one per input, such as 1x3x224x224 or ids=1x128:int64 (float32 by default)"


@dataclass(frozen=True)
class Command:
    """One command: its name, its line of help, its examples, its options, and its function.

    Only `run` imports heavy modules, since `dimorder --help` must not wait for torch.
    """

    name: str
    summary: str
    examples: str
    add_options: Callable[[CommandParser], None]
    run: Callable[[argparse.Namespace, ProgressLine], Answer]


class CommandParser(argparse.ArgumentParser):
    """A parser that raises `UsageError`, and ends its help with the targets and what they offer."""

    lists_targets = False
    offers: Sequence[tuple[str, str]] = ()

    def format_help(self) -> str:
        # Written only on request, since it imports the infos of other packages.
        lists = [_choices_text(option, kind) for option, kind in self.offers]
        return "\n".join([super().format_help(), *lists, *([_targets_text()] if self.lists_targets else [])])

    def add_list(self, *flags: str, **how: Any) -> None:
        """Add an option that may be given several times."""
        self.add_argument(*flags, action="append", default=[], **how)

    def add_by_key(self, flag: str, parse: Callable[[str], Any] = str, **how: Any) -> None:
        """Add an option KEY=VALUE that may be given several times, but once for each key."""
        keys = set[str]()

        def parse_once(text: str) -> Any:
            key, equals, _ = text.partition("=")
            if equals and key in keys:
                raise UsageError(f"{flag} {text}", f"a second value of {key}", f"give {flag} {key}= once")
            keys.add(key)
            return parse(text)

        self.add_list(flag, type=parse_once, **how)

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file or sys.stderr)  # argparse itself ignores a full disk

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, message, f"see {self.prog} --help")


# The options


def network_options(parser: CommandParser, *, writes: bool = False) -> None:
    """Add MODEL and the options of its plan, which `plan_network` and `pipeline` read.

    `writes` is whether the command has -o, whose file may choose the target.
    """
    model_options(
        parser,
        f"a .pt2 file, or {MODULE_HELP}",
        f"{INPUT_HELP}; a .pt2 needs none; a letter is a dynamic size, as in Nx3x224x224: one program for "
        "all its sizes",
    )
    parser.lists_targets = True
    parser.offers = (("--objective", "objectives"), ("--quantize", "recipes"), ("--option", "options"))
    default = "the one that writes -o's file, or torch" if writes else "torch"
    parser.add_argument("--target", help=f"what to lower for, of the targets below (default: {default})")
    parser.add_by_key("--option", metavar="NAME=VALUE", help="an option of the target, of those below")
    parser.add_by_key(
        "--range",
        sizes.parse_range,
        metavar="LETTER=FROM..TO[:STEP]",
        help="the values of a dynamic size of --input, such as N=1..16, or H=64..256:32 for multiples of "
        "32 (default 1..16 where it is an input's first dimension)",
    )
    parser.add_by_key(
        "--cost-at",
        sizes.parse_size,
        metavar="LETTER=SIZE",
        help="the size at which costs are reported, and at which the plan is the best if none is for the "
        "whole range (default: the middle)",
    )
    _tensor_options(
        parser,
        "order",
        "the order of {kind}s in the contract, such as NHWC or 0,2,3,1 (default contiguous)",
    )
    _tensor_options(
        parser,
        "type",
        "int8, uint8, int16 or float32: the type that a quantised network {verb}",
    )
    parser.add_argument(
        "--objective",
        help="what the plan minimises, of the target's objectives below (default: the first)",
    )
    parser.add_argument(
        "--quantize",
        metavar="RECIPE",
        help="quantise MODEL, a float network, by one of the target's recipes below",
    )
    parser.add_argument(
        "--calibrate",
        metavar="PATH",
        help="inputs like those that the network will get, for --quantize: a .npz (examples along the first "
        "dimension), a .npy or a picture, or a folder of these; pictures become (x / 255 - mean) / std",
    )
    normalization_options(parser)


def _tensor_options(parser: CommandParser, what: str, text: str) -> None:
    """Add --input-WHAT and --output-WHAT, which `_one_or_each` reads."""
    for kind, verb in (("input", "takes"), ("output", "gives")):
        parser.add_list(
            f"--{kind}-{what}",
            metavar=what.upper(),
            help=f"{text.format(kind=kind, verb=verb)}; once for all, or once per {kind}",
        )


def file_input_options(parser: CommandParser, default: str = "") -> None:
    """Add --input for the inputs of a program, and the options for an image's normalization."""
    parser.add_list(
        *("--input", "-i"),
        metavar="[NAME=]FILE",
        help=f"a .npy or an image, one per input{default}",
    )
    normalization_options(parser)


def normalization_options(parser: CommandParser) -> None:
    """Add the options for an image's normalization, which `normalization` reads."""
    parser.add_argument(
        "--mean", type=_numbers, metavar="A,B,C", help="mean of each image channel, from 0 to 1 (default 0)"
    )
    parser.add_argument(
        "--std",
        type=_numbers,
        metavar="A,B,C",
        help="standard deviation of each image channel (default 1)",
    )


def normalization(options: argparse.Namespace) -> Normalization | None:
    """Return the normalization of --mean and --std, or None if neither is present."""
    if options.mean is None and options.std is None:
        return None
    from dimorder.reading import Normalization

    return Normalization(options.mean or (0.0,), options.std or (1.0,))


def _numbers(text: str) -> tuple[float, ...]:
    with contextlib.suppress(ValueError):
        return tuple(float(part) for part in text.split(","))
    raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 0.5,0.5,0.5")


def model_options(parser: CommandParser, model: str = MODULE_HELP, inputs: str = INPUT_HELP) -> None:
    """Add MODEL, its arguments and its inputs, which `models` reads, with these lines of help."""
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_list(
        *("--input", "-i"),
        type=models.InputOption.parse,
        metavar="[NAME=]SHAPE[:DTYPE]",
        help=inputs,
    )
    parser.add_by_key(
        "--arg",
        models.parse_argument,
        metavar="KEY=VALUE",
        help="an argument of MODEL's callable, as a Python literal or else as text",
    )


def json_option(parser: CommandParser, what: str) -> None:
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        type=output_path("--json", ".json", _JSON_FIX, stdout="-"),
        metavar="FILE",
        help=f"{what} as JSON, in a .json file; - or nothing is stdout",
    )


def output_path(option: str, suffix: str, fix: str = "", stdout: str = "") -> Callable[[str], str]:
    """Return the type of an option that names a file to write; another suffix may be that of a source.

    `fix` is what else to do than to name a file, and `stdout` the word that names no file.
    """

    def parse(path: str) -> str:
        if Path(path).suffix != suffix and path != stdout:
            raise UsageError(f"{option} {path}", f"no {suffix} file", fix or f"write {option} FILE{suffix}")
        return path

    return parse


def report_option(parser: CommandParser, shows: str = "the plan operator by operator") -> None:
    parser.add_argument(
        "--report",
        type=output_path("--report", ".html"),
        metavar="FILE",
        help=f"a page (.html) that shows {shows}",
    )


def _choices_text(option: str, kind: str) -> str:
    """Return a line for each name that `option` takes, with the targets that have it."""
    from dimorder import targets

    choices = targets.choices(kind)
    rows = [(name, f"{line}{f' ({owners})' if owners else ''}") for name, line, owners in choices]
    return f"{kind} ({option}):\n" + _indent(rows)


def _targets_text() -> str:
    """Return a line for each target: its name, the suffix of its files, its summary."""
    from dimorder import targets

    rows = []
    for name in targets.names():
        try:
            info = targets.info(name)
            rows.append((name, info.suffix, info.summary))
        except UsageError as error:
            rows.append((name, "", error.found))
    return "targets:\n" + _indent(rows)


def _indent(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"  {line}\n" for line in columns(rows))


# The networks and plans of the options


def plan_network(options: argparse.Namespace, progress: ProgressLine) -> NetworkPlan:
    """Return the plan that the options ask for."""
    progress("loading torch")
    from dimorder import api

    found: NetworkPlan = pipeline(api.plan, network(options, progress), options, progress)
    return found


def network(options: argparse.Namespace, progress: Callable[[str], None]) -> tuple[Any, Any, Any]:
    """Return the network of MODEL with a call of it, quantised if --quantize asks for that."""
    target = target_of(options)
    fix = "give --quantize int8 --calibrate PATH together"
    if options.calibrate and not options.quantize:
        raise UsageError("--calibrate", "no --quantize", fix)
    recipe = target.recipes.get(options.quantize)
    if recipe is not None and not recipe.dynamic and not options.calibrate:
        raise UsageError("--quantize", "no --calibrate", f"{fix}, or --quantize int8-dynamic alone")
    if not options.calibrate and (options.mean or options.std):
        raise UsageError(
            "--mean and --std", "no pictures to calibrate with", "give --quantize and --calibrate"
        )
    progress(f"loading {options.model}")
    model = models.load_model(options.model, dict(options.arg))
    known = sizes.symbols(options.input, options.range)
    args, kwargs = models.example_inputs(model, options.input, sizes.example_sizes(known))
    if not options.quantize:
        return model, args, kwargs
    from dimorder.quantization.quantize import quantize

    quantised = quantize(
        model,
        options.calibrate,
        options.quantize,
        target=target,
        args=args,
        kwargs=kwargs,
        dynamic_shapes=sizes.dynamic_shapes(model, args, kwargs, options.input, known),
        normalization=normalization(options),
        progress=progress,
    )
    return quantised, args, kwargs


def pipeline(
    step: Callable[..., Any],
    named: tuple[Any, Any, Any],
    options: argparse.Namespace,
    progress: Callable[[str], None],
    **more: Any,
) -> Any:
    """Return `api.lower` or `api.plan` of the options' network."""
    model, args, kwargs = named
    known = sizes.symbols(options.input, options.range)
    called = model.module if options.quantize else model
    try:
        return step(
            model,
            args,
            kwargs,
            target=target_of(options),
            input_orders=_one_or_each(options.input_order),
            output_orders=_one_or_each(options.output_order),
            input_types=_one_or_each(options.input_type),
            output_types=_one_or_each(options.output_type),
            objective=options.objective,
            dynamic_shapes=sizes.dynamic_shapes(called, args, kwargs, options.input, known),
            cost_at=dict(options.cost_at) or None,
            progress=progress,
            **more,
        )
    except UnsupportedError:
        models.check_runs(model, args, kwargs)
        raise


def target_of(options: argparse.Namespace) -> Target:
    """Return the target of --target or of the file of -o, with the options of --option."""
    from dimorder import targets

    written = Path(getattr(options, "output", None) or "")
    target = targets.find(options.target or targets.name_for_suffix(written.suffix) or targets.DEFAULT)
    if options.objective is not None:
        targets.require_objective(target.name, target.objectives, options.objective)
    if not options.option:
        return target
    where, fix = f"--option {' '.join(options.option)}", "leave it out, or choose another target"
    if target.with_options is None:
        raise UsageError(where, f"target {target.name} has none", fix)
    names = list(target.info.options)
    given = dict(each.partition("=")[::2] for each in options.option)
    if not set(given) <= set(names) or not all(given.values()):
        found = "no value" if set(given) <= set(names) else "no such option"
        raise UsageError(where, found, f"write NAME=VALUE with one of {', '.join(names)}")
    return target.with_options(**given)


def _one_or_each(given: Sequence[str]) -> Any:
    return (given[0] if len(given) == 1 else list(given)) if given else None


def report_files(
    options: argparse.Namespace, result: Any, progress: Callable[[str], None]
) -> list[tuple[str, bytes]]:
    """Return the page of a plan or a lowered network, if `--report` asks for one."""
    if not options.report:
        return []
    from dimorder.report.plan_page import plan_page

    return [(options.report, plan_page(result, options.model, progress).encode())]
