"""Call a lowered program: check or adapt its inputs by the contract, then run the target's own runtime.

`guard` compares tensors with the contract, `quick_guard` those that lie right; `kernels` are ExecuTorch's.
"""
