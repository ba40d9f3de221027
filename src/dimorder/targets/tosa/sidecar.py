"""Write and read the companion file of a TOSA graph: its contract as JSON, sealed to that very graph.

A flatbuffer has no place for either. `model.tosa` is read with `model.tosa.json`, and with no other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dimorder.contract import Contract, TensorSpec
from dimorder.errors import ContractError, UsageError
from dimorder.targets.tosa.dtypes import AT_BOUNDARY
from dimorder.targets.tosa.graph import TosaTensor, inspect_tosa

SUFFIX = ".json"
_SEAL = "seal"


def encode(data: bytes, contract: Contract) -> bytes:
    """Return the content of the companion file: the keys of the contract, and the seal.

    >>> sorted(json.loads(encode(b"", Contract((), ()))))
    ['format', 'inputs', 'outputs', 'seal', 'symbols', 'version']
    """
    entries = contract.to_dict()
    return (json.dumps({**entries, _SEAL: _seal(data, entries)}) + "\n").encode()


def companion_of(file: Path) -> Path:
    """Return the path of a graph's companion file."""
    return file.with_name(file.name + SUFFIX)


def read(file: Path) -> tuple[bytes, Contract]:
    """Read a graph and its contract, and check that they belong together and agree on every shape and type.

    Raises `UsageError` if a file cannot be read. Raises `ContractError` if a file is damaged or belongs to
    another. Raises `UnsupportedError` if tosa-tools is not installed.
    """
    companion = companion_of(file)
    data = _bytes(file, file, "give the path of a .tosa file")
    text = _bytes(file, companion, f"copy it with {file.name}, or lower the program again")
    try:
        contract, entries = Contract.from_json(text.decode()), json.loads(text)
    except (UnicodeDecodeError, ContractError) as error:
        found = error.found if isinstance(error, ContractError) else str(error)
        raise _refused(file, f"{companion.name}: {found}") from error
    if entries.pop(_SEAL, None) != _seal(data, entries):
        raise _refused(file, f"{companion.name} is not of these {len(data)} bytes (its seal differs)")
    graph = inspect_tosa(data)
    for kind, specs, tensors in (
        ("inputs", contract.inputs, graph.inputs),
        ("outputs", contract.outputs, graph.outputs),
    ):
        promised, held = _promised(specs), _held(tensors)
        if promised != held:
            raise _refused(
                file, f"{kind} {held or 'none'}, where {companion.name} promises {promised or 'none'}"
            )
    return data, contract


def _seal(data: bytes, entries: Mapping[str, Any]) -> str:
    """Return a SHA-256 of both.

    An order that is edited by hand fits the same shapes, and gives wrong numbers.
    """
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode() + b"\n" + data).hexdigest()


def _bytes(file: Path, path: Path, fix: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"loading {file}", f"{path.name}: {error.strerror or error}", fix) from error


def _promised(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(
        f"{'x'.join(map(str, spec.dim_order.physical_shape(spec.shape)))}:"
        f"{AT_BOUNDARY.get(getattr(torch, spec.dtype), spec.dtype)}"
        for spec in specs
    )


def _held(tensors: Sequence[TosaTensor]) -> str:
    return ", ".join(f"{'x'.join(map(str, tensor.shape))}:{tensor.dtype}" for tensor in tensors)


def _refused(file: Path, found: str) -> ContractError:
    return ContractError(f"loading {file}", found, "copy both files again, or lower the program again")
