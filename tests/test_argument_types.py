"""Arguments of a type that cannot be right are refused in three lines by each public function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dimorder
from dimorder.eager.inspection.compare import compare
from dimorder.errors import UsageError

LAYOUT = dimorder.Layout.parse("nChw16c", 4)
X = torch.randn(2, 3, 5, 7)
NET = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)).eval()


@pytest.fixture(scope="module")
def lowered():
    return dimorder.lower(NET, (X,), input_orders="NHWC")


EAGER = {
    "is_channels_last": lambda: dimorder.is_channels_last(np.zeros((2, 3, 5, 7))),
    "empty": lambda: dimorder.empty(3),
    "empty of a negative size": lambda: dimorder.empty((2, -3, 5)),
    "unblock by a name": lambda: dimorder.unblock(dimorder.convert(X, LAYOUT), "nChw16c", X.shape),
    "unblock without a shape": lambda: dimorder.unblock(dimorder.convert(X, LAYOUT), LAYOUT, None),
    "collate nothing": lambda: dimorder.collate([]),
    "collate a number": lambda: dimorder.collate(3),
    "DimOrder.parse without a rank": lambda: dimorder.DimOrder.parse("NHWC", None),
    "DimOrder.strides of a number": lambda: dimorder.DimOrder(0, 1).strides(3),
    "DimOrder.compose with a tuple": lambda: dimorder.DimOrder(0, 1).compose((1, 0)),
    "DimOrder.permuted by a tuple": lambda: dimorder.DimOrder(0, 1).permuted((1, 0)),
    "DimOrder.equivalent to a name": lambda: dimorder.DimOrder(0, 1).equivalent("NC", (2, 3)),
    "Layout of a block": lambda: dimorder.Layout(dimorder.DimOrder(0, 1), (1, 16)),
    "Layout of a number": lambda: dimorder.Layout(dimorder.DimOrder(0, 1), 16),
    "Layout.parse of a wrong rank": lambda: dimorder.Layout.parse("nChw16c", 4.0),
    "Normalization of a number": lambda: dimorder.Normalization(0.5, 0.5),
    "Normalization of nothing": lambda: dimorder.Normalization(()),
    "inspect a function": lambda: dimorder.inspect(torch.relu, X),
    "inspect an array": lambda: dimorder.inspect(NET, np.zeros((2, 3, 5, 7))),
    "inspect with a list of keywords": lambda: dimorder.inspect(NET, X, [3]),
    "inspect in an array": lambda: dimorder.inspect(NET, X, order=np.zeros(4)),
    "compare a function": lambda: compare(torch.relu, X),
    # Each letter of a text would be a pattern, and its * would allow every place.
    "expect with a text": lambda: dimorder.expect_channels_last(NET, X, allow="head.*"),
    "expect with a number": lambda: dimorder.expect_channels_last(NET, X, allow=3),
}
LOWERING = {
    "load": lambda _: dimorder.load(None),
    "load bytes": lambda _: dimorder.load(b"net.pt2"),
    "load_signatures": lambda _: dimorder.load_signatures(3),
    "save": lambda lowered: lowered.save(None),
    "save_signatures without a path": lambda lowered: dimorder.save_signatures(None, {"net": lowered}),
    "save_signatures of a list": lambda lowered: dimorder.save_signatures("net.tflite", [lowered]),
    "save_signatures of a module": lambda _: dimorder.save_signatures("net.tflite", {"net": NET}),
    "save_signatures by numbers": lambda lowered: dimorder.save_signatures("net.tflite", {1: lowered}),
    "explain": lambda lowered: lowered.plan.explain("0"),
    "progress": lambda _: dimorder.lower(NET, (X,), progress=True),
    "objective": lambda _: dimorder.lower(NET, (X,), objective=np.zeros(2)),
    "input_types": lambda _: dimorder.lower(NET, (X,), input_types=8),
    "input_orders": lambda _: dimorder.lower(NET, (X,), input_orders=np.arange(4)),
    "cost_at": lambda _: dimorder.lower(NET, (X,), cost_at=torch.ones(2)),
    "run_artifact": lambda _: dimorder.lower(NET, (X,), run_artifact="no"),
    "on_mismatch": lambda lowered: lowered(X, on_mismatch=np.zeros(2)),
}


@pytest.mark.parametrize("name", EAGER)
def test_eager_functions_refuse_them(name):
    with pytest.raises(UsageError, match=r"(?s)\A[^\n]+\n  found: [^\n]+\n  fix: [^\n]+\Z"):
        EAGER[name]()


@pytest.mark.parametrize("name", LOWERING)
def test_functions_of_the_pipeline_refuse_them(name, lowered):
    with pytest.raises(UsageError, match=r"(?s)\A[^\n]+\n  found: [^\n]+\n  fix: [^\n]+\Z"):
        LOWERING[name](lowered)


def test_numbers_of_numpy_count_as_ints(lowered):
    assert lowered.plan.explain(np.int64(0)).conversion == lowered.plan.conversions[0]
    assert dimorder.DimOrder.parse("NHWC", np.int64(4)) == dimorder.DimOrder(0, 2, 3, 1)
