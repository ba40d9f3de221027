"""Quantize a float network by torchao's PT2E, with the target's own quantizer.

`quantize` runs PT2E on a `calibration`. `clamps`, `transposed` and `biases` improve it, and `fidelity`
measures it.
"""
