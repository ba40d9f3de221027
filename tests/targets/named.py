"""Lower a network of the zoo for a target, and measure how far its results are from PyTorch's."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dimorder
from dimorder.lowered import Lowered
from tests.zoo import Network

SEEDS = (2, 3, 4)  # of the calls, other inputs than the network is lowered with


def lower(row: Network, module: nn.Module, target: str) -> Lowered:
    """Lower a copy of a network, which may have state, for the inputs that its row draws."""
    args, kwargs = row.call()
    return dimorder.lower(copy.deepcopy(module), args, kwargs, target=target)


def worst(row: Network, module: nn.Module, target: str) -> float:
    """Return the largest distance of a result over three calls from PyTorch's, as a part of its norm."""
    lowered, eager = lower(row, module, target), copy.deepcopy(module)
    errors: list[float] = []
    for seed in SEEDS:
        wanted = row.run(eager, seed=seed)
        specs = iter(lowered.contract.inputs)
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda x, specs=specs: next(specs).quantized(x), row.call(seed=seed)
        )
        found = [x for x in pytree.tree_leaves(lowered.run(*args, **kwargs)) if isinstance(x, Tensor)]
        for spec, got, value in zip(lowered.contract.outputs, found, wanted, strict=True):
            real = spec.real(got).double()
            errors.append(float((real - value).norm() / value.double().norm()))
    return max(errors)
