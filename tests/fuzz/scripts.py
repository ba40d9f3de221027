"""Write a program of its own that shows a fault."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from dimorder.algebra.dim_order import DimOrder
from tests.fuzz.description import STANDS_FOR, Case, given, given_source
from tests.fuzz.outcome import Outcome


def script(case: Case, target: str, outcome: Outcome, seed: int) -> str:
    """A program of its own that shows the fault."""
    inputs, outputs = case.orders()
    lowered_for = STANDS_FOR.get(target, target)
    call = [
        "lowered = dimorder.lower(",
        "    network,",
        "    calls[0],",
        f"    target={lowered_for!r},",
        f"    input_orders={_orders_source(inputs)},",
        f"    output_orders={_orders_source(outputs)},",
        f"    objective={case.objective!r},",
        *(
            f"    {side}_types={dtype!r},"
            for side, dtype in zip(("input", "output"), case.types, strict=True)
            if dtype
        ),
        *([f"    dynamic_shapes={_shapes_source(case)},"] if case.ranges else []),
        ")",
    ]
    by_hand = case.quantizer == "by_hand"
    by_tools = bool(case.quantizer) and not by_hand
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
            *(
                ["from tests.fuzz.integer_operators import dequantised, quantised, requantised, weight"]
                if by_hand
                else []
            ),
            *(["from tests.fuzz.branches import choose"] if "choose(" in case.source else []),
            *([f"from tests.targets.quantised import {case.quantizer}"] if by_tools else []),
            "",
            "",
            inspect.getsource(given),
            "",
            case.source,
            "",
            "",
            f"network = Net().eval().to(torch.{case.dtype})",
            "calls = [",
            *(f"    ({_args_source(each)}),  # call {number}" for number, each in enumerate(case.calls)),
            "]",
            *([f"network = {case.quantizer}(network, *calls[0])"] if by_tools else []),
            *call,
            "print(lowered.plan)",
            "for args in calls:",
            "    for got, wanted in zip(lowered.run(*args), network(*args), strict=True):",
            '        print("error", ((got - wanted).abs().max() / wanted.abs().max()).item())',
            "",
        ]
    )


def _args_source(case: Case) -> str:
    """The arguments of a call, each with a comma after it."""
    typed = f".to(torch.{case.dtype})" if case.dtype != "float32" else ""
    return "".join(
        f"{given_source(each)}{typed if each.tensor.is_floating_point() else ''}, "
        for each in case.inputs.values()
    )


def _shapes_source(case: Case) -> str:
    """The dynamic sizes as torch.export takes them."""
    shapes: dict[str, list[str]] = {name: [] for name in case.inputs}
    for each in case.ranges:
        bounds = f"min={each.least // each.step}, max={each.most // each.step}"
        dim = f"torch.export.Dim({each.dim_name!r}, {bounds})"
        for name, place in each.places:
            shapes[name].append(f"{place}: {dim if each.step == 1 else f'{each.step} * {dim}'}")
    return f"({', '.join('{' + ', '.join(among) + '}' for among in shapes.values())},)"


def _orders_source(orders: Sequence[DimOrder]) -> str:
    return f"[{', '.join(f'DimOrder{tuple(order)}' for order in orders)}]"
