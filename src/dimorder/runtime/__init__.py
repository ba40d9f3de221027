"""Call a lowered program: check or adapt its inputs by the contract, then run the target's own runtime.

`program` is what a caller has. `guard` compares tensors with the contract, `quick_guard` does so for tensors
that already lie right, and `kernels` says which orders ExecuTorch's kernels handle right.
"""
