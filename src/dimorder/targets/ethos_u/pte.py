"""Write Vela's output as a .pte: one delegate of the Ethos-U runtime, with the contract."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from dimorder.contract import Contract, TensorSpec
from dimorder.contract_file import constant_methods, seal
from dimorder.targets.delegate import TO_NHWC, make_delegate, outer_program, write_pte
from dimorder.targets.ethos_u.vela import Compiled
from dimorder.targets.program_io import empty

BACKEND = "EthosUBackend"  # the name that the runtime registers


def pack_pte(compiled: Compiled, contract: Contract) -> bytes:
    """Return the sealed .pte.

    The runtime copies each input and output as it is in memory. So only the contract states the order.
    """
    reads, gives = ([_example(spec) for spec in specs] for specs in (contract.inputs, contract.outputs))
    root, graph = torch.nn.Module(), Graph()
    root.add_module("npu", make_delegate(BACKEND, reads, gives, compiled.stream, options=compiled.options))
    inputs = tuple(graph.placeholder(f"input_{i}") for i in range(len(reads)))
    results = graph.call_module("npu", inputs)
    graph.output(tuple(graph.call_function(operator.getitem, (results, i)) for i in range(len(gives))))
    outer = outer_program(GraphModule(root, graph), reads)
    return seal(write_pte(outer, constant_methods(contract)))


def _example(spec: TensorSpec) -> Tensor:
    shape = [int(size) for size in spec.boundary_shape]
    value = torch.empty(shape, dtype=getattr(torch, spec.dtype), device="meta")
    return empty(value, tuple(spec.boundary_order) == TO_NHWC)
