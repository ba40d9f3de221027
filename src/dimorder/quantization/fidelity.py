"""Measure the error of a quantised network: against the float network in dB, against PT2E's in quanta."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from dimorder.capture.calls import call_leaves
from dimorder.graph.nodes import tensors_in
from dimorder.graph.quantized import DEQUANTIZE
from dimorder.lowered import Lowered
from dimorder.quantization.calibration import CalibrationCall


@dataclass(frozen=True)
class OutputFidelity:
    """The fidelity of one output of a lowered program, over the examples of a calibration.

    The signal-to-noise ratios in dB, of the program and of PT2E's own network, are against the float network;
    None if nothing differs. `quanta` and `off` are None unless the output is a quantised value. `quanta` is
    the largest distance from PT2E's output, in steps of the output's scale. `off` is the share of elements
    that are off by a step or more.
    """

    name: str
    snr_db: float | None
    pt2e_snr_db: float | None
    quanta: int | None
    off: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        ours, theirs = (
            "no noise" if db is None else f"{db:.1f} dB" for db in (self.snr_db, self.pt2e_snr_db)
        )
        text = f"{self.name}: {ours} against the float network, where PT2E has {theirs}"
        if self.quanta is None or self.off is None:
            return text
        return f"{text}; {self.quanta} quanta from PT2E at most, {self.off:.2%} of elements off"


def fidelity(
    original: Callable[..., Any],
    module: Callable[..., Any],
    lowered: Lowered,
    examples: Iterable[CalibrationCall],
) -> tuple[OutputFidelity, ...]:
    """Compare each output of the lowered `module` with those of the float network and of `module` itself."""
    rows = []
    with torch.no_grad():
        for call in examples:
            both = [tensors_in(run(*call.args, **call.kwargs)) for run in (original, module)]
            rows.append((*both, _run(lowered, call)))
    found = []
    for i, spec in enumerate(lowered.contract.outputs):
        real, reference, got = (
            torch.cat([row[which][i].double().flatten() for row in rows]) for which in range(3)
        )
        node: Any = lowered.program.outputs[i]
        scale = node.args[1] if node.target is DEQUANTIZE else spec.scale
        quanta, off = None, None
        if scale is not None:
            steps = ((got - reference) / scale).round().abs()
            quanta, off = int(steps.max()), float((steps > 0).double().mean())
        found.append(OutputFidelity(spec.name, _snr_db(got, real), _snr_db(reference, real), quanta, off))
    return tuple(found)


def _run(lowered: Lowered, call: CalibrationCall) -> Sequence[Tensor]:
    """Return a program's outputs as numbers, for inputs that are numbers."""
    specs, exported = iter(lowered.contract.inputs), lowered.program.exported
    leaves = [
        next(specs).quantized(leaf) if isinstance(leaf, Tensor) else leaf
        for leaf in call_leaves(exported, call.args, call.kwargs)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, exported.call_spec.in_spec)
    outputs = tensors_in(lowered.run(*args, **kwargs))
    return [spec.real(x) for spec, x in zip(lowered.contract.outputs, outputs, strict=True)]


def _snr_db(got: Tensor, wanted: Tensor) -> float | None:
    signal, noise = float((wanted**2).sum()), float(((got - wanted) ** 2).sum())
    return None if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
