"""Our own .pte files, however fed: eager's result, or a refusal that names the input and both orders."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

import dimorder
from dimorder.errors import ContractError, UsageError, VerificationError

pytest.importorskip("executorch")


def network(channels, size):
    torch.manual_seed(channels)
    kernel = 3 if size > 1 else 1
    return nn.Sequential(
        nn.Conv2d(channels, 6, kernel), nn.PReLU(6), nn.Conv2d(6, 5, 1, groups=1), nn.Hardswish()
    ).eval()


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# How it is fed → (the network's channels and size, the tensor).
FEEDS = {
    "NCHW": ((3, 7), lambda: numbers(2, 3, 7, 9)),
    "NHWC": ((3, 7), lambda: numbers(2, 3, 7, 9).contiguous(memory_format=torch.channels_last)),
    "channel slice": ((3, 7), lambda: numbers(2, 5, 7, 9)[:, 1:4]),
    "channels-last channel slice": (
        (3, 7),
        lambda: numbers(2, 5, 7, 9).contiguous(memory_format=torch.channels_last)[:, 1:4],
    ),
    "strided step": ((3, 7), lambda: numbers(2, 3, 14, 18)[:, :, ::2, ::2]),
    "transposed view": ((3, 7), lambda: numbers(2, 3, 9, 7).transpose(2, 3)),
    "C=1": ((1, 7), lambda: numbers(2, 1, 7, 9)),
    "C=1 channels-last": ((1, 7), lambda: numbers(2, 7, 9, 1).permute(0, 3, 1, 2)),
    "H=W=1": ((3, 1), lambda: numbers(2, 3, 1, 1)),
    "H=W=1 channels-last": ((3, 1), lambda: numbers(2, 1, 1, 3).permute(0, 3, 1, 2)),
    "batch 1 from x[0].unsqueeze(0)": (
        (3, 7),
        lambda: numbers(2, 3, 7, 9).contiguous(memory_format=torch.channels_last)[0].unsqueeze(0),
    ),
    "expanded": ((3, 7), lambda: numbers(1, 3, 7, 1).expand(2, 3, 7, 9)),
    "flipped": ((3, 7), lambda: numbers(2, 3, 7, 9).flip(3)),
}


@pytest.fixture(scope="module")
def lowered(tmp_path_factory):
    """A function that lowers a network for one shape and contract, once per module."""
    folder, made = tmp_path_factory.mktemp("lowered"), {}

    def make(kind, shape, order):
        if (kind, shape, order) not in made:
            model = network(*kind)
            path = folder / f"{order}-{'x'.join(map(str, shape))}.pte"
            example = torch.randn(shape)
            dimorder.lower(model, (example,), target="xnnpack", input_orders=order, output_orders=order).save(
                path
            )
            made[kind, shape, order] = (model, path)
        return made[kind, shape, order]

    return make


@pytest.mark.parametrize("fed", FEEDS)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_adapt_gives_what_eager_gives(lowered, order, fed):
    kind, make = FEEDS[fed]
    x = make()
    model, path = lowered(kind, tuple(x.shape), order)
    with torch.no_grad():
        wanted = model(x)
    torch.testing.assert_close(dimorder.load(path)(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fed", FEEDS)
@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_error_gives_what_eager_gives_or_names_the_input_and_both_orders(lowered, order, fed):
    kind, make = FEEDS[fed]
    x = make()
    model, path = lowered(kind, tuple(x.shape), order)
    with torch.no_grad():
        wanted = model(x)
    try:
        result = dimorder.load(path, on_mismatch="error")(x)
    except ContractError as error:
        lines = str(error).splitlines()
        assert len(lines) == 3
        assert "'input'" in lines[0] and order in str(error)
        assert any(found in lines[1] for found in ("NCHW", "NHWC", "(0, ", "dense"))
    else:
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["NCHW", "NHWC"])
def test_the_result_lies_in_the_promised_order(lowered, order):
    x = numbers(2, 3, 7, 9)
    _, path = lowered((3, 7), (2, 3, 7, 9), order)
    y = dimorder.load(path)(x)
    expected = torch.contiguous_format if order == "NCHW" else torch.channels_last
    assert y.is_contiguous(memory_format=expected)
    assert not y.is_contiguous(
        memory_format=torch.channels_last if order == "NCHW" else torch.contiguous_format
    )


@pytest.mark.parametrize("order", ["CHWN", "NHWC", "NCHW"])
def test_orders_that_executorch_cannot_be_given_are_held_physically(tmp_path, order):
    model, x = network(3, 7), numbers(2, 3, 7, 9)
    path = tmp_path / "model.pte"
    dimorder.lower(model, (x,), target="xnnpack", input_orders=order, output_orders=order).save(path)
    program = dimorder.load(path)
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
    assert program.contract.inputs[0].dim_order.name == order


def test_a_wrong_emitter_is_caught() -> None:
    from dimorder.targets.table import Row
    from dimorder.targets.xnnpack.ops import OPERATORS
    from dimorder.targets.xnnpack.target import target

    wrong = {torch.ops.aten.relu.default: Row(lambda w, a: w.clamp(w.dense(a.self), 0, 0.5))}
    clamped = target(replace(OPERATORS, rows={**OPERATORS.rows, **wrong}))
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), numbers(2, 3, 7, 9)
    with pytest.raises(VerificationError) as caught:
        dimorder.lower(model, (x,), target=clamped)
    assert str(caught.value).startswith("the .pte that was emitted\n  found: output 0 differs")
    assert not dimorder.lower(model, (x,), target=clamped, run_artifact=False).verified.artifact_ran


def test_a_comparison_that_shows_little_says_so() -> None:
    x = numbers(2, 3, 7, 9)
    dead = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU())
    nn.init.zeros_(dead[0].weight)
    assert not dimorder.lower(dead, (x,)).verified.input_matters
    assert dimorder.lower(network(3, 7), (x,)).verified.input_matters
    ids = torch.tensor([[1, 0, 4]])
    assert dimorder.lower(nn.Embedding(5, 7), (ids,)).verified.input_matters


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.full((1,), 4.0))

    def forward(self, x):
        self.count += 1
        return x * self.count


class Scaled(nn.Module):
    """A convolution whose result is scaled, and divided by another tensor."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x, below, scale=1.0, mask=None):
        return self.conv(x) * scale * mask / below


def test_arguments_by_position_may_come_by_name():
    torch.manual_seed(0)
    model, x, below, mask = (
        Scaled().eval(),
        torch.randn(2, 3, 5, 7),
        torch.rand(3, 5) + 1,
        torch.rand(4, 3, 5),
    )
    lowered = dimorder.lower(model, (x, below), {"scale": 3.0, "mask": mask})
    named = {"mask": mask, "below": below, "scale": 3.0}
    wanted = model(x, **named)
    for result in (lowered(x=x, **named), lowered(x, **named)):
        torch.testing.assert_close(result, wanted)
    with pytest.raises(UsageError, match=r"found: 0 by position, by name below, scale\n"):
        lowered(below=below, scale=3.0)


def test_a_pickle_is_refused():
    with pytest.raises(UsageError, match="fix: write it with"):
        pickle.dumps(dimorder.lower(nn.ReLU(), (torch.ones(2, 3),)))


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_lowered_network_has_a_state_of_its_own(copy_of):
    lowered, x = dimorder.lower(Counter(), (numbers(2, 3),)), numbers(2, 3)
    torch.testing.assert_close(lowered(x), x * 5)
    copied = copy_of(lowered)
    torch.testing.assert_close(copied(x), x * 5)
    torch.testing.assert_close(lowered(x), x * 6)
    assert {lowered: 1, copied: 2}[lowered] == 1


def test_a_text_of_no_such_name_is_refused():
    lowered = dimorder.lower(nn.ReLU(), (numbers(2, 3),))
    assert lowered.text("plan") == str(lowered.plan)
    with pytest.raises(UsageError, match="no text 'foo'\n  fix: choose captured, plan or physical"):
        lowered.text("foo")


@pytest.mark.parametrize("name", ["torch", "ethos-u55-128"])
def test_a_target_has_a_short_repr(name):
    assert repr(dimorder.targets.find(name)) == f"Target({name!r})"
