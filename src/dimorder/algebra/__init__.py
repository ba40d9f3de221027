"""Represent orders of dimensions and axes as values with algebraic laws, without torch.

`dim_order` has whole dimensions, `axis` divides them, `layout` has blocks, and `strides` reads an order.
"""
