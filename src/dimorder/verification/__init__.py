"""Compare a physical program with the network: the same numbers on random inputs.

`verify` compares floats, and `verify_integers` quantised networks. `network_calls` calls a network and its
programs, and `amplified` compares them on inputs where a rounding may count for much. `numerics` runs either
in float64, the reference of both. `fp16_accumulation` runs a network as kernels do that add up in float16.
`arithmetic` has the sums and roundings of integer kernels, which the targets' models use. `differences`
compares integers. `reference` has a network's outputs and how exact they are, and `selections` the places
that it selects.
"""
