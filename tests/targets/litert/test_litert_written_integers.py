"""Test that integers written for LiteRT agree with the physical program, the model and the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError

pytest.importorskip("ai_edge_litert")

from dimorder.graph.quantized import IntegerType
from dimorder.targets.litert import exact, integers, model
from dimorder.targets.litert.flatbuffer import TfLiteTensor
from dimorder.targets.litert.writer import LiteRtWriter
from tests.targets.quantised import Between, Difference, quantised

X, Y = (torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


Write = Callable[..., Any]
write, quantize, weight = LiteRtWriter._write, LiteRtWriter.quantize, integers.weight


def other_type(**wrong: Callable[[Any], Any]) -> Write:
    """A writer that quantises floats to another type."""

    def written(writer: LiteRtWriter, value: Any, of: IntegerType) -> Any:
        return quantize(
            writer, value, replace(of, **{k: change(getattr(of, k)) for k, change in wrong.items()})
        )

    return written


def swaps(writer: LiteRtWriter, kind: str, inputs: Any, *rest: Any) -> Any:
    return write(writer, kind, inputs[::-1] if kind == "SUB" else inputs, *rest)


def other_channels(constant: Any, outputs: int) -> TfLiteTensor:
    """A weight whose scales are each that of the channel beside its own."""
    made = weight(constant, outputs)
    assert made.scales is not None
    first, *others = made.scales.scales
    return replace(made, scales=replace(made.scales, scales=(*others, first)))


WRONG: dict[str, tuple[Any, str, Write]] = {
    "a scale": (LiteRtWriter, "quantize", other_type(scale=lambda scale: scale * 1.03)),
    "a zero point": (LiteRtWriter, "quantize", other_type(zero_point=lambda point: point + 1)),
    "a swapped operand": (LiteRtWriter, "_write", swaps),
    "the scales of a weight": (integers, "weight", other_channels),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_writer_that_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home, function, wrong = WRONG[name]
    monkeypatch.setattr(home, function, wrong)
    told = "quantize_per_tensor .* as it was written for LiteRT"
    with pytest.raises(VerificationError, match=f"(?s){told}"):
        dimorder.lower(Difference(), (X, Y), target="litert")
    monkeypatch.setattr(exact, "require_meant", lambda *each: None)
    dimorder.lower(Difference(), (X, Y), target="litert")  # nothing else would find it


def with_rounding(kind: str, wrong: Callable[..., Tensor]) -> Mapping[str, Any]:
    return MappingProxyType({**model.ROUNDINGS, kind: wrong})


def test_bits_that_are_not_the_models_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = model.ROUNDINGS["SUB"]

    def off(k: Any) -> Tensor:
        y = right(k)
        y.view(-1)[3] += 1
        return y

    difference = Between(torch.sub, (0.0431, 3))
    monkeypatch.setattr(model, "ROUNDINGS", with_rounding("SUB", off))
    with pytest.raises(VerificationError, match=r"1 of 420 .* are not what its integer kernels should give"):
        dimorder.lower(difference, (X, Y), target="litert")


def test_a_reference_kernel_that_is_off_by_more_than_a_quantum_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifact = dimorder.lower(Difference(), (X, Y), target="litert").artifact
    right = model.ROUNDINGS["CONV_2D"]
    monkeypatch.setattr(model, "ROUNDINGS", with_rounding("CONV_2D", lambda k: right(k) + 2 * (right(k) < 0)))
    (run,) = artifact.other_runs.values()
    with pytest.raises(VerificationError, match=r"CONV_2D .*reference kernels\n.*off by up to [23]"):
        run([X, Y])


def test_what_is_rounded_from_floats_is_an_output_of_the_second_file_alone() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return quantised(quantised(x, 0.0247, 5).softmax(-1), 1 / 256, -128) * 2

    artifact = dimorder.lower(Twice(), (X,), target="litert").artifact
    run: Any = artifact.exact
    assert len(run._rounded) == 1 and len(run.written.graph.outputs) == 1
    assert torch.equal(run([X])[0], artifact.run([X])[0])
