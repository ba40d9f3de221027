"""Test networks that decide by dynamic sizes: they lower only if one branch is right at all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.errors import UnsupportedError
from dimorder.graph.exported import own_module
from dimorder.sizes.export_symbolic import export_symbolic
from dimorder.verification.relative_error import relative_error

N, T = Dim("N", min=1, max=6), Dim("T", min=6, max=40)
LENGTHS = ({0: N, 2: T},)


class Convolved(nn.Module):
    """A convolution whose windows touch, after or before what is decided by the length."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.conv = nn.Conv1d(3, 4, 5, stride=5)


class PaddedIfNeeded(Convolved):
    """Pads to whole windows, if the last one is not whole."""

    def forward(self, x: Tensor) -> Tensor:
        gap = (5 - x.shape[2] % 5) % 5
        if gap > 0:
            x = F.pad(x, (0, gap))
        return self.conv(x).relu()


class PaddedToEven(nn.Module):
    """Pads odd lengths, of which there are fewer than even ones, and deeper once more."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.first, self.second = nn.Conv1d(3, 4, 2, stride=2), nn.Conv1d(4, 5, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.first, self.second):
            rest = x.shape[2] % 2
            if rest > 0:
                x = F.pad(x, (0, rest))
            x = conv(x)
        return x


class CroppedAfter(Convolved):
    """Pads by a whole window where nothing needs it, and cuts off what that adds."""

    def forward(self, x: Tensor) -> Tensor:
        rest = x.shape[2] % 5
        gap = 5 - rest if rest > 0 else 0
        y: Tensor = self.conv(F.pad(x, (0, gap))).repeat_interleave(5, 2)
        return y[:, :, : x.shape[2]]


class Resized(nn.Module):
    """Resizes pictures of an odd height or width, and the result back."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h, w = x.shape[2:]
        even = (h + 1) // 2 * 2, (w + 1) // 2 * 2
        is_odd = even[0] != h or even[1] != w
        y: Tensor = self.conv(F.interpolate(x, even, mode="bilinear") if is_odd else x)
        return F.interpolate(y, (h, w), mode="bilinear") if is_odd else y


class Patched(nn.Module):
    """Resizes to whole patches of two rows, deep in the network and deeper, and reads these."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = conv(x)
            if i > 1:
                n, c, h, w = x.shape
                even = -(-h // 2) * 2
                if even != h:
                    x = F.interpolate(x, (even, w), mode="bilinear")
                y = x.reshape(n, c, even // 2, 2, w).transpose(2, 3).reshape(n, c, 2, -1).softmax(-1)
                x = x + y.reshape(n, c, 2, even // 2, w).transpose(2, 3).reshape(n, c, even, w)
        return x


class Differing(Convolved):
    """Gives other numbers at one length."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.pad(x, (0, 4)))
        return y.exp() if x.shape[2] == 27 else y


class DifferingWithin(Convolved):
    """Gives other numbers at one length, of which only one of two branches knows."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.pad(x, (0, 4)))
        if x.shape[2] % 4:
            return F.pad(y, (1, 2))[:, :, 1:-2]
        return y + 0.01 if x.shape[2] // 4 == 7 else y


class Shorter(Convolved):
    """Pads by a whole window where nothing needs it: the result has one element more."""

    def forward(self, x: Tensor) -> Tensor:
        rest = x.shape[2] % 5
        y: Tensor = self.conv(F.pad(x, (0, 5 - rest if rest > 0 else 0)))
        return y


class Raising(Convolved):
    """Takes no whole windows."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 5 == 0:
            raise ValueError("whole windows")
        y: Tensor = self.conv(x)
        return y


@pytest.mark.parametrize("length", [12, 15])
@pytest.mark.parametrize("network, target", [(PaddedIfNeeded(), "xnnpack"), (CroppedAfter(), "torch")])
def test_a_padding_by_none_may_be_left_out(network: nn.Module, target: str, length: int) -> None:
    lowered = dimorder.lower(network, (torch.randn(2, 3, length),), target=target, dynamic_shapes=LENGTHS)
    for batch, size in ((1, 6), (6, 40), (3, 15), (4, 27)):
        x = torch.randn(batch, 3, size)
        assert relative_error(lowered(x), network(x)) < 1e-5


def test_the_branch_that_is_right_need_not_be_that_of_the_most_sizes() -> None:
    network = PaddedToEven()
    lowered = dimorder.lower(network, (torch.randn(2, 3, 12),), target="torch", dynamic_shapes=LENGTHS)
    for batch, size in ((1, 6), (6, 40), (3, 17), (4, 38), (2, 11)):
        x = torch.randn(batch, 3, size)
        assert relative_error(lowered(x), network(x)) < 1e-5


def test_a_resize_to_the_same_size_may_be_left_out_if_either_of_two_sizes_decides() -> None:
    sizes = ({2: Dim("H", min=6, max=17), 3: Dim("W", min=6, max=20)},)
    network = Resized()
    lowered = dimorder.lower(network, (torch.randn(1, 3, 13, 18),), target="torch", dynamic_shapes=sizes)
    for shape in ((1, 3, 6, 8), (1, 3, 17, 20), (1, 3, 12, 9), (1, 3, 7, 11)):
        x = torch.randn(shape)
        assert relative_error(lowered(x), network(x)) < 1e-5


def test_quotients_of_quotients_that_torch_takes_for_fractions_decide_too() -> None:
    """torch's own search for sizes to suggest ends in a contradiction here."""
    network, x = Patched(), torch.randn(1, 3, 83, 64)
    program = export_symbolic(network, (x,), None, ({2: Dim("H", min=64, max=100)},))
    assert program is not None
    for size in (64, 65, 83, 100):
        x = torch.randn(1, 3, size, 64)
        assert relative_error(own_module(program.exported)(x), network(x)) < 1e-5


@pytest.mark.parametrize(
    "network, found",
    [
        (Differing(), "the network needs T != 27"),
        (DifferingWithin(), "the network needs (T % 4) != 0"),
        (Shorter(), "the network needs (T % 5) > 0"),
        (Raising(), "the network needs (T % 5) != 0"),
    ],
)
def test_a_network_whose_branches_differ_at_a_size_is_refused(network: nn.Module, found: str) -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.export of") as error:
        dimorder.lower(network, (torch.randn(2, 3, 13),), target="torch", dynamic_shapes=LENGTHS)
    assert error.value.found.startswith(found)
