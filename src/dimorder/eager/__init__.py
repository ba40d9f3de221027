"""Keep networks that run in PyTorch itself in one order, and show where they lose it.

Tensors and modules are brought into channels-last (`channels_last`), also 1-D ones (`lifting`), by copies that
are faster than torch's (`conversion`, `transposition`). `inspection` watches a run. Nothing here lowers.
"""
