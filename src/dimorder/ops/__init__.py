"""Define ATen operators: one value for each, one file for each family, one table of all.

An `Operator` is written in other operators, or it has a relation and implementations. The `relation` is that
of the axes of its operands and results. An implementation says by which physical operators it runs, in which
order. `dialect` defines physical operators that ATen lacks. A new operator needs one entry here, and one row
in each target's table.
"""
