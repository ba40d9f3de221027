"""Constants that carry their integers: how their scales are held, and compared."""

import pytest
import torch

from dimorder.graph.quantized import Scaled, are_equal

SCALES = torch.tensor([[0.5], [0.25], [2.0]])


def _weight(scales: torch.Tensor = SCALES) -> Scaled:
    return Scaled.of(torch.arange(15, dtype=torch.int8).reshape(3, 5), scales)


MOVES = {
    "clone": lambda x: x.clone(),
    "detached copy": lambda x: x.detach().clone(memory_format=torch.contiguous_format),
    "permuted copy": lambda x: x.permute(1, 0).contiguous(),
    "reshaped": lambda x: x.reshape(3, 5, 1, 1).permute(0, 2, 3, 1).contiguous(),
    "flipped": lambda x: x.flip(1),
    "cut": lambda x: x[:, 1:4].contiguous(),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_move_writes_no_scale_for_each_element(move):
    weight = _weight()
    moved = MOVES[move](weight)
    assert torch.equal(moved.as_subclass(torch.Tensor), MOVES[move](weight.as_subclass(torch.Tensor)))
    scales = moved.integers.scales
    assert scales.shape == moved.shape and scales.untyped_storage().nbytes() == SCALES.nbytes
    assert torch.equal(moved.integers.values * scales, moved.as_subclass(torch.Tensor))


def test_scales_that_differ_in_one_place_in_the_middle_are_kept():
    scales = torch.ones(3, 5)
    scales[1, 2] = 3.0
    moved = _weight(scales).permute(1, 0).contiguous()
    assert torch.equal(moved.integers.scales, scales.T) and moved.integers.scale is None


def test_the_size_of_groups_is_read_from_scales_that_are_held_once():
    assert _weight().integers.group_size() == 5
    pairs = torch.tensor([1.0, 3.0]).repeat_interleave(2).expand(3, 4)
    assert Scaled.of(torch.ones(3, 4, dtype=torch.int8), pairs).integers.group_size() == 2


def test_equal_constants_may_hold_their_scales_differently():
    written, once = _weight(SCALES.expand(3, 5).clone()), _weight()
    assert are_equal(written, once) and are_equal(once, written)
    assert not are_equal(once, _weight(SCALES * 2))
    assert not are_equal(once, once.permute(1, 0))
