"""Sees where a model changes the order of its values, and what each operator of this torch does to orders."""

from dimorder.inspection.findings import COSTLY, VERDICTS, Finding, Verdict, judge
from dimorder.inspection.inspection import ORDERS, Inspection, Place, inspect
from dimorder.inspection.trace import Call, Copy, Value, watching

__all__ = [
    "COSTLY",
    "ORDERS",
    "VERDICTS",
    "Call",
    "Copy",
    "Finding",
    "Inspection",
    "Place",
    "Value",
    "Verdict",
    "inspect",
    "judge",
    "watching",
]
