"""Bring a network into the normal form in which it is planned: one functional program of known operators.

`captured` is the stage. The other modules are its passes, each from a program to one with the same numbers.
They remove leftovers of the export, fold constants into weights, and merge or split linears. They also turn
what quantizers insert into integers with a type.
"""
