"""Try out and simplify physical programs: dense tensors in planned orders, with explicit conversions.

`dry_run` says what an implementation would be made of, without making it. The others are passes on a written
program, and what is read off it: `fuse_pad_into_conv`, `keep_unit_dims`, `quantized_to_aten`,
`wasted_levels`. Nothing here chooses an order.
"""
