"""Read and write fx graphs: schemas of operators, tracing and rewriting of nodes, exported programs.

`schema` binds arguments to names, `tracing` writes nodes in place of others, `exported` makes exported
programs of changed modules, `branches` calls the graphs of a `torch.cond`. `quantized_constant` and
`integer_type` say what integers stand for. Nothing here knows what an operator computes.
"""
