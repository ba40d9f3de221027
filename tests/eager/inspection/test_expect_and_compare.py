"""Test how a failed expectation reads, and what a comparison holds; no time is asserted."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from torch import nn

import dimorder
from dimorder.eager.inspection.compare import Comparison, Ratio, compare
from dimorder.eager.inspection.inspection import OrderError
from dimorder.errors import UsageError
from dimorder.report.inspection_page import inspection_page
from tests.eager.networks import KNOWS_EACH_CALL


def _lossy():
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.Softmax(1), nn.Conv2d(6, 2, 1))


X = torch.randn(2, 4, 7, 9)


def test_a_model_that_keeps_its_order_passes():
    assert dimorder.expect_channels_last(nn.Conv2d(4, 6, 3), X).keeps


def test_a_failure_names_the_places():
    with pytest.raises(AssertionError) as caught:
        dimorder.expect_channels_last(_lossy(), X)
    assert isinstance(caught.value, OrderError)
    text = str(caught.value)
    assert text.startswith("Sequential in channels-last\n  found: 3 places")
    assert "lost  aten._softmax by softmax" in text and "allow=[" in text
    assert len(caught.value.inspection.of("lost")) == 1
    copied = pickle.loads(pickle.dumps(caught.value))  # as it passes between processes
    assert str(copied) == text and copied.inspection == caught.value.inspection


@pytest.mark.parametrize(
    "allowed", [["softmax", "conv2d" if KNOWS_EACH_CALL else "2"], ["aten.*"], ["1", "2"], ["test_expect*"]]
)
def test_what_is_allowed_passes(allowed):
    if allowed == ["test_expect*"]:  # an operator called in torch's own Sequential has our line: this call's
        assert not dimorder.expect_channels_last(_lossy(), X, allow=["test_expect_and_compare.py:*"]).keeps
    else:
        assert not dimorder.expect_channels_last(_lossy(), X, allow=allowed).keeps


def test_what_is_not_allowed_is_left():
    with pytest.raises(OrderError, match="1 place "):
        dimorder.expect_channels_last(_lossy(), X, allow=["softmax"])


def test_a_comparison_leaves_the_model_as_it_was():
    model = _lossy().train()
    found = compare(model, X, rounds=3)
    assert model.training and model[0].weight.is_contiguous() and not model[0]._forward_hooks
    assert set(found.regions) <= {"0", "1", "2"} and found.rounds == 3
    assert json.loads(json.dumps(found.to_dict()))["recommendation"] == found.recommendation
    with pytest.raises(UsageError, match="3 or more"):
        compare(model, X, rounds=2)


def test_the_row_major_runs_of_a_converted_model_are_row_major():
    seen = []
    net = nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU())
    net.register_forward_hook(lambda module, args, y: seen.append(y.stride()))
    x = torch.randn(2, 4, 9)
    dimorder.to_channels_last(net)
    compare(net, x, rounds=3)
    assert set(seen) == {(42, 7, 1), (42, 1, 6)}
    found = dimorder.inspect(net, x, order="contiguous")
    assert {call.results[0].order_name for call in found.calls} == {"NCL"}
    assert dimorder.is_channels_last(net(x))


def test_a_recommendation_needs_more_than_noise():
    fast, slow, even = Ratio(1.43, 0.05), Ratio(0.8, 0.1), Ratio(1.04, 0.05)
    found = Comparison("net", fast, 14.3, 10.0, {"body": (fast, 12.0), "head": (slow, 2.0)}, 11)
    assert found.recommendation == "channels-last: 1.43× ± 0.05; keep head contiguous"
    assert Comparison("net", even, 10.4, 10.0, {}, 11).recommendation.startswith("either order")
    assert (fast.order, slow.order, even.order) == ("channels_last", "contiguous", None)


def test_the_page_stands_alone_and_holds_the_findings():
    found = dimorder.inspect(_lossy(), X)
    page = inspection_page(found, "a <lossy> net", compare(_lossy(), X, rounds=3))
    assert "a &lt;lossy&gt; net" in page and "<lossy>" not in page
    assert "http" not in page and "src=" not in page and "@import" not in page
    assert page.count('<article class="card">') == len(found.places)
    for place in found.places:
        assert place.findings[0].verdict in page
    assert "Both orders" in page and 'type="search"' in page
