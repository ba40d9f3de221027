"""Record what ExecuTorch's own Ethos-U backend hands to Vela."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handed_over() -> Iterator[list[bytes]]:
    """The graphs that the backend has Vela compile from now on."""
    from executorch.backends.arm.ethosu import backend

    graphs: list[bytes] = []
    compile_graph = backend.vela_compile

    def keep(graph: bytes, *args: Any, **kwargs: Any) -> Any:
        graphs.append(graph)
        return compile_graph(graph, *args, **kwargs)

    backend.vela_compile = keep
    try:
        yield graphs
    finally:
        backend.vela_compile = compile_graph
