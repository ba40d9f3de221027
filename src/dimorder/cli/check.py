"""Run `dimorder check`, and choose the target that reads a file: by its content, or else by its name."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dimorder import targets
from dimorder.algebra.dim_order import DimOrder
from dimorder.cli import models
from dimorder.cli.answer import DONE, NO, Answer, check_outputs, output_paths
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import (
    INPUT_HELP,
    MODULE_HELP,
    Command,
    CommandParser,
    json_option,
    model_options,
)
from dimorder.errors import ContractError, UnsupportedError, UsageError, installed

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from dimorder.targets.base import FileSummary

EXAMPLES = """\
  dimorder check net.tosa
  dimorder check net.tosa --json > net.json
  dimorder check net.tflite
  dimorder check anybodys.pte
  dimorder check models/*.pte models/*.tflite --max-conversions 2
  dimorder check mypackage.nets:unet --input 1x3x64x96 --input-order NHWC

For ExecuTorch each operator has a verdict on the orders it gets: right, refused, wrong (silently) or unknown.
The exit code is 1 if one is wrong or refused. So a .pt2 is judged as ExecuTorch would run it, not as torch.
The layout conversions in a .pte are counted, with the bytes that they move: transposes inside XNNPACK
delegates, and permutes and copies into another order outside.

The operators of a .tosa file are counted in all regions, without constants. A TRANSPOSE moves the bytes of
its input, or none if it only moves dimensions of size 1.

With --max-conversions, the exit code is also 1 if a file has more conversions: a budget that holds a
repository's files, in CI or as a pre-commit hook."""


def add_options(parser: CommandParser) -> None:
    files = "a .pte, .tflite or .tosa file of any tool, a .pt2 of torch.export"
    model_options(parser, f"{files}, or {MODULE_HELP}", f"{INPUT_HELP}, for a module:name")
    parser.add_argument(
        "--input-order", metavar="ORDER", help="the order of a network's inputs (default contiguous)"
    )
    parser.add_argument("more", nargs="*", metavar="FILE", help="more files")
    parser.add_argument(
        "--max-conversions",
        type=int,
        metavar="N",
        help="the most layout conversions that a file may have; with more, the exit code is 1",
    )
    json_option(parser, "the content of the file, or the verdicts")


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    names, budget = (options.model, *options.more), options.max_conversions
    if budget is not None and budget < 0:
        raise UsageError(f"--max-conversions {budget}", "fewer than none", "give 0 or more")
    found = {name: _check(name, options, progress) for name in names}
    counts = {} if budget is None else {name: _count_conversions(name, one) for name, one in found.items()}
    over = {name: count for name, count in counts.items() if count > budget}
    texts = []
    for name, one in found.items():
        texts += [name, str(one)] if len(found) > 1 else [str(one)]
        texts += [f"budget   {over[name]} conversions, at most {budget} allowed"] if name in over else []
    is_safe = all(getattr(one, "is_safe", True) for one in found.values())
    verdicts = {name: {"within_budget": name not in over} for name in counts}
    data = {name: {**one.to_dict(), **verdicts.get(name, {})} for name, one in found.items()}
    code = DONE if is_safe and not over else NO
    return Answer("\n".join(texts), data if len(data) > 1 else data[names[0]], code=code)


def _check(name: str, options: argparse.Namespace, progress: ProgressLine) -> Any:
    """Return the content of a file, or the verdicts on a network."""
    progress(f"reading {name}")
    is_program, order = name.endswith(".pt2"), options.input_order
    is_file = is_program or ":" not in name or Path(name).exists()
    if is_file and order is not None:
        where = f"--input-order {order}, for {name}"
        raise UsageError(where, "the file has the orders of its inputs", "leave --input-order out")
    if is_file and not is_program:
        for option in ("input", "arg"):
            if getattr(options, option):
                where, found = f"--{option}, for {name}", "a file, which is checked as it is"
                raise UsageError(where, found, f"leave --{option} out")
        return _check_file(name, options)
    from dimorder import executorch

    model = models.load_model(name, dict(options.arg))
    args, kwargs = models.example_inputs(model, options.input)
    progress("exporting")
    return executorch.check_program(_export(model, args, kwargs, order))


def _count_conversions(name: str, found: Any) -> int:
    """Return how many conversions a file has. Raises `UsageError` if that is not known."""
    count: int | None = getattr(found, "conversion_count", None)
    if count is None:
        fix = "give a .pte, .tflite or .tosa file; dimorder plan counts those of a network"
        raise UsageError(f"check {name} --max-conversions", "no count of its conversions", fix)
    return count


def _check_file(path: str, options: argparse.Namespace) -> FileSummary:
    """Return the content of the file.

    Raises:
        UsageError: if it cannot be read.
        ContractError: if it is damaged or of no known kind.
    """
    where = f"check {path}"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            where, str(error.strerror or error), "give the path of a .tflite, .tosa or .pte file"
        ) from error
    name = next((name for name, info in targets.infos() if info.is_file(path, data)), None)
    if name is None:
        kinds = " or ".join(info.kind for _, info in targets.infos() if info.kind)
        raise ContractError(where, f"{len(data)} bytes that do not begin as {kinds} does", f"give {kinds}")
    target = targets.find(name)
    check_outputs(output_paths(options), [path + end for end in target.files.companions])
    assert target.files.check is not None, "find refuses a target that lists a kind of file and checks none"
    try:
        with installed(f"target {name}", target.install):
            return target.files.summarize(path, data)
    except UsageError as error:
        raise ContractError(where, error.found, error.fix) from error


def _export(model: Any, args: Any, kwargs: Any, order: str | None) -> ExportedProgram:
    """Return a network as an exported program; its inputs of the order's rank have that order."""
    import torch
    from torch.utils import _pytree as pytree

    from dimorder.capture.export import export

    if isinstance(model, torch.export.ExportedProgram):
        return model
    given = (tuple(args), dict(kwargs or {}))
    if order is not None:
        orders = _orders_by_rank(order, {x.dim() for x in pytree.tree_leaves(given) if hasattr(x, "dim")})

        def placed(x: torch.Tensor) -> torch.Tensor:
            if x.dim() not in orders:
                return x
            return torch.empty_strided(x.shape, orders[x.dim()].strides(x.shape), dtype=x.dtype).copy_(x)

        given = pytree.tree_map_only(torch.Tensor, placed, given)
    try:
        return export(model, *given)
    except UnsupportedError:
        models.check_runs(model, *given)
        raise


def _orders_by_rank(order: str, ranks: Iterable[int]) -> dict[int, DimOrder]:
    """Return the order for each rank that it fits. Raises `UsageError` if it fits none."""
    orders, errors = dict[int, DimOrder](), list[UsageError]()
    for rank in sorted(ranks):
        try:
            orders[rank] = DimOrder.parse(order, rank)
        except UsageError as error:
            errors.append(error)
    if errors and not orders:
        raise errors[-1]
    return orders


COMMAND = Command(
    "check",
    "say what a .tflite, .tosa or .pte file holds, or what ExecuTorch would get wrong",
    EXAMPLES,
    add_options,
    run,
)
