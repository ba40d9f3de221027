"""dimorder: the memory-format layer for PyTorch."""
