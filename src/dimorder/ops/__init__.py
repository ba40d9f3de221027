"""Define ATen operators: one value for each, one file for each family, one table of all.

An `Operator` is written in other operators, or it has a relation and implementations. Its `relation` says how
the axes of its operands and results correspond. An implementation says which physical operators run it, and
in which order of dimensions. `dialect` defines physical operators that ATen lacks. A new operator needs one
entry here, and one row in each target's table.
"""
