"""Hold a physical program to the network: the same numbers on random inputs whose dimensions all differ.

`verify` compares floats, `verify_integers` quantized networks. `float64_interpreter` runs either in float64,
the yardstick of both, and `fp16_accumulation` as kernels do that add up in float16.
"""
