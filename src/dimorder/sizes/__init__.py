"""Plan and write one program for ranges of sizes.

A network with dynamic sizes is exported (`export_symbolic`), and specialized at a few sizes
(`symbolic_program`, `specialize_shapes`). If it decides by sizes, one branch must be right
at all of them (`merge_branches`). It is planned once, and the plan is proven for all sizes
(`ranges`). The programs for the few sizes are merged into one (`merge_specializations`), whose constants may
be slices of the largest constant (`constants_by_size`). `affine` fits functions of sizes to numbers,
`size_table` names sizes by torch's symbols, `express_sizes` writes one in others, and `size_writer` writes
them into a graph. `size_notes` notes on nodes what one point does not show. `specialization` fixes the sizes
of the one program.
"""
