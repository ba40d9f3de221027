"""Measure how long a network takes: lowered by dimorder, and in the runtimes that are alternatives."""
