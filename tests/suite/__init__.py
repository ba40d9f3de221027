"""What others wrote as tests, run through our lowering: ExecuTorch's backend suite, PyTorch's samples."""
