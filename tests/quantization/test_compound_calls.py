"""Test losses, distances and numbers beside scalars, which Arm's quantizers do not know or change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

pytest.importorskip("executorch")
pytest.importorskip("tosa_serializer")

import dimorder
from dimorder.quantization.compound_calls import write_compound_calls
from tests.marks import slow_but
from tests.quantization.rewriting import rewritten
from tests.small_networks import Net

X = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(5))
OTHER = torch.randn(2, 3, 4, 7, generator=torch.Generator().manual_seed(6))
Y = X.flip(2) * 0.7 + 0.1
SIGNS = torch.tensor([1, -1])
WEIGHTS = torch.tensor([0.3, 1.7, 0.9])
AT_EACH = torch.randint(0, 5, (2, 3, 4, 6), generator=torch.Generator().manual_seed(8))
BOUNDS = torch.tensor([-1.1, -0.4, 0.2, 0.9])
PLACES = torch.tensor([3, 0, 3, 1, 5])
CLASSES = torch.randint(0, 3, (2, 5, 7), generator=torch.Generator().manual_seed(7))
CALLS: dict[str, Callable[[Tensor], object]] = {
    "largest and place": lambda x: torch.max(x, 1),
    "least and place": lambda x: x.min(-1, keepdim=True),
    "place of the least": lambda x: x.argmin(2),
    "place of the least of all": lambda x: x.argmin(),
    "squared error": lambda x: F.mse_loss(x, Y),
    "absolute errors": lambda x: F.l1_loss(x, Y, reduction="none"),
    "sum of Huber's": lambda x: F.huber_loss(x, Y, reduction="sum", delta=0.6),
    "smooth error": lambda x: F.smooth_l1_loss(x, Y, beta=0.3),
    "smooth error without a square": lambda x: F.smooth_l1_loss(x, Y, beta=0),
    "pairs": lambda x: F.pairwise_distance(x, Y),
    "distances": lambda x: torch.cdist(x, OTHER),
    "distances by absolutes": lambda x: torch.cdist(x, OTHER, p=1),
    "distances by the largest": lambda x: torch.cdist(x, OTHER, p=float("inf")),
    "norm of the least": lambda x: x.norm(-float("inf"), dim=(1, 3)),
    "cubic norm": lambda x: x.norm(3, dim=1, keepdim=True),
    "hypotenuse": lambda x: torch.hypot(x, Y),
    "logarithm of a sum": lambda x: torch.logaddexp(x, Y),
    "added quotient": lambda x: torch.addcdiv(x, x, Y.abs() + 1, value=-0.5),
    "relu6": lambda x: F.relu6(3 * x),
    "deviation and mean": lambda x: torch.std_mean(x, (1, 3), correction=0, keepdim=True),
    "deviation and mean of all": lambda x: torch.std_mean(x),
    "median and place": lambda x: x.median(2, keepdim=True),
    "median of all": lambda x: x[:, :, 1].median(),
    "running product": lambda x: torch.sigmoid(x + 1).cumprod(2),
    "angle": lambda x: torch.atan2(x, Y),
    "sums at places": lambda x: torch.ones(2, 3, 6, 7).index_add(2, PLACES, x, alpha=0.5),
    "sums at the place of each": lambda x: torch.ones(2, 3, 5, 8).scatter_add(2, AT_EACH, x),
    "largest at the place of each": lambda x: (Y[:, :, :, :6] * 2).scatter_reduce(2, AT_EACH, x, "amax"),
    "least at the place of each alone": lambda x: Y[:, :, :, :6].scatter_reduce(
        2, AT_EACH, x, "amin", include_self=False
    ),
    "mean at the place of each": lambda x: Y[:, :, :, :6].scatter_reduce(2, AT_EACH, x, "mean"),
    "running logarithm of sums": lambda x: x.logcumsumexp(2),
    "place among bounds": lambda x: torch.bucketize(x, BOUNDS, right=True),
    "place among a row for each": lambda x: torch.searchsorted(Y.sort(-1)[0], x),
    "distance of shares": lambda x: F.kl_div(x.log_softmax(1), Y.softmax(1), reduction="batchmean"),
    "distance of logarithms of shares": lambda x: F.kl_div(
        x.log_softmax(1), Y.log_softmax(1), reduction="sum", log_target=True
    ),
    "slices no longer than": lambda x: torch.renorm(x, 2, 1, 2.5),
    "quantile": lambda x: x.quantile(0.3, 2),
    "quantile of all": lambda x: x[:, :, 1].quantile(0.9, interpolation="nearest"),
    "remainder": lambda x: torch.fmod(x, -Y.abs() - 2),
    "errors of triplets": lambda x: F.triplet_margin_loss(x, Y, x.flip(0), p=3, swap=True, reduction="none"),
    "error of directions": lambda x: F.cosine_embedding_loss(x.flatten(1), Y.flatten(1), SIGNS, margin=0.1),
    "error of signs": lambda x: F.soft_margin_loss(x, SIGNS[:, None, None, None] + 0.0),
    "error of smoothed classes": lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.2, ignore_index=2),
    "error of weighted classes": lambda x: F.cross_entropy(x, CLASSES, WEIGHTS, label_smoothing=0.2),
    "errors of shares of classes": lambda x: F.cross_entropy(x, Y.softmax(1), WEIGHTS, label_smoothing=0.2),
    "error of classes": lambda x: F.cross_entropy(x, CLASSES.where(Y[:, 0] > -0.5, -100)),
    "errors of classes but one": lambda x: F.nll_loss(x, CLASSES, ignore_index=1, reduction="none"),
}
FAST = {"largest and place", "squared error", "distances", "quotient", "median and place", "running product"}
FAST |= {"place among bounds", "largest at the place of each", "distance of shares"}
FAST |= {"angle", "sums at places", "error of classes", "sums at the place of each", "quantile"}
SCALARS: dict[str, Callable[[Tensor], Tensor]] = {
    "quotient": lambda x: x.sum() / 3,
    "difference": lambda x: 1 - x.mean(),
    "comparison": lambda x: (x.mean() > 0.01).float() * 2,
    "chain": lambda x: ((x.mean() - 1).exp() + 0.5) * 3,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_compound_call_written_in_others_computes_the_same(name: str) -> None:
    net = Net(lambda m, x: CALLS[name](x))
    calls = [node.target for node in rewritten(net, X, lambda model: None).graph.nodes]
    model = rewritten(net, X, write_compound_calls)
    assert not {*calls[1:]} <= {node.target for node in model.graph.nodes}
    torch.testing.assert_close(model(X), net(X))


@pytest.mark.parametrize("recipe", ["int8", "int16x8"])
def test_the_error_of_classes_that_are_an_input(recipe: str) -> None:
    torch.manual_seed(3)
    net = Net(lambda m, x, at: F.cross_entropy(m.linear(x), at), linear=nn.Linear(6, 7)).eval()
    examples = [(torch.randn(5, 6), torch.randint(0, 7, (5,))) for _ in range(4)]
    quantized = dimorder.quantize(net, examples, recipe, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, examples[0], target="tosa"))
    assert found.snr_db is not None and found.snr_db > 40


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    net = nn.Sequential(nn.EmbeddingBag(11, 6, mode=mode), nn.Linear(6, 4)).eval()
    examples = [torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(n)) for n in range(3)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    (found,) = quantized.compare(dimorder.lower(quantized, (examples[0],), target="tosa"))
    assert found.snr_db is not None and found.snr_db > 30


@pytest.mark.parametrize("name", slow_but({**CALLS, **SCALARS}, FAST))
def test_a_compound_call_in_8_bits(name: str) -> None:
    call = {**CALLS, **SCALARS}[name]
    net, examples = Net(lambda m, x: call(x)).eval(), [X, 0.7 * X, X.flip(2)]
    quantized = dimorder.quantize(net, examples, target="tosa")
    lowered = dimorder.lower(quantized, (X,), target="tosa")
    (taken,), given = lowered.contract.inputs, lowered.contract.outputs
    results = pytree.tree_leaves(lowered.run(taken.quantized(X)))
    wanted = pytree.tree_leaves(net(X))
    for spec, result, right in zip(given, results, wanted, strict=True):
        assert result.shape == right.shape
        if right.is_floating_point():
            error = (spec.real(result) - right).norm() / right.norm()
            assert error < (0.12 if "norm" in name else 0.05)
        else:
            assert (result == right).float().mean() > 0.9
