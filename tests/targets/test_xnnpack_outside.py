"""Test which operators stay outside of the delegates, and which are built from what XNNPACK has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("executorch")


from dimorder.executorch import conversions_in
from tests.targets.cases import Net, dense, r
from tests.targets.xnnpack_runs import PICTURE, compare, compare_lowered, to_nchw

NHWC_BOTH = {"input_orders": "NHWC", "output_orders": "NHWC"}
LONG = r(3, 2, 7, 70)  # so long a running sum is not built from others

COPY = "dim_order_ops::_clone_dim_order.out"
SEVEN = r(2, 3, 2, 3, 2, 5, 7)

# What stays outside: name -> function, inputs, orders promised, constants, delegates, outside, conversions
Outside = tuple[
    Callable[..., Any], tuple[Tensor, ...], dict[str, Any], tuple[Tensor, ...], int, dict[str, int], int
]
OUTSIDE: dict[str, Outside] = {
    "between delegates": (
        lambda x: torch.cumsum(x * 2, 1) * 3,
        (r(3, 70, 7),),
        {},
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "at the end": (lambda x: torch.topk(x * 2, 3), (r(3, 2, 7),), {}, (), 1, {"aten::topk.values": 1}, 0),
    "nothing to delegate": (
        lambda x: torch.cumsum(x, 1),
        (r(3, 70, 7),),
        {},
        (),
        0,
        {"aten::cumsum.out": 1},
        0,
    ),
    "an operator outside of core ATen that has a kernel": (
        lambda x: x.masked_fill(x > 3, 7),
        (torch.arange(3 * 5).reshape(3, 5) % 6,),
        {},
        (),
        0,
        {"aten::gt.Scalar_out": 1, "aten::masked_fill.Scalar_out": 1},
        0,
    ),
    "a running product of integers": (
        lambda x: torch.cumprod(x, 1),
        (torch.arange(2 * 7 * 3).reshape(2, 7, 3) % 5 - 2,),
        {},
        (),
        0,
        {"aten::slice_copy.Tensor_out": 3, "aten::constant_pad_nd.out": 3, "aten::mul.out": 3},
        0,
    ),
    "beside a delegate": (
        lambda x: torch.cumsum(x, 1) + torch.relu(x * 2),
        (r(3, 70, 7),),
        {},
        (),
        1,
        {"aten::cumsum.out": 1},
        0,
    ),
    "on an NHWC input": (
        lambda x: torch.cumsum(x, 3) * 2,
        (LONG,),
        {"input_orders": "NHWC"},
        (),
        2,
        {"aten::cumsum.out": 1},
        1,
    ),
    "on an NHWC input, row-major": (
        lambda x: torch.topk(x, 9, 3)[0] * 2,
        (PICTURE,),
        {"input_orders": "NHWC"},
        (),
        2,
        {"aten::topk.values": 1},
        1,
    ),
    "from NHWC to NHWC": (
        lambda x: torch.cumsum(x, 3),
        (LONG,),
        NHWC_BOTH,
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "to an NHWC output": (
        lambda x: to_nchw(torch.cumsum(x * 2, 2)),
        (r(3, 7, 70, 2),),
        {"output_orders": "NHWC"},
        (),
        2,
        {"aten::cumsum.out": 1},
        0,
    ),
    "on an NHWC output": (
        lambda x: (lambda y: (y, torch.cumsum(y, 3)))(to_nchw(x * 2)),
        (r(3, 7, 70, 2),),
        {"output_orders": ["NHWC", None]},
        (),
        1,
        {"aten::cumsum.out": 1},
        1,
    ),
    "on an NHWC output, row-major": (
        lambda x: (lambda y: (y, torch.topk(y, 2, 1)[0]))(to_nchw(x * 2)),
        (r(3, 7, 9, 2),),
        {"output_orders": ["NHWC", None]},
        (),
        1,
        {"aten::topk.values": 1},
        1,
    ),
    "to a delegate that reads an NHWC output": (
        lambda x, z: (lambda y: (y, torch.cumsum(z * 2, 3) * y))(to_nchw(x * 2)),
        (r(3, 7, 70, 2), LONG),
        {"output_orders": ["NHWC", None]},
        (),
        2,
        {"aten::cumsum.out": 1},
        1,
    ),
    "a lookup": (
        lambda i, c: F.embedding(i, c) * 2,
        (torch.tensor([[1, 4, 2], [0, 3, 3]]),),
        {},
        (r(5, 7),),
        1,
        {"aten::embedding.out": 1},
        0,
    ),
    "positions of 32 bits": (
        lambda x, i: torch.scatter_add((x * 2).gather(1, i), 1, i, x),
        (r(3, 4, 7),),
        {},
        (torch.randint(4, (3, 4, 7), generator=torch.Generator().manual_seed(1)).int(),),
        1,
        {"aten::gather.out": 1, "aten::scatter_add.out": 1},
        0,
    ),
    "positions of 32 bits, computed": (
        lambda x: (lambda i: torch.gather(x, 2, i) + torch.gather(x.sin(), 2, i))(x.argmax(2, True).int()),
        (r(3, 4, 7),),
        {},
        (),
        2,
        {"aten::argmax.out": 1, "aten::gather.out": 2, "dim_order_ops::_to_dim_order_copy.out": 2},
        0,
    ),
    "round": (lambda x: torch.round(x * 9) * 2, (r(3, 2, 7),), {}, (), 2, {"aten::round.out": 1}, 0),
    "nearest, to no multiple": (
        lambda x: F.interpolate(x * 2, (10, 13)),
        (PICTURE,),
        {"input_orders": "NHWC"},
        (),
        1,
        {"aten::upsample_nearest2d.vec_out": 1},
        1,
    ),
    "a weight computed at run time": (
        lambda x, w: F.conv2d(x * 2, w + x.mean()),
        (PICTURE,),
        {},
        (r(5, 2, 3, 3),),
        1,
        {"aten::convolution.out": 1},
        0,
    ),
    "an input of seven dimensions": (
        lambda x: torch.relu(x) + 1,
        (SEVEN,),
        {},
        (),
        1,
        {"aten::view_copy.out": 1},
        0,
    ),
    "a softmax in the midst of seven dimensions": (
        lambda x: x.softmax(3) + 1,
        (SEVEN,),
        {},
        (),
        1,
        {"aten::view_copy.out": 1},
        2,
    ),
    "a matmul that broadcasts seven dimensions": (
        lambda x, c: torch.matmul(x + 0.5, c) * 2,
        (SEVEN,),
        {},
        (r(3, 1, 3, 1, 7, 4),),
        2,
        {"aten::bmm.out": 1, "aten::expand_copy.out": 2, "aten::view_copy.out": 1, COPY: 1},
        0,
    ),
    "a matmul whose batch is five dimensions elsewhere": (
        lambda x, c: torch.matmul(x, c) + x.reshape(2, 3, 2, 3, 2, 35).sum((1, 3), keepdim=True).sum(),
        (r(72, 5, 7),),
        {},
        (r(72, 7, 7),),
        1,
        {},
        0,
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside(name: str) -> None:
    function, inputs, promised, constants, delegates, outside, conversions = OUTSIDE[name]
    lowered = compare_lowered(Net(function, constants), inputs, **promised)
    found = lowered.artifact.delegates, lowered.artifact.outside, len(lowered.plan.conversions)
    assert found == (delegates, outside, conversions)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x * 2, 1) * 2,
        lambda x: (x * 2)[..., ::2] * 2,
        lambda x: F.max_pool2d(x * 2, 2, 1, dilation=2),
        lambda x: torch.cumsum(x * 2, 3),
        lambda x: (x * 2).amax(3),
    ],
    ids=["softmax", "slice", "dilated pool", "running sum", "maximum"],
)
def test_configuration_that_xnnpack_lacks_is_built_from_what_it_has(function: Callable[..., Any]) -> None:
    artifact = compare_lowered(Net(function), (PICTURE,), input_orders="NHWC").artifact
    assert (artifact.delegates, artifact.outside) == (1, {})


def test_views_between_outside_operators_get_no_delegate() -> None:
    module = Net(lambda x: torch.cumsum(dense(torch.cumsum(x, 1), 0, 2, 1).view(3, 14), 1))
    result = compare(module, (r(3, 2, 7),))
    assert (result.delegates, conversions_in(result.data).conversion_count) == (0, 1)


def test_what_is_repeated_in_more_dimensions_than_xnnpack_has() -> None:
    """Outside, an expanded value is copied, for nothing can view it in fewer dimensions."""
    lowered = compare_lowered(Net(lambda x: x.repeat(2, 3, 4, 2)), (r(2, 3, 2, 5),))
    assert "aten::expand_copy.out" in lowered.artifact.outside


@pytest.mark.parametrize(
    "view",
    [lambda i: i[:, 1:4], lambda i: i[:, ::2], lambda i: i.unfold(1, 3, 2), lambda i: i.unbind(1)[2]],
    ids=["slice", "slice with a step", "unfold", "unbind"],
)
def test_a_view_of_integers_is_copied_before_it_is_reshaped(view: Callable[[Tensor], Tensor]) -> None:
    table = r(11, 6)
    indices = torch.arange(21).reshape(3, 7) % 11
    compare_lowered(Net(lambda i: F.embedding(view(i).reshape(-1), table) * 2), (indices,))


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_an_integer_without_dimensions_keeps_its_type_beside_numbers(kind: torch.dtype) -> None:
    def beside_numbers(n: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return n * 2, n + 3, 9 - n, torch.add(n, 4, alpha=3), n // 2, n % 3, n * 2.5, n > 2, x * n

    compare_lowered(Net(beside_numbers), (torch.tensor(5, dtype=kind), r(2, 3)))


def test_integers_of_8_bits_are_joined_at_a_dynamic_size() -> None:
    """These stand for themselves: no scale belongs to them, as in a cache that the network rounds itself."""

    def join(x: Tensor, kept: Tensor) -> Tensor:
        rounded = (x * 40).round().clamp(-128, 127).to(torch.int8)
        return torch.cat([kept, rounded], 2)[:, :, -7:].float() * 0.025

    kept = torch.arange(84, dtype=torch.int8).reshape(1, 3, 7, 4)
    sizes = {"inputs": ({2: torch.export.Dim("L", min=1, max=5)}, {})}
    artifact = compare_lowered(Net(join), (r(1, 3, 2, 4), kept), dynamic_shapes=sizes).artifact
    assert artifact.outside["aten::cat.out"] == 1


def test_places_beyond_the_type_shift_every_bit_out() -> None:
    places = torch.tensor([0, 1, 31, 32, 40, -1, 5], dtype=torch.int32)
    i = torch.arange(-10, 11, dtype=torch.int32).reshape(3, 7) * 77_777_777
    compare_lowered(Net(lambda i: (i << places, i >> places, i >> 35, i << 33)), (i,))
