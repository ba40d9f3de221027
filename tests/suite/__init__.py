"""Run tests that others wrote through our lowering: ExecuTorch's backend suite, PyTorch's samples."""
