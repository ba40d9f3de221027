"""Choose one order per buffer: the problem, the plan with its certificate, and the solvers.

The pipeline calls `solve`; it is measured against `exhaustive` and `greedy`. No torch here.
"""

from dimorder.planning.exhaustive import exhaustive
from dimorder.planning.greedy import greedy
from dimorder.planning.plan import (
    Branch,
    Certificate,
    Elimination,
    InvalidProof,
    LayoutPlan,
    Price,
    Prices,
    make_plan,
)
from dimorder.planning.problem import (
    Buffer,
    Config,
    Conversion,
    Cost,
    Evaluation,
    InvalidChoice,
    LayoutProblem,
    Order,
    Step,
    evaluate,
)
from dimorder.planning.solve import forbid, solve, solve_without

__all__ = [
    "Branch",
    "Buffer",
    "Certificate",
    "Config",
    "Conversion",
    "Cost",
    "Elimination",
    "Evaluation",
    "InvalidChoice",
    "InvalidProof",
    "LayoutPlan",
    "LayoutProblem",
    "Order",
    "Price",
    "Prices",
    "Step",
    "evaluate",
    "exhaustive",
    "forbid",
    "greedy",
    "make_plan",
    "solve",
    "solve_without",
]
