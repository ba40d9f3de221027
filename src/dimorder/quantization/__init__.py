"""Quantize a float network by torchao's PT2E, with the target's own quantizer."""
