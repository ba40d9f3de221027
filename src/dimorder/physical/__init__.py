"""Try out and simplify physical programs: dense tensors in planned orders, with explicit conversions.

`dry_run` says which operators an implementation would write. `fuse_pad_into_conv`, `keep_unit_dims`,
`quantize_before_join` and `quantized_to_aten` are passes on a written program. `fuse_quantized` annotates one
with what a target computes in integers; `annotations`, `integer_functions` and `tokens` are its parts.
`wasted_levels` measures one. Nothing here chooses an order.
"""
