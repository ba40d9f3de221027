"""Write a CMake project that checks a .pte on another machine: the file, inputs, and the expected outputs.

It has its own copy of dimorder's C++ loader and of `dimorder-run`, so it needs ExecuTorch and no Python.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dimorder.cmake import CPP
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.errors import UnsupportedError, UsageError, writable
from dimorder.executorch import pte
from dimorder.runtime.kernels import executorch_version
from dimorder.runtime.program import Program

_TOLERANCE = 1e-4  # of the largest magnitude, for floats; integers are compared exactly


def export_runner(
    program: str | os.PathLike[str], folder: str | os.PathLike[str], inputs: Sequence[Tensor] | None = None
) -> Path:
    """Write a ready CMake project that runs a .pte and compares its outputs with those on this machine.

    Args:
        program: a .pte of dimorder's or of another tool.
        folder: the place of the project. It must not exist, or be empty.
        inputs: a tensor for each input of the contract, of its logical shape. By default floats are drawn
            from a standard normal distribution, and so are the numbers that integers with a scale stand for.

    Returns:
        The folder.

    Raises:
        UsageError: if the folder is not empty, or cannot be written, or an input must be passed.
        ContractError: if a tensor does not keep the contract, or the file is damaged.
        UnsupportedError: if the program cannot be loaded here, or has bfloat16, which .npy files lack.

    >>> from executorch.exir import to_edge
    >>> program = to_edge(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))).to_executorch()
    >>> path = Path(tempfile.mkdtemp(), "relu.pte")
    >>> _ = path.write_bytes(program.buffer)
    >>> sorted(file.name for file in export_runner(path, path.with_suffix("")).iterdir())
    ['CMakeLists.txt', 'README.md', 'check.sh', 'dimorder', 'expected', 'inputs', 'network.pte']
    """
    path, target = Path(program), Path(folder)
    contract, method = pte.load(path)
    for spec in (*contract.inputs, *contract.outputs):
        if spec.dtype == "bfloat16":
            fix = "lower it with float32 or float16 inputs and outputs"
            raise UnsupportedError(
                f"{path}, tensor {spec.name!r}", "bfloat16, which .npy files have not", fix
            )
    writes = partial(writable, str(target), "name a folder you can write to")
    with writes():
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            found = "a folder that is not empty" if target.is_dir() else "a file"
            raise UsageError(str(target), found, "name a new folder")
    given = _draw_inputs(contract) if inputs is None else list(inputs)
    outputs = Program(path, contract, method, "adapt", "ExecuTorch").run(*given)
    with writes():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
            whole = Path(beside, "project")
            _write(whole, path, contract, given, outputs)
            whole.replace(target)
    return target


def _write(
    folder: Path, program: Path, contract: Contract, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    shutil.copytree(CPP, folder / "dimorder", ignore=shutil.ignore_patterns("project"))
    shutil.copyfile(program, folder / "network.pte")
    arguments = []
    for kind, option, tensors in (("inputs", "--input", inputs), ("expected", "--expect", outputs)):
        (folder / kind).mkdir()
        for index, tensor in enumerate(tensors):
            file = f"{kind}/{index}.npy"
            np.save(folder / file, tensor.detach().contiguous().numpy())
            arguments.append(f"{option} {file}")  # in sequence: a name may be anything, shell commands too
    arguments.append(f"--rtol {_TOLERANCE:g}")
    filled = {
        "@ARGUMENTS@": " ".join(arguments),
        "@CONTRACT@": str(contract),
        "@VERSION@": executorch_version(),
    }
    for template in sorted((CPP / "project").iterdir()):
        text = template.read_text()
        for mark, value in filled.items():
            text = text.replace(mark, value)
        (folder / template.name).write_text(text)
    (folder / "check.sh").chmod(0o755)


def _draw_inputs(contract: Contract) -> list[Tensor]:
    """Return an example of each input."""
    generator = torch.Generator().manual_seed(0)
    symbols = {symbol.name: _size(symbol) for symbol in contract.symbols}
    return [_example(spec, symbols, generator) for spec in contract.inputs]


def _size(symbol: Symbol) -> int:
    """Return the least size, but not 1 if a larger one is allowed.

    A file of another tool has upper bounds alone, even of sizes that are fixed: they fit.
    """
    if symbol.minimum == 0 and symbol.maximum is not None:
        return symbol.maximum
    least = max(symbol.minimum, symbol.step)
    larger = least + symbol.step if least == 1 else least
    return larger if symbol.maximum is None or larger <= symbol.maximum else least


def _example(spec: TensorSpec, symbols: dict[str, int], generator: torch.Generator) -> Tensor:
    shape = [symbols.get(size, 2) if isinstance(size, str) else size for size in spec.shape]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or spec.scale is not None:
        return spec.quantized(torch.randn(shape, generator=generator)).to(dtype)
    raise UsageError(
        f"input {spec.name!r}",
        f"{spec.dtype}, of which nobody knows what values are sensible",
        f"give it: --input {spec.name}=FILE.npy for each input",
    )
