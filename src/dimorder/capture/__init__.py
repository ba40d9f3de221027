"""Bring a network into the normal form in which it is planned: one functional program of known operators.

`captured` is the stage. The other modules are its passes, each from a program to one with the same numbers:
what export leaves behind is removed, constants are folded into weights, linears are merged or split, and
what quantizers insert becomes integers with a type.
"""
