"""Decides how a fault is shown: as a program of its own."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from dimorder.algebra.dim_order import DimOrder
from tests.fuzz.description import Case, given, given_source
from tests.fuzz.examining import Outcome


def script(case: Case, target: str, outcome: Outcome, seed: int) -> str:
    """A program of its own that shows the fault."""
    inputs, outputs = case.orders()
    args = "".join(f"{given_source(each)}, " for each in case.inputs.values())
    call = [
        "lowered = dimorder.lower(",
        "    network,",
        "    args,",
        f"    target={target!r},",
        f"    input_orders={_orders_source(inputs)},",
        f"    output_orders={_orders_source(outputs)},",
        f"    objective={case.objective!r},",
        ")",
    ]
    hooked = bool(case.refused) or target == "physical"
    if hooked:
        call[3] = f"    target=refusing({target!r}, {case.refused!r}),"
    first = "\n".join(f"# {line}" for line in outcome.detail.strip().splitlines()[-12:])
    return "\n".join(
        [
            f"# {outcome.kind} (target {target}, seed {seed})",
            first,
            "import math",
            "from collections.abc import Sequence",
            "",
            "import torch",
            "from torch import Tensor",
            "from torch.nn import functional as F",
            "",
            "import dimorder",
            "from dimorder import DimOrder",
            *(["from tests.fuzz import refusing"] if hooked else []),
            "",
            "",
            inspect.getsource(given),
            "",
            case.source,
            "",
            "",
            f"network, args = Net().eval(), ({args})",
            *call,
            "print(lowered.plan)",
            "for got, wanted in zip(lowered.run(*args), network(*args), strict=True):",
            '    print("error", ((got - wanted).abs().max() / wanted.abs().max()).item())',
            "",
        ]
    )


def _orders_source(orders: Sequence[DimOrder]) -> str:
    return f"[{', '.join(f'DimOrder{tuple(order)}' for order in orders)}]"
