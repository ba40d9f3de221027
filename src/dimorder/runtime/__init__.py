"""Call a lowered program: check or adapt its inputs by the contract, then run the target's own runtime.

`guard` checks all tensors, `quick_guard` those in the promised order. `kernels` lists ExecuTorch's kernels.
"""
