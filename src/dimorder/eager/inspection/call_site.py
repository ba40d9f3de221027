"""Find the line of a program that called an operator, and the name that it called it by."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import os
from types import CodeType, FrameType, MappingProxyType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep

# Files whose frames are between the program's own frame and an operator.
_BETWEEN = (
    _HERE,
    "<",
    *(_TORCH + path for path in ("_compile.py", "_dynamo", "_ops.py", "_tensor.py", "utils")),
)
_FUNCTIONAL = os.path.join(_TORCH, "nn", "functional.py")


def call_site(frame: FrameType | None) -> tuple[str, str]:
    """Return the function that was called, such as `softmax`, and the line outside of torch.

    A function of torch.nn.functional has a frame. Another function is read from the expression, from Python
    3.11 on.
    """
    function = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _FUNCTIONAL:
            function = code.co_name
        elif not code.co_filename.startswith(_BETWEEN):
            function = function or _expression(code, frame.f_lasti)
            if not code.co_filename.startswith(_TORCH):
                return function, f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return function, ""


@functools.lru_cache(maxsize=4096)
def _expression(code: CodeType, instruction: int) -> str:
    """Return the name that an instruction calls, or an operator such as `+`; "" if it is unknown."""
    if not hasattr(code, "co_positions"):
        return ""
    first, last, start, end = next(itertools.islice(code.co_positions(), instruction // 2, None))
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[(first or 1) - 1 : last]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        parsed = ast.parse(b"".join(lines), mode="eval").body
    except SyntaxError:
        return ""
    if isinstance(parsed, ast.Call):
        return parsed.func.attr if isinstance(parsed.func, ast.Attribute) else ast.unparse(parsed.func)
    if isinstance(parsed, ast.BinOp):
        return _SYMBOLS.get(type(parsed.op), "")
    return "[]" if isinstance(parsed, ast.Subscript) else ""


_SYMBOLS = MappingProxyType(
    {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
)
