"""Declare target torch: the physical program in plain ATen, saved as a `.pt2`. The code is in `target.py`."""

from __future__ import annotations

from dimorder.errors import install_of
from dimorder.targets.target_info import TargetInfo

INFO = TargetInfo(
    ".pt2",
    "the program in plain ATen, for any device of torch and for torch.compile",
    install_of(),
    "dimorder.targets.torch.target:TARGET",
)
