"""Programs of ATen operators: what each axis means, and the physical form with explicit orders."""
