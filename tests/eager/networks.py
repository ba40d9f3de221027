"""Small networks that are made channels-last."""

from __future__ import annotations

import sys

from torch import nn
from torch.nn import functional as F

# Python 3.10 knows the names of functions in torch.nn.functional alone.
KNOWS_EACH_CALL = sys.version_info >= (3, 11)


class Apply(nn.Module):
    """A convolution and then one function, with batch-norm and the like as modules."""

    def __init__(self, then) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3)
        self.then = then

    def forward(self, x):
        return self.then(self.conv(x))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3)

    def forward(self, x):
        return self.conv2(F.relu(self.norm(self.conv1(x))))
