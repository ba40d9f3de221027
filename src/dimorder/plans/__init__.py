"""Show plans: the cost, the reason for each conversion, and the contract.

`network_plan` and `state_plan` explain, `printing` writes programs as tables, `make_contract` the contract.
"""
