"""Show plans: what a plan says of a network, why each conversion is there, what a program promises.

`network_plan` is what `dimorder plan` prints and explains, `state_plan` the same of buffers that are written,
`printing` writes programs as tables, and `make_contract` is the promise at a program's inputs and outputs.
"""
