"""Orders of dimensions and axes as values, with their laws; no torch."""
