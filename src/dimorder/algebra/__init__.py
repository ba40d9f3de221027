"""Represent orders of dimensions and axes as values with algebraic laws, without torch.

A `dim_order` is a permutation of dimensions, a `layout` one of axes, into which dimensions are divided
(`axis`). `strides` reads an order from a tensor's strides.
"""
