"""Test that the plan prices the boundaries of what XNNPACK lacks, and explains them by what is lacking."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dimorder

pytest.importorskip("executorch")

from dimorder.executorch import conversions_in


class Sorted(nn.Module):
    """Two convolutions, and between them the channels in another order for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.topk(self.before(x), 4, dim=1).values)


@pytest.fixture(scope="module")
def lowered() -> dimorder.Lowered:
    torch.manual_seed(0)
    return dimorder.lower(
        Sorted().eval(),
        (torch.randn(2, 3, 9, 7),),
        target="xnnpack",
        input_orders="NHWC",
        output_orders="NHWC",
    )


def test_every_copy_at_the_boundary_is_a_conversion_of_the_plan(lowered: dimorder.Lowered) -> None:
    to_it, from_it = lowered.plan.conversions
    assert (to_it.bytes, from_it.bytes) == (4 * 2 * 8 * 9 * 7, 4 * 2 * 4 * 9 * 7)
    assert lowered.plan.cost == (to_it.bytes + from_it.bytes, 2) and lowered.plan.certificate.optimal
    held = conversions_in(lowered.artifact.data)
    assert (held.conversion_count, held.bytes) == (2, to_it.bytes + from_it.bytes)


@pytest.mark.parametrize("number", [0, 1])
def test_a_conversion_is_explained_by_the_operator_that_xnnpack_lacks(
    lowered: dimorder.Lowered, number: int
) -> None:
    advice = lowered.plan.explain(number).advice
    assert advice.startswith("aten.topk (test_explained_boundaries.py:")
    assert advice.endswith("runs row-major, outside: XNNPACK has no aten.topk.default")


def test_the_plan_and_its_json_name_what_runs_outside(lowered: dimorder.Lowered) -> None:
    (call,) = lowered.to_dict()["outside_calls"]
    assert call["operator"] == "aten.topk" and call["reason"] == "XNNPACK has no aten.topk.default"
    text = str(lowered.plan)
    assert "outside of what xnnpack computes\n  aten.topk" in text and text.count("aten.topk (") == 3
    assert ", in row-major: XNNPACK has no aten.topk.default" in text and "having no rule" not in text


@pytest.mark.parametrize("dtype", [torch.float64])
def test_a_network_of_another_type_runs_row_major_beside_the_delegates(dtype: torch.dtype) -> None:
    """No permute round any of its convolutions, and the way out is said."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.MaxPool2d(2)).eval().to(dtype)
    lowered = dimorder.lower(net, (torch.randn(2, 3, 9, 7).to(dtype),), target="xnnpack")
    assert (lowered.artifact.delegates, len(lowered.plan.conversions)) == (0, 0)
    assert not [name for name in lowered.artifact.outside if "permute" in name]
    reasons = {call["reason"] for call in lowered.to_dict()["outside_calls"]}
    assert reasons == {f"{dtype} where this target computes in torch.float32; convert with .float()"}


def test_a_negative_padding_runs_beside_the_delegate() -> None:
    """ExecuTorch's portable kernel of constant_pad_nd takes no negative one."""

    class Padded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.pad(x, (2, -1, -1, 0), value=7)

    x = torch.arange(30).view(2, 3, 5)
    lowered = dimorder.lower(Padded(), (x,), target="xnnpack")
    assert torch.equal(lowered.run(x), Padded()(x))
