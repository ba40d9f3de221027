"""Test that the findings are right: on networks against the oracle, and on faults planted one by one."""

from __future__ import annotations

import json
from collections import Counter

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dimorder
from dimorder.eager.channels_last import to_channels_last
from dimorder.eager.inspection.findings import COSTLY
from dimorder.eager.inspection.inspection import in_order, inspect
from dimorder.eager.inspection.trace import COPIES, record_calls
from dimorder.eager.inspection.traced import TracedValue
from dimorder.errors import UsageError
from tests.eager.inspection import oracle
from tests.eager.inspection.networks import NETWORKS, build
from tests.eager.networks import KNOWS_EACH_CALL
from tests.marks import slow_but

FAST = ("resnet18", "shufflenet_v2_x1_0", "convnext_tiny")
SPARING = ("resnet18", "densenet121", "efficientnet_b0", "convnext_tiny", "swin_t")


@pytest.mark.parametrize("name", slow_but(NETWORKS, FAST))
def test_the_findings_are_the_oracles(name):
    model, x = build(name)
    found = inspect(model, x)
    with in_order(model, ((x,), {}), "channels_last") as (args, _):
        judged = oracle.outcomes(model, args)
        copied = oracle.copies_inside(model, args, set(judged.operators))
    assert [call.operator for call in found.calls] == judged.operators
    changed = {"lost", "mixed operands", "free view", "ambiguous"}
    assert sorted((f.verdict, f.operator, f.shape) for f in found.findings if f.verdict in changed) == sorted(
        place for place in judged.found if place[0] in changed
    )
    # What else was moved is a hidden copy: the operator's own, or seen inside of it.
    moved = {(operator, shape) for verdict, operator, shape in judged.found if verdict == "moved"}
    hidden = found.of("hidden copy")
    assert {operator for operator, _ in moved} <= {f.operator for f in hidden}
    inside = Counter()
    for call in found.calls:
        inside[call.operator] += sum(len(copy.after.shape) > 2 for copy in call.copies)
    expected = {operator: n for operator, n in copied.items() if operator not in COPIES}
    assert {operator: n for operator, n in inside.items() if n} == expected
    if name == "shufflenet_v2_x1_0":
        assert [f.operator for f in found.of("mixed operands")] == ["aten.cat"] * 13
    if name in SPARING:
        assert not found.of("lost") and not found.of("mixed operands")


class Faulty(nn.Module):
    """Two convolutions and something between them."""

    def __init__(self, between, channels=4):
        super().__init__()
        self.first = nn.Conv2d(channels, 6, 3)
        self.between = between
        self.second = nn.Conv2d(6, 2, 1)

    def forward(self, x):
        return self.second(self.between(self.first(x)))


class Drop(torch.autograd.Function):
    """Copies through numpy, where torch does not see it."""

    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(numpy.ascontiguousarray(x.numpy()))

    @staticmethod
    def backward(ctx, grad):
        return grad


def mixed_cat(x):
    return torch.cat([x[:, :3], torch.ones(2, 3, 5, 7)], 1)


def mixed_add(x):
    return torch.arange(2.0 * 6 * 5 * 7).view(2, 6, 5, 7) + x


PLANTED = {
    # name: (what stands between the convolutions, verdict, operator, function, before, after)
    "contiguous": (
        lambda x: x.contiguous(),
        *("lost", "aten.clone", "contiguous", "NHWC", "NCHW"),
    ),
    "cat": (mixed_cat, "mixed operands", "aten.cat", "cat", "NHWC with gaps and NCHW", "NCHW"),
    "add": (mixed_add, "mixed operands", "aten.add", "+", "NCHW and NHWC", "NCHW"),
    "softmax": (nn.Softmax(1), "lost", "aten._softmax", "softmax", "NHWC", "NCHW"),
    "instance norm": (nn.InstanceNorm2d(6), "lost", "aten.clone", "instance_norm", "NHWC", "NCHW"),
    "custom function": (Drop.apply, "lost", "outside", "code that is not torch's", "NHWC", "NCHW"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_named(name):
    between, verdict, operator, function, before, after = PLANTED[name]
    found = inspect(Faulty(between), torch.randn(2, 4, 7, 9))
    costly = [f for f in found.findings if f.verdict in COSTLY]
    fault = costly[0]
    assert (fault.verdict, fault.operator) == (verdict, operator)
    assert fault.function == function or not (fault.function or KNOWS_EACH_CALL)
    assert (fault.before, fault.after) == (before, after)
    assert "test_findings.py:" in fault.source
    assert fault.bytes > 0 and fault.what_to_do in str(found)
    # What remains is its consequence: copies inside it, and the second convolution's, of its row-major input.
    assert {(f.verdict, f.operator) for f in costly[1:]} <= {
        ("hidden copy", operator),
        ("hidden copy", "aten.convolution"),
    }
    assert ("hidden copy", "aten.convolution") in {(f.verdict, f.operator) for f in costly}


def test_what_follows_the_advice_keeps_the_order():
    softmax = inspect(
        Faulty(lambda x: x.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2)), torch.randn(2, 4, 7, 9)
    )
    norm = inspect(Faulty(lambda x: F.group_norm(x, x.shape[1])), torch.randn(2, 4, 7, 9))
    assert softmax.keeps and len(softmax.of("free view")) == 2
    assert norm.keeps and not norm.findings
    x = torch.randn(2, 6, 5, 7)
    torch.testing.assert_close(F.group_norm(x, 6), F.instance_norm(x))


def test_conv1d_copies_inside():
    """Without dimorder's rewrite, torch's Conv1d copies a channels-last input into (N, C, L)."""
    conv = nn.Conv1d(4, 6, 3)
    found = inspect(conv, to_channels_last(torch.randn(2, 4, 9)), order=None)
    (lost,), (copy,) = found.of("lost"), found.of("hidden copy")
    assert (copy.operator, copy.before, copy.after) == ("aten.convolution", "NLC", "NCL")
    assert copy.function == ("conv1d" if KNOWS_EACH_CALL else "")
    assert copy.bytes == 2 * 4 * 9 * 4 and lost.call == copy.call
    assert inspect(conv, torch.randn(2, 4, 9)).keeps


def test_one_channel_is_ambiguous_and_no_loss():
    found = inspect(Faulty(nn.ReLU(), channels=1), torch.randn(2, 1, 7, 9))
    (finding,) = found.findings
    assert (finding.verdict, finding.operator, finding.module) == ("ambiguous", "aten.convolution", "first")
    assert (finding.before, finding.after) == ("NCHW or NHWC", "NHWC")
    assert found.keeps and found.moved_bytes == 0


def test_a_channels_last_weight_flips_a_row_major_network():
    model = Faulty(nn.ReLU())
    to_channels_last(model.second)
    found = inspect(model, torch.randn(2, 4, 7, 9), order=None)
    (copy,) = found.findings
    assert (copy.verdict, copy.module, copy.before, copy.after) == ("hidden copy", "second", "NCHW", "NHWC")
    assert inspect(model, torch.randn(2, 4, 7, 9), order="contiguous").keeps


def test_the_model_is_left_as_it_was():
    model = Faulty(nn.BatchNorm2d(6)).train()
    model.between.eval()
    before = {key: (value.clone(), value.stride()) for key, value in model.state_dict().items()}
    inspect(model, torch.randn(2, 4, 7, 9))
    assert model.training and not model.between.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key][0]) and value.stride() == before[key][1]
    assert not model._forward_hooks and not model._forward_pre_hooks
    with pytest.raises(RuntimeError):
        inspect(model, torch.randn(2, 3, 7, 9))
    assert model.training and model.first.weight.is_contiguous() and not model._forward_hooks


def test_values_are_those_of_an_unwatched_run():
    model, x = build("shufflenet_v2_x1_0")
    with torch.no_grad():
        expected = model(x)
        with record_calls(model, x):
            torch.testing.assert_close(model(x), expected)


def test_a_copy_is_seen_also_after_calls_of_the_same_sizes_that_copied_nothing():
    """Test that a call that copied nothing inside is looked into again if its strides are others."""
    x = torch.randn(2, 6, 5, 7)
    last = to_channels_last(x)
    weight = to_channels_last(torch.randn(4, 6, 3, 3))
    with torch.no_grad(), record_calls(nn.Identity(), x) as calls:
        for value in (last, x, x, last, x):
            F.conv2d(value, weight)
    assert [bool(call.copies) for call in calls] == [False, True, True, False, True]


def test_gaps_and_overlaps():
    sliced = TracedValue((2, 3, 5, 7), (210, 1, 42, 6), 840, 0, 0)
    assert (sliced.kind, sliced.is_dense, sliced.order_name) == ("channels-last", False, "NHWC with gaps")
    expanded = TracedValue((2, 3, 5, 7), (35, 0, 7, 1), 840, 0, 0)
    assert (expanded.kind, expanded.order) == ("overlapping", None)
    assert TracedValue((1, 3, 1, 5), (15, 5, 5, 1), 60, 0, 0).kind == "row-major"


def test_the_printout_groups_what_repeats():
    model = nn.Sequential(*(Faulty(nn.Softmax(1), channels=c) for c in (4, 2, 2)))
    found = inspect(model, torch.randn(2, 4, 7, 9))
    assert len(found.of("lost")) == 3
    assert "lost ×3  aten._softmax by softmax (test_findings.py" in str(found)
    assert "0.between, 1.between, 2.between" in str(found)
    assert "\x1b[31mlost\x1b[0m" in found.text(colour=True) and "\x1b[" not in str(found)


def test_json_holds_every_finding():
    found = inspect(Faulty(nn.Softmax(1)), torch.randn(2, 4, 7, 9))
    data = json.loads(json.dumps(found.to_dict()))
    assert data["counts"]["lost"] == 1 and data["model"] == "Faulty" and data["inputs"] == [[2, 4, 7, 9]]
    assert len(data["findings"]) == len(found.findings)
    assert data["findings"][0]["module"] == "between" and data["findings"][0]["shape"] == [2, 6, 5, 7]


def test_an_order_that_is_none_is_refused():
    with pytest.raises(UsageError, match="channels_last or contiguous"):
        dimorder.inspect(nn.ReLU(), torch.zeros(2, 3), order="NHWC")
