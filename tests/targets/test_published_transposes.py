"""ExecuTorch's tests say for these networks how many TRANSPOSEs its own lowering leaves. Target `tosa` leaves
at most as many, and no plan has fewer. Arm's reference model runs each graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.marks import slow_but

pytest.importorskip("tosa_serializer")
pytest.importorskip("executorch")
pytest.importorskip("torchao")

from executorch.backends.arm.quantizer import TOSAQuantizer, get_symmetric_quantization_config
from executorch.backends.arm.test.misc import test_high_rank_permute_view_invariants as high_rank
from executorch.backends.arm.test.misc import test_transpose_counts as counts
from executorch.backends.arm.test.tester.quantize import ArmQuantize
from executorch.backends.arm.tosa import TosaSpecification

import dimorder
from dimorder.lowered import Lowered
from dimorder.targets.tosa.graph import inspect_tosa

# The cases of the three published tests. Of the last kind only the counts for floats are published.
FLOATS: Mapping[str, Any] = counts.cases | counts.cases_int
CHANNELS_LAST: Mapping[str, Any] = counts.cases_channels_last
INTEGERS: Mapping[str, Any] = counts.cases_int | high_rank._build_high_rank_permute_cases()
UNPUBLISHED_INTEGERS: Mapping[str, Any] = counts.cases
# ExecuTorch's test of it fails before it counts, since eager refuses this view of a channels-last tensor.
# Here the order is the contract's alone, so the network can be lowered. Row-major it has 2.
UNCOUNTED = "views_channels_last"
# What is left where that is fewer than published; elsewhere it is as many. docs/compare.md has the totals.
FEWER: Mapping[str, int] = {
    UNCOUNTED: 1,
    "lstm": 0,
    "multihead_attention_rank2": 3,
    "multihead_attention_rank3": 3,
    "model_2_conv_mha_linear_layernorm": 4,
    "model_3_lstm_linear": 0,
    "model_4_conv_lstm_linear_layernorm": 1,
    "model_6_gru_linear": 0,
    "transposes_channels_last": 0,
    "maxpool2d_dilation_channels_last": 0,
    "groupnorm_channels_last": 0,
}
PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()

SLOW_FLOATS = {f"model_{name}" for name in ("2_conv_mha_linear_layernorm", "4_conv_lstm_linear_layernorm")}
QUICK_INTEGERS = ("permute_silu_permute", "high_rank_permute_fuzz_case_1", "high_rank_permute_fuzz_case_3")
QUICK_UNPUBLISHED = ("index_put", "index_select", "maxpool2d_dilation", "cumsum_rank4_dim3")


def tensors(values: Any) -> list[Tensor]:
    return [value for value in pytree.tree_leaves(values) if isinstance(value, Tensor)]


def lowered(module: torch.nn.Module, inputs: tuple[Any, ...], **orders: Any) -> Lowered:
    return dimorder.lower(module, inputs, target="tosa", objective="count", run_artifact=True, **orders)


def require_no_more(made: Lowered, name: str, published: int) -> None:
    """Require at most as many TRANSPOSEs as are published, and the proof that no plan has fewer."""
    left, told = inspect_tosa(made.artifact.data).transposes, made.to_dict()
    assert left <= published and left == FEWER.get(name, published)
    assert left == told["conversion_count"] == told["cost"] == told["lower_bound"]
    assert told["optimal"] and made.plan.certificate.candidates == "complete" and made.plan.check() == ()
    assert made.verified.artifact_ran


def by_arm(case: Any) -> torch.nn.Module:
    """The network as ExecuTorch's test quantises it."""
    quantizer = TOSAQuantizer(TosaSpecification.create_from_string("TOSA-1.0+INT"))
    stage = ArmQuantize(quantizer, get_symmetric_quantization_config(is_per_channel=True))
    stage.run(case.module.eval(), case.inputs)
    quantised: torch.nn.Module = stage.converted_graph
    return quantised


def test_the_cases_are_those_of_the_release() -> None:
    kinds = (FLOATS, CHANNELS_LAST, INTEGERS, UNPUBLISHED_INTEGERS)
    assert [len(kind) for kind in kinds] == [36, 13, 11, 35]
    uncounted = {name for kind in kinds for name, case in kind.items() if case.expected_transposes < 0}
    assert uncounted == {UNCOUNTED} == {name for name, why in counts.xfails.items() if "View" in why}


def test_the_page_has_the_totals() -> None:
    kinds = {"float32": FLOATS, "float32, inputs in channels-last": CHANNELS_LAST, "int8": INTEGERS}
    for kind, cases in kinds.items():
        published = {name: case.expected_transposes for name, case in cases.items() if name != UNCOUNTED}
        assert all(FEWER[name] < published[name] for name in FEWER.keys() & published)
        left = sum(FEWER.get(name, count) for name, count in published.items())
        assert f"| {kind} | {len(published)} | {sum(published.values())} | {left} |" in PAGE


@pytest.mark.parametrize("name", slow_but(FLOATS, FLOATS.keys() - SLOW_FLOATS))
def test_floats(name: str) -> None:
    case = FLOATS[name]
    require_no_more(lowered(case.module.eval(), case.inputs), name, case.expected_transposes)


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_floats_channels_last(name: str) -> None:
    """Inputs in their own orders, outputs in those in which PyTorch returns them."""
    case = CHANNELS_LAST[name]
    given = {"input_orders": [dimorder.DimOrder(*x.dim_order()) for x in tensors(case.inputs)]}
    contiguous = pytree.tree_map_only(Tensor, Tensor.contiguous, case.inputs)
    if name == UNCOUNTED:
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            case.module(*case.inputs)
        row_major = FLOATS["views"].expected_transposes
        require_no_more(lowered(case.module.eval(), contiguous, **given), name, row_major)
        return
    given["output_orders"] = [dimorder.DimOrder(*y.dim_order()) for y in tensors(case.module(*case.inputs))]
    require_no_more(lowered(case.module.eval(), contiguous, **given), name, case.expected_transposes)


@pytest.mark.parametrize("name", slow_but(INTEGERS, QUICK_INTEGERS))
def test_integers(name: str) -> None:
    case = INTEGERS[name]
    require_no_more(lowered(by_arm(case), case.inputs), name, case.expected_transposes)


@pytest.mark.parametrize("name", slow_but(UNPUBLISHED_INTEGERS, QUICK_UNPUBLISHED))
def test_integers_leave_no_more_than_the_published_floats(name: str) -> None:
    case = UNPUBLISHED_INTEGERS[name]
    require_no_more(lowered(by_arm(case), case.inputs), name, case.expected_transposes)
