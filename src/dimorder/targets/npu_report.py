"""Hold and print Vela's own estimates for a compiled graph, by operator of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dimorder.plans.explanation import Place

SHOWN = 5  # operators in the printout, those with the most cycles first


@dataclass(frozen=True)
class NpuLayer:
    """Vela's layer for one operator: `kind` is its own name for it, `macs` are multiply-accumulates."""

    place: Place
    kind: str
    cycles: int
    macs: int

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.place), "kind": self.kind, "cycles": self.cycles, "macs": self.macs}


@dataclass(frozen=True)
class NpuReport:
    """Vela's estimates for a whole graph in one configuration.

    `cycles` count the NPU's clock. They are fewer than the sum over `layers` where Vela overlaps these.
    `sram_bytes`, `dram_bytes` and `flash_bytes` are the peak use of each memory, constants included.
    """

    accelerator: str
    system_config: str
    memory_mode: str
    vela: str
    cycles: int
    milliseconds: float
    sram_bytes: int
    dram_bytes: int
    flash_bytes: int
    npu_operators: int
    cpu_operators: int
    layers: tuple[NpuLayer, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        memories = ", ".join(f"{name} {count:,} bytes" for name, count in self.memories.items())
        lines = [
            f"npu          {self.cycles:,} cycles, {self.milliseconds:.3g} ms of {self.accelerator} by Vela "
            f"{self.vela}'s estimate ({self.system_config}, {self.memory_mode})",
            f"             {memories}; {self.cpu_operators or 'no'} operators left to the CPU",
        ]
        lines += [f"             {count:12,} cycles  {place}" for place, count in self.by_place()[:SHOWN]]
        return "\n".join(lines)

    @property
    def memories(self) -> Mapping[str, int]:
        """The bytes in each memory that is used."""
        bytes_of = {"SRAM": self.sram_bytes, "DRAM": self.dram_bytes, "flash": self.flash_bytes}
        return {name: count for name, count in bytes_of.items() if count}

    def by_place(self) -> list[tuple[Place, int]]:
        """Return the cycles of each operator of the network, the largest first."""
        found: dict[Place, int] = {}
        for layer in self.layers:
            found[layer.place] = found.get(layer.place, 0) + layer.cycles
        return sorted(found.items(), key=lambda item: -item[1])
