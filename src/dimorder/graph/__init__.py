"""Read, write and run fx graphs: operator schemas, tracing of nodes, exported programs.

`schema` names a call's arguments. `nodes` inserts and replaces nodes, and writes their metadata. `tracing`
writes a graph operator by operator. `exported` builds and edits exported programs. `interpreter` runs graphs,
also those that a target wrote. `branches` calls the graphs of a `torch.cond`. `quantized_constant` and
`integer_type` say which numbers quantized integers stand for, and `elements` which operators move them. No
other knowledge of operators is here.
"""
