"""Hold a `.pte` with XNNPACK delegates and facts about its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dimorder.executorch import pte
from dimorder.targets import xnnpack
from dimorder.targets.base import Artifact
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.verification.network_calls import Run


@dataclass(frozen=True)
class Pte(Artifact):
    """A `.pte`, which target xnnpack seals with its contract inside.

    `delegates` and `outside` are read from the finished file. For fixed sizes and float32 it has the
    `kernels` that its delegates run. `transposes` counts the conversions inside the delegates.
    """

    data: bytes = field(repr=False)
    delegates: int
    outside: Mapping[str, int]
    reference_run: Run | None = None
    kernels: tuple[KernelRun, ...] = ()
    transposes: int = 0

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return xnnpack.run(self.data, inputs)

    def start(self) -> pte.PteMethod:
        return pte.method_of(self.data)
