"""Let Model Explorer open .pte files, and plans that `dimorder plan --explorer` wrote.

Model Explorer imports this module by its name when it starts with `--extensions=dimorder.explorer`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_explorer import Adapter, AdapterMetadata, ModelExplorerGraphs, graph_builder

from dimorder.errors import UsageError, install_of, installed
from dimorder.explorer.graphs import Graph, file_graph


class DimorderAdapter(Adapter):  # type: ignore[misc]
    """An adapter of Model Explorer for programs of ExecuTorch and for plans."""

    metadata = AdapterMetadata(
        id="dimorder",
        name="dimorder",
        description="ExecuTorch programs and dimorder's plans, with orders and layout conversions",
        fileExts=["pte", "json"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> ModelExplorerGraphs:
        """Return the graph of a .pte, or those of a plan's JSON."""
        path = Path(model_path)
        if path.suffix == ".json":
            graphs = _read_graphs(path)
        else:
            with installed(f"opening {path.name}", install_of("executorch")):
                from dimorder.executorch.file_graph import graph_of_file

            graphs = [file_graph(graph_of_file(model_path), path.stem)]
        return {"graphs": [_built(graph) for graph in graphs]}


def _read_graphs(path: Path) -> list[Graph]:
    try:
        return [graph for each in json.loads(path.read_text()) for graph in each["graphs"]]
    except (ValueError, TypeError, LookupError) as error:
        fix = "open what dimorder plan --explorer wrote; --json writes plans for programs"
        raise UsageError(f"opening {path.name}", "JSON without graphs of Model Explorer", fix) from error


def _built(graph: Graph) -> Any:
    nodes = [
        graph_builder.GraphNode(
            id=node["id"],
            label=node["label"],
            namespace=node["namespace"],
            attrs=[graph_builder.KeyValue(**each) for each in node["attrs"]],
            incomingEdges=[graph_builder.IncomingEdge(**each) for each in node["incomingEdges"]],
            style=graph_builder.GraphNodeStyle(**node["style"]) if "style" in node else None,
        )
        for node in graph["nodes"]
    ]
    return graph_builder.Graph(id=graph["id"], nodes=nodes)
