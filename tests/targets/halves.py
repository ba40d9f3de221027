"""How tests measure half precision: no farther from float64 than twice as far as PyTorch's own is."""

from __future__ import annotations

import contextlib
import copy
import platform
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.relative_error import relative_error
from tests.targets.cases import Case, Net

FACTOR = 2
HAS_HALF_SUMS = platform.machine() in ("aarch64", "arm64") or torch.cpu.get_capabilities().get("avx512_fp16")
# PyTorch 2.13 has no kernels of half precision for these.
NOT_IN_TORCH = {"average pool, 3-D", "average pools, unbatched", "bicubic, antialias", "bilinear, antialias"}
TYPES = pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float16, id="float16"),
        pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.slow),  # all rows again
    ],
)


def halved(case: Case, dtype: torch.dtype = torch.float16) -> tuple[Net, tuple[Tensor, ...]]:
    """A case's network and inputs in half precision."""
    function, inputs, constants = case
    inputs, constants = (
        tuple(x.to(dtype) if x.is_floating_point() else x for x in side) for side in (inputs, constants)
    )
    return Net(function, constants), inputs


def share_of_allowed(got: object, network: nn.Module, inputs: Sequence[Tensor]) -> float:
    """Return the largest error of any output, as a share of what is allowed; infinite if a type differs.

    Allowed is twice the error of PyTorch's own result, or twice a rounding of its type if that is more. On
    CPUs with float16 arithmetic, whose kernels have no wider sums, the error of float16 sums counts too.
    """
    with torch.no_grad():
        own = network(*inputs)
        exact = copy.deepcopy(network).double()(*(x.double() if x.is_floating_point() else x for x in inputs))
        with HalfSums() if HAS_HALF_SUMS else contextlib.nullcontext():
            summed = network(*inputs)
    shares = [0.0]
    for g, o, s, e in zip(*map(pytree.tree_leaves, (got, own, summed, exact)), strict=True):
        if (g.shape, g.dtype) != (o.shape, o.dtype):
            return float("inf")
        if not o.is_floating_point():
            shares.append(0.0 if torch.equal(g, o) else float("inf"))
            continue
        rounding = torch.finfo(o.dtype).eps / 2
        own_error, summed_error, error = (relative_error(x.double(), e.double()) for x in (o, s, g))
        shares.append(error / (FACTOR * max(own_error, summed_error, rounding)))
    return max(shares)
