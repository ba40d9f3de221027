"""Keep networks that run in PyTorch itself in one order, and show where they lose it.

`channels_last` brings tensors and modules into channels-last, and `lifting` does so for 1-D operators. Their
copies are faster than torch's (`conversion`, `transposition`). `inspection` watches a run.
"""
