"""Sees where a model changes the order of its values, and what each operator of this torch does to orders."""

from dimorder.inspection.compare import Comparison, Ratio, compare
from dimorder.inspection.expect import OrderError, expect_channels_last
from dimorder.inspection.findings import COSTLY, VERDICTS, Finding, Verdict, judge
from dimorder.inspection.inspection import ORDERS, Inspection, Place, inspect
from dimorder.inspection.probe import Cell, Change, OperatorTable, operators
from dimorder.inspection.trace import Call, Copy, Value, watching

__all__ = [
    "COSTLY",
    "ORDERS",
    "VERDICTS",
    "Call",
    "Cell",
    "Change",
    "Comparison",
    "Copy",
    "Finding",
    "Inspection",
    "OperatorTable",
    "OrderError",
    "Place",
    "Ratio",
    "Value",
    "Verdict",
    "compare",
    "expect_channels_last",
    "inspect",
    "judge",
    "operators",
    "watching",
]
