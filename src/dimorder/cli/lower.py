"""Run `dimorder lower`: lower a network to a program with a proven plan and a contract."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dimorder.cli import sizes
from dimorder.cli.answer import Answer, check_outputs, input_paths, output_paths
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import (
    Command,
    CommandParser,
    json_option,
    network,
    network_options,
    pipeline,
    report_files,
    report_option,
    target_of,
)
from dimorder.errors import UsageError
from dimorder.text import counted

if TYPE_CHECKING:
    from dimorder.lowered import Lowered
    from dimorder.quantization.fidelity import OutputFidelity

EXAMPLES = """\
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 -o resnet18.pte
  dimorder lower net.pt2 -o net.pte --input-order NHWC --report net.html
  dimorder lower net.pt2 --target tosa -o net.tosa
  dimorder lower mymodels:unet --input 1x3xHxW --range H=64..128:32 --range W=64..128:32 -o unet.tosa
  dimorder lower mymodels:unet --input Nx3xHxW --range H=64..256:32 --range W=64..256:32 -o unet.pte
  dimorder lower net.pt2 -o net.pte --quantize int8 --calibrate photos/ --mean 0.5 --std 0.5
  dimorder lower quantised.pt2 -o net.pte --input-type uint8 --input-order NHWC
  dimorder lower torchvision.models:resnet18 --input 1x3x224x224 --print physical
  dimorder lower mymodels:Ranker --arg width=64 --input ids=1x128:int64 -o ranker.pte --json ranker.json

Target tosa writes a second file, net.tosa.json: the contract, which is needed to run the first.
Graphs for tosa and ethos-u have fixed sizes: ranges give one file for each, such as unet-64x96.tosa.
The keys of --json are stable: docs/json.md.
MODEL's callable is called with torch's seed at 0, and its network is put in eval mode."""


def add_options(parser: CommandParser) -> None:
    network_options(parser, writes=True)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the program, with its target's suffix (below)",
    )
    parser.add_argument(
        "--run",
        action=argparse.BooleanOptionalAction,
        help="run the emitted program and compare it with the network (the default, but for large networks "
        "on tosa)",
    )
    parser.add_argument(
        "--print",
        choices=("captured", "plan", "physical"),
        help="print only the network's normal form, the plan, or the physical program",
    )
    json_option(parser, "the plan, and the result of lowering")
    report_option(parser)


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    written = output_paths(options)
    progress("loading torch")
    from dimorder import api

    target = target_of(options)
    if not any((*written.values(), options.print)):
        fix = "give -o FILE, --json FILE, --report FILE or --print physical"
        raise UsageError("dimorder lower", "nothing to write", fix)
    if options.output and not options.target:
        _require_suffix(options.output)
    fixed = target.dynamic is None
    known = sizes.symbols(options.input, options.range)
    by_size = fixed and bool(known)
    if options.output:
        target.check_name(Path(options.output))
        outputs = {"-o": options.output}
        if by_size:
            named = (_sized(options.output, point) for point in sizes.points(known))
            outputs = {f"-o of size {size}": file for size, file in named}
        for option, file in list(outputs.items()):
            outputs |= {f"{end} of {option}": file + end for end in target.files.companions}
        check_outputs({**written, "-o": None, **outputs}, input_paths(options))
    if by_size:
        _require_no_page(options, target.name)
    model, args, kwargs = network(options, progress)
    if by_size or (fixed and getattr(model, "range_constraints", None)):
        _require_no_page(options, target.name)
        return _answer_by_size((model, args, kwargs), options, progress)
    lowered = pipeline(api.lower, (model, args, kwargs), options, progress, run_artifact=options.run)
    data, fidelity = lowered.to_dict(), ()
    if options.quantize:
        progress("comparing with the float network")
        fidelity = model.compare(lowered)
        data["fidelity"] = [each.to_dict() for each in fidelity]
    files: list[tuple[Any, ...]] = []
    if options.output:
        files.append((options.output, lowered.artifact.data, lowered.artifact.companions))
    files += report_files(options, lowered, progress)
    if options.print:
        return Answer(lowered.text(options.print), data, files)
    return Answer("\n".join(_lines(lowered, fidelity, options.output)), data, files)


def _require_suffix(output: str) -> None:
    """Raise `UsageError` for a file from whose name no target follows."""
    from dimorder import targets

    if targets.name_for_suffix(Path(output).suffix) is None:
        known = {info.suffix: name for name, info in reversed([*targets.infos()]) if not info.member}
        names = ", ".join(f"{suffix} ({name})" for suffix, name in reversed(known.items()))
        name = Path(output).stem.lstrip(".")
        stem = "net" if f".{name}" in known else name  # `.pte` is a name without a suffix
        fix = f"name it {stem} with one of {names}, or give --target"
        raise UsageError(f"-o {output}", "a suffix that no target writes", fix)


def _require_no_page(options: argparse.Namespace, target: str) -> None:
    """Refuse options that are of one program, where a target needs one graph for each size."""
    if options.report or options.print or options.quantize:
        found = f"several graphs: those of target {target} have fixed sizes"
        raise UsageError("dimorder lower", found, "give -o and --json alone, or fix the sizes")


def _answer_by_size(
    named: tuple[Any, Any, Any], options: argparse.Namespace, progress: ProgressLine
) -> Answer:
    """Lower a network to one file for each size of its ranges, for a target whose graphs have fixed sizes."""
    from dimorder import api

    lines, files, data = [], [], {}
    found = pipeline(api.lower_sizes, named, options, progress, run_artifact=options.run)
    for size, lowered in found.items():
        name, file = _sized(options.output or "", size)
        data[name] = lowered.to_dict()
        lines.append(f"{name:13}{_cost_line(lowered)}{file and f', {file}'}")
        if file:
            files.append((file, lowered.artifact.data, lowered.artifact.companions))
    return Answer("\n".join(lines), data, files)


def _sized(output: str, point: Sequence[int]) -> tuple[str, str]:
    """Return the name of some sizes, and the file of the graph of these sizes; both follow from -o.

    >>> _sized("net.tosa", (64, 96))
    ('64x96', 'net-64x96.tosa')
    """
    name, path = "x".join(map(str, point)), Path(output)
    return name, str(path.with_stem(f"{path.stem}-{name}")) if output else ""


def _cost_line(lowered: Lowered) -> str:
    """Return one line about a lowered network of several: its cost, the proof, its error."""
    plan = lowered.plan
    cost = ", ".join(map(counted, plan.cost, plan.units))
    bound = counted(plan.certificate.lower_bound, plan.units[0])
    proof = "optimal" if plan.certificate.optimal else f"no plan costs less than {bound}"
    return f"{cost} ({proof}), {lowered.verified.max_rel_error:.1e} relative error"


def _lines(lowered: Lowered, fidelity: Sequence[OutputFidelity], output: str | None) -> Iterator[str]:
    """Yield what is printed of a lowered network, which may be written to a file `output`."""
    verified, artifact = lowered.verified, lowered.artifact
    yield str(lowered.plan)
    what = "program and file" if verified.artifact_ran else "the physical program, before it was emitted"
    if verified.stand_in:
        what = f"program and {verified.stand_in}; the file runs only on a device"
    yield f"verified     {verified.max_rel_error:.1e} relative error on random inputs: {what}"
    if verified.eager_error is not None:
        yield f"             where PyTorch's own is {verified.eager_error:.1e} from float64"
    if not verified.input_matters:
        yield "             which shows little: other inputs give the same outputs; are the weights real?"
    for title, each in zip(("fidelity", *[""] * len(fidelity)), fidelity, strict=False):
        yield f"{title:13}{each}"
    wasted = sorted((each for each in lowered.wasted if each.wasted), key=lambda each: -each.wasted)
    if wasted:
        worst = wasted[0]
        yield (
            f"levels       {len(wasted)} values hold integers that a clamp takes away, {worst.value} most: "
            f"{worst.wasted} of {worst.levels}; quantise with dimorder.quantize, which observes behind clamps"
        )
    outside = ", ".join(f"{count} {name}" for name, count in artifact.outside.items())
    if artifact.delegates or outside:  # torch and inductor have none
        yield f"delegates    {artifact.delegates}, outside of them: {outside or 'nothing'}"
    yield f"constants    {lowered.constant_bytes_added:,} bytes added"
    if artifact.npu is not None:
        yield str(artifact.npu)
    if output:
        seconds = sum(lowered.seconds.values())
        more = "".join(f", with {output}{end}" for end in artifact.companions)
        yield f"written      {output}, {len(artifact.data):,} bytes, in {seconds:.1f} s{more}"


COMMAND = Command(
    "lower", "lower a network to a program with a proven plan and a contract", EXAMPLES, add_options, run
)
