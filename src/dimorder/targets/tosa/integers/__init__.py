"""TOSA INT: quantised networks as graphs of integers, and what such a graph gives."""
