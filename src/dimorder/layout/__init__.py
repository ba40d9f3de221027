"""Choose orders: from a captured program and a target's table to a plan, and from the plan to its program.

`annotate` finds the axes of every value, `candidate_orders` the orders worth a thought, `problem` the layout
problem with the target's `capabilities` and `costs`. `choose` asks the solver, `rewrite` writes the program,
and `check_program` says whether each stage kept what it promises.
"""
