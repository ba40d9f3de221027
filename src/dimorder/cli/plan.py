"""Run `dimorder plan`: plan a network's orders and print the plan, without lowering."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dimorder.cli.answer import Answer
from dimorder.cli.console import ProgressLine
from dimorder.cli.options import (
    Command,
    CommandParser,
    json_option,
    network_options,
    plan_network,
    report_files,
    report_option,
)

if TYPE_CHECKING:
    from dimorder.plans.network_plan import NetworkPlan

EXAMPLES = """\
  dimorder plan torchvision.models:swin_t --input 1x3x224x224
  dimorder plan mypackage.nets:unet --input 1x3x64x96 --output-order NHWC --objective count
  dimorder plan net.pt2 --dot plan.dot
  dimorder plan net.pt2 --explorer graph.json
  dimorder plan net.pt2 --json > plan.json"""


def add_options(parser: CommandParser) -> None:
    network_options(parser)
    json_option(parser, "the plan")
    report_option(parser)
    parser.add_argument(
        "--explorer",
        metavar="FILE",
        help="a graph for Google's Model Explorer (.json): conversions by bytes, orders on operators",
    )
    parser.add_argument(
        "--dot", metavar="FILE", help="a graph for Graphviz (.dot): operators by order, conversions in red"
    )


def run(options: argparse.Namespace, progress: ProgressLine) -> Answer:
    found = plan_network(options, progress)
    return Answer(found, found.to_dict(), [*report_files(options, found, progress), *_graphs(options, found)])


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
