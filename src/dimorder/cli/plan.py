"""Run `dimorder plan`: plan a network's orders and print the plan, without lowering."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import (
    Command,
    CommandParser,
    json_option,
    network,
    network_options,
    output_path,
    pipeline,
    plan_network,
    report_files,
    report_option,
    target_of,
)
from dimorder.cli.sizes import symbols
from dimorder.errors import UsageError, install_of

if TYPE_CHECKING:
    from dimorder.executorch.file_graph import FileNode
    from dimorder.plans.network_plan import NetworkPlan

_STOCK = "executorch"  # in --compare-with: ExecuTorch's own lowering

EXAMPLES = """\
  dimorder plan torchvision.models:swin_t --input 1x3x224x224
  dimorder plan mypackage.nets:unet --input 1x3x64x96 --output-order NHWC --objective count
  dimorder plan net.pt2 --target xnnpack --compare-with executorch --report both.html
  dimorder plan net.pt2 --dot plan.dot
  dimorder plan net.pt2 --explorer graph.json
  dimorder plan net.pt2 --json > plan.json"""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    json_option(parser, "the plan")
    report_option(parser)
    parser.add_argument(
        "--compare-with",
        metavar="OBJECTIVE|executorch",
        help="another objective, or executorch for what its own lowering inserts: both plans' totals, and in "
        "--report both graphs side by side",
    )
    parser.add_argument(
        "--explorer",
        type=output_path("--explorer", ".json"),
        metavar="FILE",
        help="a graph for Google's Model Explorer (.json): conversions by bytes, orders on operators",
    )
    parser.add_argument(
        "--dot",
        type=output_path("--dot", ".dot"),
        metavar="FILE",
        help="a graph for Graphviz (.dot): operators by order, conversions in red",
    )


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    if options.compare_with:
        return _compare(options, progress)
    found = plan_network(options, progress)
    return Answer(found, found.to_dict(), [*report_files(options, found, progress), *_graphs(options, found)])


def _compare(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    target, other = target_of(options), options.compare_with
    objective = options.objective or target.objectives[0]
    if other not in (*target.costs, _STOCK) or other == objective:
        choices = " or ".join([*(each for each in target.costs if each != objective), _STOCK])
        raise UsageError(
            f"--compare-with {other}", f"nothing to compare {objective} with", f"choose {choices}"
        )
    if other == _STOCK and target.name != "xnnpack":
        raise UsageError(f"--compare-with {other}", f"target {target.name}", "take --target xnnpack")
    if other == _STOCK and symbols(options.input, options.range):
        raise UsageError(f"--compare-with {other}", "dynamic sizes", "give --input numbers alone")
    progress("loading torch")
    from dimorder import api
    from dimorder.report.comparison_page import comparison_page
    from dimorder.report.plan_comparison import compare_plans

    named = network(options, progress)
    plan = pipeline(api.plan, named, options, progress)
    if other == _STOCK:
        sides = {f"dimorder, by {objective}": plan, "ExecuTorch": _stock(named, progress)}
    else:
        changed = argparse.Namespace(**{**vars(options), "objective": other})
        sides = {f"by {objective}": plan, f"by {other}": pipeline(api.plan, named, changed, progress)}
    found = compare_plans(sides, explained=bool(options.report), progress=progress)
    pages = [(options.report, comparison_page(found, options.model).encode())] if options.report else []
    data = {**plan.to_dict(), "compared": found.to_dict()}
    return Answer(f"{plan}\n\n{found}", data, [*pages, *_graphs(options, plan)])


def _stock(named: tuple[Any, Any, Any], progress: ProgressLine) -> list[FileNode]:
    """Return the operators of the file that ExecuTorch's own lowering makes of a network."""
    from dimorder.capture.export import export
    from dimorder.errors import installed
    from dimorder.pipeline.source import read_source

    with installed("ExecuTorch's own lowering", install_of("executorch")):
        from dimorder.executorch.stock_graph import stock_graph

        progress("lowering with ExecuTorch")
        source = read_source(*named, dynamic_shapes=None)
        return stock_graph(export(source.model, source.args, source.kwargs))


def _graphs(options: argparse.Namespace, plan: NetworkPlan) -> Iterator[tuple[str, bytes]]:
    if options.dot:
        from dimorder.report.dot import plan_dot

        yield options.dot, plan_dot(plan).encode()
    if options.explorer:
        from dimorder.explorer.graphs import collection, plan_graph

        yield options.explorer, json.dumps(collection([plan_graph(plan)], options.model), indent=1).encode()


COMMAND = Command(
    "plan", "plan a network's orders and print the plan; nothing is lowered", EXAMPLES, add_options, run
)
