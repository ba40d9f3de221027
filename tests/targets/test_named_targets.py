"""Lower the networks of the zoo whose rows name targets: each is refused, or gives PyTorch's results.

Three calls have other inputs than the network was lowered with. State goes on from call to call.
"""

from __future__ import annotations

import copy

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree

import dimorder
from dimorder.errors import UnsupportedError
from tests import zoo
from tests.marks import require_runtime, slow_but
from tests.zoo.mechanisms import EarlyExit

SEEDS = (2, 3, 4)
CASES = [(row.name, target) for row in zoo.networks() for target in row.targets]
QUICK = [
    ("squeezenet_two_quantizers", "xnnpack"),
    ("squeezenet_uint8", "tosa"),
    ("hifigan_int8", "litert"),
    *(("llama_cached", target) for target in ("xnnpack", "tosa")),
    *(("early_exit", target) for target in ("litert", "tosa")),
]


@pytest.mark.parametrize(("name", "target"), slow_but(CASES, QUICK))
def test_a_target_gives_pytorchs_results_or_refuses(name: str, target: str) -> None:
    require_runtime(target)
    row = zoo.network(name)
    eager, expected = row.build(), row.targets[target]
    args, kwargs = row.call()
    if isinstance(expected, str):
        with pytest.raises(UnsupportedError, match=expected):
            dimorder.lower(eager, args, kwargs, target=target)
        return
    lowered = dimorder.lower(copy.deepcopy(eager), args, kwargs, target=target)
    for seed in SEEDS:
        specs = iter(lowered.contract.inputs)
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda x, specs=specs: next(specs).quantized(x), row.call(seed=seed)
        )
        results = [x for x in pytree.tree_leaves(lowered.run(*args, **kwargs)) if isinstance(x, Tensor)]
        wanted = row.run(eager, seed=seed)
        for spec, got, value in zip(lowered.contract.outputs, results, wanted, strict=True):
            assert (spec.real(got).double() - value).norm() <= expected * value.double().norm()


def test_the_calls_take_both_branches_of_an_early_exit() -> None:
    row = zoo.network("early_exit")
    network = row.build()
    assert isinstance(network, EarlyExit)
    assert {network.is_sure(network.begin(*row.inputs(seed=seed))[1]).item() for seed in SEEDS} == {
        True,
        False,
    }
