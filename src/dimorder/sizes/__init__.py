"""Plan and write one program for ranges of sizes.

A network with dynamic sizes is exported with them (`export_symbolic`), specialized at a few sizes
(`symbolic_program`, `specialize_shapes`), planned once, and proven for all of them (`ranges`). The programs
for these sizes are merged into one (`merge_specializations`), whose constants may be slices of
the largest (`constants_by_size`). `affine` explains numbers by sizes, `size_table` names them by torch's
symbols, and `size_writer` writes them into a graph. `specialization` fixes the sizes of the one program.
"""
