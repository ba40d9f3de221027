"""Modules and their parts assign buffers: the program has them as its state, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from tests.marks import slow_but


class Keeps(nn.Module):
    """Returns the input of the last call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        last, self.last = self.last, x
        return last


class Swaps(nn.Module):
    """Moves values from buffer to buffer, and reads one that it has assigned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 3))
        self.register_buffer("b", torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a * 2 + self.b
        self.a, self.b = self.b, x
        return y + self.a


class Frames(nn.Module):
    """Convolves frames after those of the last call."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 4, 3)
        self.register_buffer("frames", torch.zeros(1, channels, 2))

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.cat([self.frames, x], 2)
        self.frames = frames[..., -2:]
        return self.conv(frames)


NETWORKS = {
    "itself": (Keeps(), (2, 3)),
    "parts": (nn.Sequential(Keeps(), nn.ReLU(), Keeps()), (2, 3)),
    "swaps": (Swaps(), (2, 3)),
    "a part swaps": (nn.Sequential(Swaps(), nn.ReLU()), (2, 3)),
    "frames": (nn.Sequential(Frames(3), nn.ReLU(), Frames(4)), (1, 3, 7)),
}
SUFFIXES = {"torch": "pt2", "xnnpack": "pte", "litert": "tflite"}
CASES = [(name, target) for name in NETWORKS for target in SUFFIXES]
QUICK = [("itself", "xnnpack"), ("parts", "torch"), ("a part swaps", "xnnpack"), ("frames", "litert")]


@pytest.mark.parametrize(("name", "target"), slow_but(CASES, QUICK))
def test_five_calls_of_a_file_equal_those_of_the_network(name: str, target: str, tmp_path: Path) -> None:
    network, shape = NETWORKS[name]
    network, file = copy.deepcopy(network), tmp_path / f"net.{SUFFIXES[target]}"
    before = {key: value.clone() for key, value in network.state_dict().items()}
    dimorder.lower(network, (torch.randn(shape),), target=target).save(file)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    program = dimorder.load(file)
    for _ in range(5):
        x = torch.randn(shape)
        assert torch.allclose(program(x), network(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", slow_but(SUFFIXES, ["xnnpack"]))
def test_pieces_of_any_length_follow_each_other(target: str) -> None:
    network = nn.Sequential(Frames(3), nn.ReLU(), Frames(4)).eval()
    dims = ({2: Dim("T", min=3, max=20)},)
    lowered = dimorder.lower(network, (torch.randn(1, 3, 7),), dynamic_shapes=dims, target=target)
    for length in (3, 20, 8, 5):
        x = torch.randn(1, 3, length)
        assert torch.allclose(lowered(x), network(x), rtol=1e-5, atol=1e-6)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.seen.add_(1)


@pytest.mark.parametrize("target", slow_but(SUFFIXES, ["xnnpack"]))
def test_a_written_buffer_may_have_two_names(target: str) -> None:
    network = nn.Sequential(Counts(), nn.ReLU(), Counts())
    network[2].seen = network[0].seen
    lowered = dimorder.lower(network, (torch.randn(2, 3),), target=target)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert torch.allclose(lowered(x), network(x))


class Grows(nn.Module):
    def __init__(self, first: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("seen", first)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.seen.sum(0)


@pytest.mark.parametrize(
    ("first", "found"), [(torch.zeros(1, 3), "shape (1, 3), and a"), (None, "no tensor before")]
)
def test_a_buffer_of_another_shape_is_refused(first: Tensor | None, found: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dimorder.lower(nn.Sequential(Grows(first)), (torch.randn(2, 3),))
    assert caught.value.where == "buffer seen of the network" and caught.value.found.startswith(found)


def test_what_is_no_buffer_is_refused_at_the_second_attempt_too() -> None:
    """The first attempt leaves in the network what it was called with."""

    class Attribute(nn.Module):
        last = torch.zeros(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = x - self.last
            self.last = x
            return y

    network = Attribute()
    for _ in range(3):
        with pytest.raises(UnsupportedError, match="it keeps something that is no buffer"):
            dimorder.lower(network, (torch.randn(2, 3),))


def test_a_buffer_that_a_part_moves_to_its_own_device_is_no_state() -> None:
    class Moved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))

        def forward(self, x: Tensor) -> Tensor:
            self.table = self.table.to(device=x.device, dtype=x.dtype)
            return x * self.table

    network, x = nn.Sequential(Moved()), torch.randn(2, 3, 5)
    lowered = dimorder.lower(network, (x,))
    assert not lowered.contract.state
    torch.testing.assert_close(lowered(x), network(x))


class Same(nn.Module):
    """Assigns a buffer to itself, or a copy of it."""

    def __init__(self, same: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.5, -2.1, 1.3]))
        self.same = same

    def forward(self, x: Tensor) -> Tensor:
        self.shift = self.same(self.shift)
        return x.exp() + self.shift


@pytest.mark.parametrize("is_part", [False, True], ids=["itself", "a part"])
@pytest.mark.parametrize(
    "same",
    [lambda b: b, lambda b: b.to(torch.float32), lambda b: b.detach().clone(), lambda b: b.to("cpu")],
    ids=["itself", "type", "clone", "device"],
)
def test_a_buffer_that_keeps_its_value_is_no_state(same: Callable[[Tensor], Tensor], is_part: bool) -> None:
    network = nn.Sequential(Same(same)) if is_part else Same(same)
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    lowered = dimorder.lower(network, (x,), target="tosa")
    torch.testing.assert_close(lowered(x), network(x))


def test_a_buffer_that_loses_digits_is_state() -> None:
    network = Same(lambda b: b.half().float())
    with pytest.raises(UnsupportedError, match="the network writes to it"):
        dimorder.lower(network, (torch.ones(2, 3),), target="tosa")
