"""Choose one order per buffer: `problem` states what a choice costs, and `solve` finds the cheapest choice.

`plan` has the result and its proof. `solve` uses `reduction`, `relaxation`, `elimination` and `greedy`. No
torch here.
"""
