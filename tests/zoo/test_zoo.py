"""Test that a network of the zoo is repeatable, never constant, and moved by its input."""

from __future__ import annotations

import pytest
import torch

from tests import zoo

QUICK = {*zoo.networks("own"), *map(zoo.network, ["mobilenet_v3_small", "vit_128", "segformer", "wav2vec2"])}
RANDOM = [
    pytest.param(row, id=row.name, marks=[] if row in QUICK else pytest.mark.slow)
    for row in zoo.networks()
    if "pretrained" not in row.tags
]


@pytest.fixture(scope="module", params=RANDOM)
def built(request):
    return request.param, request.param.build()


def test_output_is_finite_and_depends_on_the_input(built):
    row, network = built
    for output, other in zip(*(row.run(network, seed=seed) for seed in (1, 2)), strict=True):
        assert torch.isfinite(output).all()
        assert 1e-3 < output.abs().max() < 1e4
        assert (output - other).abs().max() > 0.01 * output.abs().max()


def test_no_value_is_left_at_a_constant(built):
    row, network = built
    if "constructor" in row.tags:
        pytest.skip("it keeps its constants")
    for name, value in [*network.named_parameters(), *network.named_buffers()]:
        if value.is_floating_point() and value.numel() > 1:
            assert not (value == value.flatten()[0]).all(), name
        assert not name.endswith("running_var") or (value > 0).all(), name


@pytest.mark.parametrize("row", zoo.networks("constructor"), ids=lambda row: row.name)
def test_a_network_of_a_constructor_keeps_zeros_and_ones(row):
    values = row.build().state_dict().values()
    kept = {value.flatten()[0].item() for value in values if value.unique().numel() == 1}
    assert {0.0, 1.0} <= kept


@pytest.mark.parametrize("name", ["vit_128", "unet"])
def test_the_same_seed_builds_the_same_network(name):
    row = zoo.network(name)
    first, again, other = row.build().state_dict(), row.build().state_dict(), row.build(seed=5).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_every_row_is_a_factory_of_the_module():
    assert isinstance(zoo.tcn(), zoo.own.TCN)
    with pytest.raises(AttributeError, match="no attribute 'alexnet'"):
        _ = zoo.alexnet
