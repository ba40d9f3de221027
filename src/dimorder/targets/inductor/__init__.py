"""Declare target inductor: the physical program compiled to machine code in a `.pt2`.

The code is in `target.py`.
"""

from __future__ import annotations

from dimorder.targets.target_info import TargetInfo

INFO = TargetInfo(
    ".pt2",
    "machine code for this kind of CPU, by AOTInductor",
    "install a C++ compiler, for example: apt-get install g++",
    "dimorder.targets.inductor.target:TARGET",
    member="/data/aotinductor/",
)
