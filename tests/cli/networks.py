"""Small networks that the command line is given by name, and factories that go wrong."""

from __future__ import annotations

import contextlib
import functools
import sys
import time

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """One convolution, one mean, one dense layer."""

    def __init__(self, width: int = 6, padding: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=padding)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.conv(x)).mean((2, 3))))


class Small(nn.Module):
    """Doubles pictures, but not those three pixels high."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.shape[2] == 3 else 2 * x


def half(dtype: str) -> nn.Module:
    """`Tiny` in half precision."""
    torch.manual_seed(3)
    return Tiny().eval().to(getattr(torch, dtype))


PARTIAL = functools.partial(half)  # has no __name__


class TwoInTwoOut(nn.Module):
    def forward(self, image: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
        return image * 2, torch.relu(sound)


class Ids(nn.Module):
    """Takes indices; any other than 0 and 1 is out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 4)

    def forward(self, ids: Tensor, *, mask: Tensor) -> Tensor:
        return self.table(ids) * mask[..., None]


class Scaled(nn.Module):
    """Takes tensors in a list, and tensors by any name."""

    def forward(self, *scales: Tensor, **batch: Tensor) -> Tensor:
        image = batch.get("image", torch.ones(1))
        return torch.stack([(scale * image).mean() for scale in scales])


class Named(nn.Module):
    """Takes tensors in a dict."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch.get("image", torch.ones(1)) * 2


class Listed(nn.Module):
    """Takes tensors in a list."""

    def forward(self, images: list[Tensor]) -> Tensor:
        return images[0] + images[1]


class Unruly(nn.Module):
    """A matrix inverse, which no rule knows, between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.linalg.inv(x + torch.eye(x.shape[-1]) * 50)
        return self.second(x)


READY = nn.Conv2d(3, 4, 3)
A_NUMBER = 3


def fails(width: int = 1) -> nn.Module:
    raise ValueError("the weights\nare missing")


def exits(code: int = 0) -> nn.Module:
    sys.exit(code)


class Exits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        sys.exit(0)


def no_network() -> str:
    return "weights.bin"


def sleeps() -> nn.Module:
    """In an exec(), through which CPython lets no interrupt pass unnoticed."""
    exec("time.sleep(60)", {"time": time})
    return Tiny()


def swallows_interrupts() -> nn.Module:
    """As imports inside of libraries do."""
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(60)
    return Tiny()


def is_noisy() -> nn.Module:
    print("noise on stdout")
    return Tiny()
