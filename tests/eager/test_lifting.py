"""1-D operators keep channels-last: their order, their values and their gradients."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from dimorder.eager.channels_last import (
    is_channels_last,
    to_channels_last,
    to_contiguous,
)
from dimorder.eager.lifting import Lifted, Lifting
from dimorder.errors import UsageError
from tests.eager.networks import Apply
from tests.zoo import perturb

OPERATORS = {
    "conv": nn.Conv1d(6, 4, 3, stride=2, padding=1, dilation=2, groups=2),
    "conv same": nn.Conv1d(6, 4, 4, padding="same"),
    "conv reflect": nn.Conv1d(6, 4, 3, padding=2, padding_mode="reflect"),
    "conv depthwise": nn.Conv1d(6, 12, 5, groups=6),
    "conv depthwise, dilated and padded by more than 4": nn.Conv1d(6, 6, 3, padding=5, dilation=4, groups=6),
    "conv depthwise same": nn.Conv1d(6, 6, 4, padding="same", dilation=3, groups=6),
    "conv pointwise": nn.Conv1d(6, 4, 1, stride=2),
    "conv of values that are large and row-major": lambda x: F.conv1d(x.contiguous(), torch.ones(4, 6, 1)),
    "conv transpose": nn.ConvTranspose1d(6, 4, 4, stride=3, padding=1, output_padding=2),
    "batch norm": nn.BatchNorm1d(6),
    "group norm": nn.GroupNorm(2, 6),
    "max pool": nn.MaxPool1d(3, stride=2, padding=1),
    "max pool function": lambda x: torch.max_pool1d(x, 3, ceil_mode=True),
    "average pool": nn.AvgPool1d(2),
    "cat": lambda x: torch.cat((x, x + 1), dim=1),
    "cat of lengths": lambda x: torch.cat((x, x[:, :, :4].clone(memory_format=torch.preserve_format)), -1),
    "add": lambda x: x + x.square(),
    "add to a row-major one": lambda x: torch.ones(2, 6, 17) + x,
    "multiply by a row-major one": lambda x: torch.mul(torch.full((2, 6, 17), 2.0), x),
    "subtract per channel": lambda x: torch.arange(6.0).view(6, 1) - x,
    "div": lambda x: x / 3,
    "upsample linear": nn.Upsample(scale_factor=2, mode="linear"),
    "upsample linear to a size": lambda x: F.interpolate(x, size=25, mode="linear", align_corners=True),
    "upsample nearest": nn.Upsample(scale_factor=3, mode="nearest"),
    "pad": lambda x: F.pad(x, (2, 1), value=0.5),
    "pad the channels": lambda x: F.pad(x, (0, 1, 2, 0)),
    "gelu": F.gelu,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_1d_operators_keep_the_order_the_values_and_the_gradients(name):
    torch.manual_seed(0)
    plain = Apply(OPERATORS[name])
    module = to_channels_last(copy.deepcopy(plain))
    results = []
    for network in (plain, module):
        x = torch.randn(2, 3, 19, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = network(x)
        y.square().sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in network.parameters())])
    assert y.shape[1] > 1 and is_channels_last(y)
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm_is_exact_for_means_far_above_the_deviation(groups):
    torch.manual_seed(0)
    norm = nn.GroupNorm(groups, 6)
    perturb(norm)
    x = torch.randn(2, 6, 400, dtype=torch.float64) + 1000
    expected = copy.deepcopy(norm).double()(x)
    y = lifted(lambda _: norm(to_channels_last(x.float())))(torch.zeros(1, 3, 4))
    assert is_channels_last(y)
    torch.testing.assert_close(y, expected.float(), rtol=1e-3, atol=1e-3)


def test_a_group_norm_has_tangents():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(3, 6, 4), nn.GroupNorm(2, 6))
    perturb(plain)
    module = to_channels_last(copy.deepcopy(plain))
    x, tangent = torch.randn(2, 3, 19), torch.randn(2, 3, 19)
    y, change = torch.func.jvp(module, (x,), (tangent,))
    torch.testing.assert_close((y, change), torch.func.jvp(plain, (x,), (tangent,)), rtol=1e-3, atol=1e-4)
    assert is_channels_last(y)


def test_1d_samples_and_other_modes_pass_through():
    module = to_channels_last(Apply(lambda x: F.pad(x, (1, 1), mode="circular")))
    assert module(torch.randn(3, 9)).shape == (6, 9)
    y, places = to_channels_last(Apply(nn.MaxPool1d(2, return_indices=True)))(torch.randn(2, 3, 9))
    assert y.shape == places.shape == (2, 6, 3)


def lifted(function):
    return to_channels_last(Apply(function)).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "how",
    [
        *({"scale_factor": scale} for scale in (1.1, 1.7, 2, 3.0)),
        *({"size": size} for size in (5, 7, 23)),
        {"scale_factor": 2, "mode": "linear"},
        {"scale_factor": 1.3, "mode": "nearest-exact"},
        {"size": 3, "mode": "area"},
    ],
    ids=str,
)
def test_1d_interpolation_takes_the_same_samples(how, dtype):
    x = to_channels_last(torch.tensor([0, 1, 2, torch.inf, 4, 5, 6], dtype=dtype).expand(1, 2, 7))
    expected = F.interpolate(x, **how)
    y = lifted(lambda _: F.interpolate(x, **how))(torch.zeros(1, 3, 4))
    assert is_channels_last(y)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


WRONG = {
    "two strides": lambda x: F.conv1d(x, torch.ones(4, 6, 3), stride=(2, 3)),
    "a padding of no name": lambda x: F.conv1d(x, torch.ones(4, 6, 3), padding="foo"),
    "same with a stride": lambda x: F.conv1d(x, torch.ones(4, 6, 3), stride=2, padding="same"),
    "a weight of two dims": lambda x: F.conv1d(x, torch.ones(4, 6)),
    "two strides transposed": lambda x: F.conv_transpose1d(x, torch.ones(6, 4, 3), stride=(2, 3)),
    "groups of unequal size": lambda x: F.group_norm(x, 4),
    "a pool that stays": lambda x: F.max_pool1d(x, 2, 0),
    "a pool of integers": lambda x: F.max_pool1d(x.long(), 2),
    "an empty input with more padding than the depthwise kernels take": lambda x: F.conv1d(
        x[:, :, :0],
        torch.ones(6, 1, 3),
        padding=7,
        dilation=3,
        groups=6,
    ),
    "a size that is a truth value": lambda x: F.interpolate(x, size=True),
    "an infinite scale": lambda x: F.interpolate(x, scale_factor=torch.inf),
    "two sizes": lambda x: F.interpolate(x, size=(3, 4)),
    "linear with antialias": lambda x: F.interpolate(x, size=3, mode="linear", antialias=True),
    "cat of another dim": lambda x: torch.cat((x, x), 3),
}


@pytest.mark.parametrize("name", WRONG)
def test_1d_calls_that_torch_refuses_are_refused(name):
    x = torch.randn(2, 3, 9)
    with pytest.raises(Exception) as expected:
        Apply(WRONG[name])(x)
    with pytest.raises(expected.type):
        lifted(WRONG[name])(x)


def test_1d_calls_by_other_names_and_layouts():
    x = torch.randn(2, 3, 9)
    assert lifted(lambda y: torch.concatenate((y, y), axis=1))(x).shape == (2, 12, 7)
    assert lifted(lambda y: F.conv1d(weight=torch.ones(4, 6, 1), input=y))(x).shape == (2, 4, 7)
    sparse = torch.eye(7)[:6].expand(2, 6, 7).to_sparse()
    torch.testing.assert_close(lifted(lambda y: (y + sparse) - y)(x), sparse.to_dense())


@pytest.mark.parametrize("dynamic", [False, True])
def test_row_major_inputs_of_lifted_modules_are_recorded(dynamic):
    torch.manual_seed(0)
    plain = Apply(nn.BatchNorm1d(6)).eval()
    module, x, other = to_channels_last(copy.deepcopy(plain)), torch.randn(2, 3, 9), torch.randn(5, 3, 9)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    shapes = {"x": {0: torch.export.Dim("batch")}} if dynamic else None
    exported = torch.export.export(module, (x,), dynamic_shapes=shapes).module()
    for fed in (x, other) if dynamic else (x,):
        torch.testing.assert_close(compiled(fed), plain(fed))
        torch.testing.assert_close(exported(fed), plain(fed))
    assert list(inspect.signature(module.forward).parameters) == ["x"]


class Checkpointed(nn.Module):
    def __init__(self, of):
        super().__init__()
        self.conv, self.of = nn.Conv1d(3, 6, 3), of
        self.block = nn.Sequential(nn.Conv1d(6, 4, 3), nn.BatchNorm1d(4), nn.ReLU())

    def forward(self, x):
        x = self.conv(x)
        if self.of == "part":
            return checkpoint(self.block, x, use_reentrant=False)
        if self.of == "function":
            contexts = (contextlib.nullcontext(), Lifting())
            return checkpoint(lambda x: self.block(x), x, use_reentrant=False, context_fn=lambda: contexts)
        return self.block(x)


@pytest.mark.parametrize("of", ["part", "function"])
def test_checkpoints_compute_again_what_they_computed(of):
    torch.manual_seed(0)
    plain = Checkpointed(None)
    module = copy.deepcopy(plain)
    module.of = of
    to_channels_last(module)
    if of == "part":
        to_channels_last(module.block)
    x = torch.randn(2, 3, 9)
    for network in (plain, module):
        network(x).square().sum().backward()
    gradients = [[p.grad for p in network.parameters()] for network in (plain, module)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("first", ["to_channels_last", "spectral_norm"])
def test_a_parametrization_of_a_lifted_module_comes_and_goes(first):
    torch.manual_seed(0)
    module = nn.Conv1d(6, 4, 3).eval()
    for step in (to_channels_last, parametrizations.spectral_norm)[
        :: 1 if first == "to_channels_last" else -1
    ]:
        module = step(module)
    x = torch.randn(2, 6, 9)
    expected = module(x)
    assert is_channels_last(expected)
    parametrize.remove_parametrizations(module, "weight")
    assert isinstance(module, Lifted) and [name for name, _ in module.named_parameters()] == [
        "bias",
        "weight",
    ]
    torch.testing.assert_close(module(x), expected)
    parametrizations.spectral_norm(module)
    to_contiguous(module)
    assert type(module).__name__ == "ParametrizedConv1d" and not isinstance(module, Lifted)
    parametrize.remove_parametrizations(module, "weight")
    assert type(module) is nn.Conv1d


def test_a_class_derived_from_a_lifted_one_is_not_put_back():
    module = to_channels_last(nn.Conv1d(6, 4, 3))
    module.__class__ = type("Derived", (type(module),), {})
    with pytest.raises(UsageError, match="its class was derived"):
        to_contiguous(module)
    assert is_channels_last(module.weight)


class Registered(nn.Module):
    names: ClassVar[list[str]] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Registered.names.append(cls.__name__)

    def forward(self, x):
        return self.conv(x)


class Derived(Registered):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 4, 3)

    def forward(self, x):
        return super(self.__class__, self).forward(x)


def test_a_lifted_class_is_not_seen_by_the_code_of_the_original():
    module, x = to_channels_last(Derived()), torch.randn(2, 6, 9)
    assert Registered.names == ["Derived"] and module.__class__ is Derived
    assert is_channels_last(module(x))


def test_a_graph_module_can_still_be_copied():
    traced = torch.fx.symbolic_trace(Apply(nn.BatchNorm1d(6)).eval())
    x = torch.randn(2, 3, 9)
    expected = traced(x)
    to_channels_last(traced)
    torch.testing.assert_close(copy.deepcopy(traced)(x), expected)


class Pickled(nn.Sequential):
    def __reduce__(self):
        return Pickled, tuple(self.children())


def test_a_module_that_pickles_itself_is_left_to_it():
    module = to_channels_last(Pickled(nn.Conv1d(3, 4, 2)))
    x = torch.randn(2, 3, 9)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x))


def test_a_lifted_module_can_be_copied_and_saved():
    module = to_channels_last(Apply(nn.BatchNorm1d(6)).eval())
    x = torch.randn(2, 3, 9)
    expected = module(x)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(module), torch.load(buffer, weights_only=False)):
        assert type(other) is type(module) and isinstance(other, Apply)
        assert is_channels_last(other(x))
        assert torch.equal(other(x), expected)
    assert type(to_contiguous(module)) is Apply
