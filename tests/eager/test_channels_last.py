"""`to_channels_last` gives the order asked for, dense, whatever tensor or module comes in."""

from __future__ import annotations

import copy
import functools
import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from dimorder.algebra.dim_order import DimOrder
from dimorder.algebra.layout import Layout
from dimorder.eager.channels_last import (
    collate,
    empty,
    is_channels_last,
    to_channels_last,
    to_contiguous,
    weights_in_order,
)
from dimorder.eager.conversion import convert
from dimorder.errors import UsageError

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64)


@st.composite
def tensors(draw, dtypes=DTYPES, ranks=(3, 4, 5)):
    """Strided in every way: permuted, sliced, stepped, expanded, flipped, of sizes 0 and 1."""
    rank = draw(st.sampled_from(ranks))
    shape = draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank))
    pads = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=rank, max_size=rank))
    steps = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank))
    held = [
        before + size * step + after for size, step, (before, after) in zip(shape, steps, pads, strict=True)
    ]
    order = draw(st.permutations(range(rank)))
    dtype = draw(st.sampled_from(dtypes))
    base = torch.arange(math.prod(held)).remainder(120).view(held)
    base = (base % 2 == 0) if dtype == torch.bool else base.to(dtype)
    base = convert(base, DimOrder(*order))
    cuts = tuple(
        slice(before, before + size * step, step)
        for size, step, (before, _) in zip(shape, steps, pads, strict=True)
    )
    x = base[cuts]
    for dim in range(rank):
        if x.shape[dim] == 1 and draw(st.booleans()):
            x = x.expand(*(3 if d == dim else -1 for d in range(rank)))
    flips = draw(st.sets(st.integers(0, rank - 1)))
    return x.flip(tuple(flips)) if flips else x


@given(tensors(), st.data())
def test_convert_gives_the_values_in_the_strides_asked_for(x, data):
    order = DimOrder(*data.draw(st.permutations(range(x.dim()))))
    y = convert(x, order)
    assert y.shape == x.shape and y.dtype == x.dtype
    assert torch.equal(y, x)
    assert y.stride() == order.strides(x.shape)
    assert convert(y, order) is y


@given(tensors())
def test_to_channels_last_and_back(x):
    y = to_channels_last(x)
    assert torch.equal(y, x) and is_channels_last(y)
    assert y.stride() == DimOrder.channels_last(x.dim()).strides(x.shape)
    assert to_channels_last(y) is y
    back = to_contiguous(y)
    assert torch.equal(back, x) and back.stride() == DimOrder.contiguous(x.dim()).strides(x.shape)


@given(tensors(dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.complex64)))
def test_gradients_pass_unchanged(x):
    grads = []
    for change in (lambda x: x * 1, to_channels_last, to_contiguous):
        leaf = x.detach().clone().requires_grad_()
        y = change(leaf)
        weight = torch.arange(y.numel()).remainder(7).view(y.shape).to(y.dtype)
        (y * weight).sum().abs().backward()
        grads.append(leaf.grad)
    for grad in grads[1:]:
        assert torch.equal(grad, grads[0])


@given(tensors())
def test_is_channels_last_says_what_the_memory_is(x):
    """Against the definition: walking the memory in channels-last order meets every element one further."""
    steps = x.permute(DimOrder.channels_last(x.dim()).dims)
    places = [
        sum(i * s for i, s in zip(index, steps.stride(), strict=True))
        for index in torch.cartesian_prod(*(torch.arange(n) for n in steps.shape)).view(-1, x.dim()).tolist()
    ]
    assert is_channels_last(x) == (places == list(range(x.numel())))


def test_one_channel_with_gaps_is_copied_right():
    """Intel's extension returned wrong values here: C = 1 out of a wider tensor."""
    wide = torch.arange(2 * 4 * 5).float().view(2, 4, 5)
    x = wide[:, 1:2]
    y = to_channels_last(x)
    assert torch.equal(y, x) and y.stride() == (5, 1, 1) and is_channels_last(y)


@pytest.mark.parametrize("shape", [(1, 3, 4, 6), (2, 1, 4, 6), (2, 3, 1, 1), (1, 1, 1, 5), (1, 3, 1, 6)])
def test_a_convolution_writes_channels_last_whatever_size_is_one(shape):
    conv = to_channels_last(nn.Conv2d(shape[1], 7, 1))
    ambiguous = torch.randn(3, *shape[1:])[:1].expand(shape).contiguous()
    y = conv(to_channels_last(ambiguous))
    assert y.stride(1) == 1 and is_channels_last(y)


def test_a_single_image_of_a_batch_is_really_channels_last():
    """`x[0].unsqueeze(0)` has strides that torch calls channels-last and convolves as NCHW."""
    batch = to_channels_last(torch.randn(2, 3, 8, 6))
    image = to_channels_last(batch[0].unsqueeze(0))
    assert image.stride() == (144, 1, 18, 3) and image.data_ptr() == batch.data_ptr()
    assert is_channels_last(nn.Conv2d(3, 4, 3)(image))


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(UsageError, match=r"2 dims\n.*unsqueeze"):
        to_channels_last(torch.zeros(2, 3))
    with pytest.raises(UsageError, match="sparse"):
        to_channels_last(torch.zeros(2, 3, 4, 5).to_sparse())
    with pytest.raises(UsageError, match="4 dims for a tensor of 3"):
        convert(torch.zeros(2, 3, 4), DimOrder(0, 2, 3, 1))
    with pytest.raises(UsageError, match="lazy"):
        to_channels_last(nn.Sequential(nn.LazyConv2d(4, 3)))
    with pytest.raises(UsageError, match="scripted"):
        to_channels_last(torch.jit.script(nn.Conv1d(3, 4, 2)))


def test_empty_takes_what_torch_takes():
    x = empty((2, 3, 4, 5), dtype=torch.float16, requires_grad=True)
    assert x.stride() == (60, 1, 15, 3) and x.dtype == torch.float16 and x.is_leaf and x.requires_grad
    assert empty((2, 3, 4, 5), order="CHWN").stride() == (1, 40, 10, 2)


def test_orders_need_no_memory():
    x = torch.empty(2, 64, 56, 40, device="meta")
    y = to_channels_last(x)
    assert y.device.type == "meta" and is_channels_last(y) and to_contiguous(y).is_contiguous()
    assert convert(x, Layout.parse("nChw16c", 4)).shape == (2, 4, 56, 40, 16)


# Modules


class Mixed(nn.Module):
    """Weights of every rank, one of them tied; a buffer that is a convolution's weight under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2 = nn.Conv2d(3, 4, 3, padding=1)
        self.tied = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.tied.weight = self.conv2.weight
        self.conv3 = nn.Conv3d(2, 3, (1, 2, 2))
        self.rise = nn.ConvTranspose2d(4, 5, 2, stride=2)
        self.rise3 = nn.ConvTranspose3d(3, 2, 2)
        self.register_buffer("alias", self.rise.weight.detach())
        self.table = nn.Parameter(torch.randn(2, 3, 4, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.rise(self.conv2(x) + self.tied(x))
        z = self.rise3(self.conv3(y[:, None, :4].expand(-1, 2, -1, -1, -1)))
        return z.mean((2,)) + self.alias.sum() + self.table.sum()


def test_a_mixed_module_keeps_its_state_and_its_ties():
    torch.manual_seed(0)
    module = Mixed()
    x = torch.randn(2, 3, 4, 6)
    before, values = module(x), {key: value.clone() for key, value in module.state_dict().items()}
    parameters = list(module.parameters())
    assert to_channels_last(module) is module
    for conv in (module.conv2, module.conv3, module.rise, module.rise3):
        assert is_channels_last(conv.weight)
    assert module.table.is_contiguous()
    assert module.tied.weight is module.conv2.weight
    assert module.alias.data_ptr() == module.rise.weight.data_ptr()
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    after = module.state_dict()
    assert list(after) == list(values) and all(torch.equal(after[key], values[key]) for key in values)
    torch.testing.assert_close(module(to_channels_last(x)), before)
    assert to_contiguous(module).conv3.weight.is_contiguous()


def test_pieces_of_one_memory_stay_where_they_are():
    module = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 2))
    packed = torch.randn(2, 4, 3, 2, 2)
    for part, weight in zip(module, packed, strict=True):
        part.weight = nn.Parameter(weight)
    to_channels_last(module)
    packed.zero_()
    assert not module[0].weight.any() and not module[1].weight.any()


OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "SGD fused": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True),
    "Adam foreach": functools.partial(torch.optim.Adam, lr=0.01, foreach=True),
    "AdamW fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_and_optimizers_go_on(name):
    """Fused optimizers do so only if they made no step before."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    module = copy.deepcopy(plain)
    losses = []
    for network in (plain, module):
        optimizer = OPTIMIZERS[name](network.parameters())
        x = torch.randn(2, 3, 8, 7, generator=torch.Generator().manual_seed(1))
        seen = []
        for step in range(4):
            if network is module and step == (0 if "fused" in name else 2):
                to_channels_last(network)
            optimizer.zero_grad(set_to_none=False)
            loss = network(x).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.detach())
        losses.append(torch.stack(seen))
    torch.testing.assert_close(losses[0], losses[1])
    assert is_channels_last(module[0].weight)


def test_weights_computed_at_each_call_are_left_as_they_are():
    module = parametrizations.weight_norm(nn.Conv1d(6, 4, 3), dim=2)
    x = torch.randn(2, 6, 9)
    before = module(x)
    to_channels_last(module)
    torch.testing.assert_close(module(x), before)
    assert is_channels_last(module(x)) and module.parametrizations.weight.original1.is_contiguous()


def test_laid_leaves_ties_and_gradients_as_they_were():
    module = nn.Conv2d(3, 4, 3)
    module.register_buffer("alias", module.weight.detach())
    module(torch.ones(1, 3, 5, 6)).sum().backward()
    grad = module.weight.grad
    with weights_in_order(module, DimOrder.channels_last):
        assert is_channels_last(module.alias)
    with torch.no_grad():
        module.weight.add_(1)
    assert torch.equal(module.alias, module.weight) and module.weight.grad is grad


def test_laid_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Conv1d(3, 4, 2), nn.Conv1d(4, 5, 2))
    with pytest.raises(RuntimeError), weights_in_order(module, DimOrder.channels_last):
        assert is_channels_last(module[0].weight)
        module(torch.zeros(1, 2))
    assert type(module) is nn.Sequential and module[0].weight.is_contiguous()


def test_a_conversion_in_inference_mode_leaves_a_module_that_can_be_trained():
    module, x = nn.Conv2d(3, 4, 2), torch.randn(2, 3, 5, 7)
    module(x).sum().backward()
    with torch.inference_mode():
        to_channels_last(module)
    module(x).sum().backward()
    assert is_channels_last(module.weight) and is_channels_last(module.weight.grad)


@pytest.mark.parametrize("within", [True, False])
def test_a_module_from_inference_mode_computes_as_before(within):
    with torch.inference_mode():
        module, x = nn.Sequential(nn.Conv1d(3, 6, 4), nn.ConvTranspose1d(6, 5, 2)), torch.randn(2, 3, 9)
        expected = module(x)
    with torch.inference_mode(within), torch.no_grad():
        to_channels_last(module)
        torch.testing.assert_close(module(x), expected)
        assert is_channels_last(module(x)) and is_channels_last(module[0].weight)
        to_contiguous(module)
        torch.testing.assert_close(module(x), expected, rtol=0, atol=0)


def test_shared_memory_stays_shared():
    module = to_channels_last(nn.Conv2d(3, 4, 2).share_memory())
    assert module.weight.is_shared() and is_channels_last(module.weight)


def test_a_conversion_that_fails_changes_nothing():
    module = nn.Sequential(nn.Conv1d(3, 4, 2), nn.Conv1d(4, 5, 2))
    module(torch.ones(1, 3, 7)).sum().backward()
    module[1].weight.grad = module[1].weight.grad.to_sparse()
    with pytest.raises(UsageError, match="sparse_coo"):
        to_channels_last(module)
    assert type(module) is nn.Sequential
    assert module[0].weight.is_contiguous() and module[0].weight.grad.is_contiguous()


def test_to_contiguous_undoes_parts_that_were_converted_alone():
    module = nn.Sequential(to_channels_last(nn.Conv1d(3, 4, 2)), nn.ReLU())
    to_contiguous(module)
    assert type(module[0]) is nn.Conv1d
    assert module(torch.ones(2, 3, 7)).is_contiguous()


def test_a_converted_module_is_row_major_where_asked():
    module = nn.Sequential(to_channels_last(nn.Conv1d(3, 4, 2)), nn.ReLU())
    to_channels_last(module)
    with weights_in_order(module, DimOrder.contiguous):
        assert module(torch.ones(2, 3, 7)).is_contiguous()
    assert is_channels_last(module(torch.ones(2, 3, 7))) and is_channels_last(module[0].weight)
    assert type(module[0]) is not nn.Conv1d


def test_collate_keeps_the_order_of_the_samples():
    generator = torch.Generator().manual_seed(0)
    pixels = [torch.randn(5, 7, 3, generator=generator).permute(2, 0, 1) for _ in range(4)]
    batch, labels = collate([(image, index) for index, image in enumerate(pixels)])
    assert (
        is_channels_last(batch)
        and torch.equal(batch, torch.stack(pixels))
        and labels.tolist() == [0, 1, 2, 3]
    )
    mixed = collate([pixels[0], pixels[1].contiguous()])
    assert mixed.is_contiguous() and torch.equal(mixed, torch.stack(pixels[:2]))
    sliced = [image[:, ::2] for image in pixels]
    assert torch.equal(collate(sliced), torch.stack(sliced))


def test_collate_keeps_it_across_workers():
    pixels = [torch.full((5, 7, 3), float(i)).permute(2, 0, 1) for i in range(4)]
    loader = torch.utils.data.DataLoader(pixels, batch_size=2, num_workers=1, collate_fn=collate)
    for number, batch in enumerate(loader):
        assert is_channels_last(batch)
        assert torch.equal(batch, torch.stack(pixels[2 * number : 2 * number + 2]))


def test_collate_keeps_the_order_of_crops():
    crops = [torch.randn(9, 11, 3).permute(2, 0, 1)[:, 2:7, 3:10] for _ in range(2)]
    batch = collate([{"image": crop} for crop in crops])["image"]
    assert is_channels_last(batch) and torch.equal(batch, torch.stack(crops))


class Sample:
    """A type that torch learns to collate after dimorder was imported."""


def test_collate_knows_what_default_collate_knows(monkeypatch):
    with pytest.raises(TypeError, match="Sample"):
        collate([Sample(), Sample()])
    monkeypatch.setitem(default_collate_fn_map, Sample, lambda batch, *, collate_fn_map: len(batch))
    assert collate([Sample(), Sample()]) == 2


def _pixels(height):
    return torch.zeros(height, 7, 3).permute(2, 0, 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["other sizes", "a number", "sparse", "nested"])
def test_collate_refuses_what_default_collate_refuses(kind):
    batch = {
        "other sizes": lambda: [_pixels(5), _pixels(6)],
        "a number": lambda: [_pixels(5), 3],
        "sparse": lambda: [_pixels(5).to_sparse()] * 2,
        "nested": lambda: [torch.nested.nested_tensor([_pixels(5), _pixels(6)])] * 2,
    }[kind]()
    with pytest.raises((RuntimeError, TypeError)) as expected:
        default_collate(batch)
    with pytest.raises(expected.type, match=f"^{re.escape(str(expected.value))}$"):
        collate(batch)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_not_channels_last():
    assert not is_channels_last(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]))
