"""Declare target torch: the physical program in plain ATen, saved as a `.pt2`. The code is in `target.py`."""

from __future__ import annotations

from dimorder.targets.target_info import TargetInfo

INFO = TargetInfo(
    ".pt2",
    "the program in plain ATen, for any device of torch and for torch.compile",
    "in dimorder's folder: pip install .",
    "dimorder.targets.torch.target:TARGET",
)
