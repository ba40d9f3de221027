"""Choose orders: from a captured program and a target's table to a plan, and from the plan to its program.

`annotate` finds the axes of every value, and `candidate_orders` the orders worth considering. `problem`
builds the problem, with the `capabilities` and `costs` of a target, and solves it. `rewrite` writes the
program. `check_program` checks what each stage promises.
"""
