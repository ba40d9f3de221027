"""Represent orders of dimensions and axes as values with algebraic laws, without torch."""
