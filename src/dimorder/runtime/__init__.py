"""Running a lowered program: its contract checked, or adapted to, and then the target's own runtime."""
