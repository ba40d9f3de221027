"""Run `.pte` files in the stock runtime, and declare target xnnpack.

The target writes a physical program as XNNPACK delegates in a `.pte`. `emit.py` divides the program between
the delegates and portable kernels. `ops.py` lists the operators that XNNPACK computes, and `builder.py`
builds its graph. These need executorch. This module and `target.py` import it only when they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dimorder.errors import install_of
from dimorder.targets.target_info import COUNTED, XNNPACK_RECIPES, TargetInfo

if TYPE_CHECKING:
    from torch import Tensor

INFO = TargetInfo(
    ".pte",
    "an ExecuTorch program whose operators XNNPACK computes, for phones and CPUs",
    install_of("executorch"),
    "dimorder.targets.xnnpack.target:TARGET",
    kind="a .pte program",
    begins=(4, b"ET"),
    objectives={**COUNTED, "time": "nanoseconds that XNNPACK takes, as measured on such a CPU"},
    recipes=XNNPACK_RECIPES,
    options={"cpu": "the family of CPUs that --objective time plans for, such as x86_64 AVX512 AMD"},
)


def run(pte: bytes | str | Path, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of a `.pte`, as bytes or as a path, for inputs in the orders that it promises.

    The runtime checks only shapes and dtypes. An input in another order gives wrong numbers, so check first.

    >>> import torch
    >>> from dimorder.targets.xnnpack.emit import emit
    >>> class Double(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> program = torch.export.export(Double(), (torch.ones(3),))
    >>> run(emit(program).data, [torch.tensor([1.0, 2.0, 3.0])])
    [tensor([2., 4., 6.])]
    """
    from dimorder.executorch import pte as files

    method = files.method_of(pte) if isinstance(pte, bytes) else files.method_of_file(Path(pte))
    return method(inputs)
