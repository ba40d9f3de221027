"""Show plans: the cost, the reason for each conversion, and the contract.

`network_plan` is what `dimorder plan` prints and explains, and `state_plan` does the same for buffers that a
network writes. `printing` writes programs as tables, and `make_contract` makes the contract.
"""
