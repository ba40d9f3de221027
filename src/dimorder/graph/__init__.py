"""Read, write and run fx graphs: nodes and their metadata, tracing, exported programs.

`nodes` reads, inserts and replaces nodes. `tracing` writes a graph operator by operator. `exported` builds
and edits exported programs. `interpreter` runs graphs, also those that a target wrote. `branches` calls the
graphs of a `torch.cond`. `expressions` computes expressions of sizes. `quantized` says which numbers integers
stand for, and `elements` says which operators only move elements. No other knowledge of operators is here.
"""
