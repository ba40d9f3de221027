"""Target toy: what is known of it without importing torch."""

from dimorder.targets.target_info import COUNTED, TargetInfo

INFO = TargetInfo(
    ".toy",
    "a list of calls on NHWC arrays, for a toy",
    "pip install 'dimorder-toy[format]'",
    "dimorder_toy.target:TARGET",
    kind="a .toy file",
    begins=(0, b"TOYTOYS "),
    objectives={"runs": "the runs of memory that conversions move one by one", **COUNTED},
    recipes={"int8-products": "convolutions and linears of 8 bits, everything else in float32"},
)
