"""Show plans: the cost, the reason for each conversion, and the contract.

`network_plan`, `explanation` and `state_plan` explain, `printing` writes programs as tables, and
`make_contract` makes the contract.
"""
