"""Write a contract into a .pte: as JSON, as lines for C (cpp/include/dimorder/contract.h), with a seal."""

from __future__ import annotations

import hashlib
import re
import struct
from mmap import mmap

from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.errors import UsageError

CONTRACT_METHOD = "dimorder_contract"
LINES_METHOD = "dimorder_contract_lines"
LINES_VERSION = 1
SEAL_METHOD = "dimorder_seal"
_SEAL = b"dimorder sha256 "
# What a file with a seal, or with the method of one, has in it: one pass over the bytes finds both.
_MARKS = re.compile(re.escape(_SEAL) + b"|" + SEAL_METHOD.encode())
_UNSEALED = b"0" * 64
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-:/+*()[]^")


def constant_methods(contract: Contract) -> dict[str, str]:
    """Return what carries a contract in a .pte, for ExecuTorch's `constant_methods`; `seal` fills one."""
    return {
        CONTRACT_METHOD: contract.to_json(),
        LINES_METHOD: contract_lines(contract),
        SEAL_METHOD: (_SEAL + _UNSEALED).decode(),
    }


def seal(pte: bytes) -> bytes:
    """Return a .pte with the SHA-256 of its bytes written into it.

    The digest is computed with zeros in its own place, for which `constant_methods` makes room. ExecuTorch
    checks the lengths in a file but not its content: a damaged file may crash the process or return wrong
    numbers.
    """
    places = [match.end() for match in re.finditer(re.escape(_SEAL), pte)]
    if len(places) != 1 or pte[places[0] : places[0] + 64] != _UNSEALED:
        raise UsageError(
            "seal",
            f"{len(places)} places for a seal, or a program that is sealed already",
            "build the program with constant_methods=contract_file.constant_methods(...), and seal it once",
        )
    digest = hashlib.sha256(pte).hexdigest().encode()
    return pte[: places[0]] + digest + pte[places[0] + 64 :]


def is_intact(pte: bytes | mmap) -> bool | None:
    """Return whether the bytes are those that were sealed; None if they have no seal.

    A file that names a seal and has none is damaged.
    """
    is_named = False
    for mark in _MARKS.finditer(pte):
        if mark[0] == _SEAL:
            place = mark.end()
            break
        is_named = True
    else:
        return False if is_named else None
    if pte[place : place + 64] == _UNSEALED:
        return None
    with memoryview(pte) as data:
        digest = hashlib.sha256(data[:place])
        digest.update(_UNSEALED)
        digest.update(data[place + 64 :])
    return digest.hexdigest().encode() == pte[place : place + 64]


def contract_lines(contract: Contract) -> str:
    """Write each input, output, dynamic size and state of a contract as one line.

    A size is a number, `$K` for dynamic size K, or `=TEXT` if it is computed from dynamic sizes. A scale is
    written as the bits of its double in hexadecimal, its zero point, and the scale as messages show it:
    exact, short. The first line counts the others, and the last line is `end`.

    >>> from dimorder.algebra.dim_order import DimOrder
    >>> from dimorder.contract import Symbol, TensorSpec
    >>> x = TensorSpec("x", ("n", 3, 5), "int8", DimOrder(0, 2, 1), scale=0.5, zero_point=-1)
    >>> print(contract_lines(Contract((x,), (), (Symbol("n", 1, 8),))), end="")
    dimorder-contract 1 1 0 1 0
    input x int8 physical 3 $0 3 5 0 2 1 scale 3fe0000000000000 -1 0.5 0.5
    symbol n 1 8 1
    end
    """
    declared = {symbol.name: symbol for symbol in contract.symbols}
    used = [size for spec in contract.inputs for size in spec.shape if isinstance(size, str)]
    symbols = {**declared, **{name: Symbol(name) for name in used if name not in declared}}
    index = {name: place for place, name in enumerate(symbols)}
    counts = (len(contract.inputs), len(contract.outputs), len(symbols), len(contract.state))
    lines = [f"dimorder-contract {LINES_VERSION} {' '.join(map(str, counts))}"]
    lines += [_tensor_line("input", spec, index) for spec in contract.inputs]
    lines += [_tensor_line("output", spec, index) for spec in contract.outputs]
    for symbol in symbols.values():
        maximum = "none" if symbol.maximum is None else symbol.maximum
        lines.append(f"symbol {_word(symbol.name)} {symbol.minimum} {maximum} {symbol.step}")
    for state in contract.state:
        sizes = " ".join(map(str, (len(state.shape), *state.shape)))
        lines.append(f"state {_word(state.name)} {state.dtype} {sizes} {_word(state.order)}")
    return "\n".join([*lines, "end", ""])


def _tensor_line(kind: str, spec: TensorSpec, index: dict[str, int]) -> str:
    words = [kind, _word(spec.name), spec.dtype, str(spec.boundary), str(len(spec.shape))]
    words += [_size(size, index) for size in spec.shape]
    words += map(str, spec.dim_order)
    if spec.scale is not None:
        bits = struct.pack(">d", spec.scale).hex()
        words += ["scale", bits, str(spec.zero_point), repr(float(spec.scale)), f"{spec.scale:.6g}"]
    return " ".join(words)


def _size(size: int | str, index: dict[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    return f"${index[size]}" if size in index else f"={_word(size)}"


def _word(text: str) -> str:
    """Write a text as one word of printable ASCII: other bytes of its UTF-8 as `%` and two hex digits."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode())
