"""Choose orders: from a captured program and a target's table to a plan, and from the plan to its program.

`annotate` finds the axes of every value, `candidate_orders` the orders worth considering, and `problem` the
layout problem with the target's `capabilities` and `costs`. `choose` asks the solver, and `rewrite` writes
the program. `check_program` and `check_calls` check what each stage promises.
"""
