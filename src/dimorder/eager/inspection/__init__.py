"""Find where a model changes the order of its values, and what each operator of this torch does to orders."""

from dimorder.eager.inspection.compare import Comparison, Ratio, compare
from dimorder.eager.inspection.expect import OrderError, expect_channels_last
from dimorder.eager.inspection.findings import COSTLY, VERDICTS, Finding, FindingVerdict, judge
from dimorder.eager.inspection.inspection import ORDERS, FindingGroup, Inspection, inspect
from dimorder.eager.inspection.probe import Cell, Change, OperatorTable, operators
from dimorder.eager.inspection.trace import watching
from dimorder.eager.inspection.traced import Copy, TracedCall, TracedValue

__all__ = [
    "COSTLY",
    "ORDERS",
    "VERDICTS",
    "Cell",
    "Change",
    "Comparison",
    "Copy",
    "Finding",
    "FindingGroup",
    "FindingVerdict",
    "Inspection",
    "OperatorTable",
    "OrderError",
    "Ratio",
    "TracedCall",
    "TracedValue",
    "compare",
    "expect_channels_last",
    "inspect",
    "judge",
    "operators",
    "watching",
]
