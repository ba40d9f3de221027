"""Quantize a float network by torchao's PT2E, with the target's own quantizer.

`recipes` are the ways, `calibration` reads example inputs, `quantize` runs PT2E, `clamps` and `biases` make
its result better, and `fidelity` compares it with the float network.
"""
