"""Bring a network into the normal form in which it is planned: one functional program of known operators.

`captured` runs the stage. The other modules are its passes, each of which keeps the program's results. They
remove leftovers of the export, fold constants into weights, and merge or split linears. They also turn the
operators that quantizers insert into typed integers.
"""
