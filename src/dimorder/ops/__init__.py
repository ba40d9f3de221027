"""Hold what is known about ATen operators: one value for each, one file for each family, one table of all.

An `Operator` is spelt in terms of others, or it says how it relates the axes of its operands and results,
and by which physical operators it runs in which orders. `dialect` defines physical operators that ATen
lacks. Adding an operator is one entry here, and one row in each target's table.
"""
