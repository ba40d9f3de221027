"""Target counted: what is known of it without importing torch."""

from dimorder.targets.target_info import TargetInfo

INFO = TargetInfo(
    ".counted",
    "a count of the program's operators, and the program",
    "pip install 'dimorder-counted[format]'",
    "dimorder_counted.target:TARGET",
    kind="a .counted file",
    begins=(0, b"COUNTED "),
)
