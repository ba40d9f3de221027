"""Keep networks that run in PyTorch itself in one order, and show where they lose it.

`channels_last` and `lifting` convert modules, `conversion` tensors, fast; `inspection` watches a run.
"""
