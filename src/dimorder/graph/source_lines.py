"""Name the operators of a graph for readers, and find the user's source lines that they come from."""

from __future__ import annotations

from pathlib import Path

import torch


def where(node: torch.fx.Node) -> str:
    """Return where in the user's source an operator comes from: `file.py:12, in features.0`."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(modules[-1][0]) if modules else ""
    for line in reversed((node.meta.get("stack_trace") or "").splitlines()):
        line = line.strip()
        written = line.startswith('File "') and not line.startswith('File "<')  # by a person, not by torch
        if written and "/torch/nn/modules/" not in line:
            path, number = line.split('"')[1], line.split("line ")[1].split(",")[0]
            return f"{Path(path).name}:{number}" + (f", in {module}" if module else "")
    return module or node.name


def operator_name(node: torch.fx.Node) -> str:
    """Return an operator's name for readers: `aten.convolution`, `placeholder x`, `output output`."""
    if node.op != "call_function":
        return f"{node.op} {node.name}"
    return str(node.target).removesuffix(".default")
