"""Lower what nobody prepared: each architecture of transformers, at first sight."""

from __future__ import annotations

import pytest
import torch

import dimorder
from dimorder.verification.relative_error import relative_error
from tests.marks import slow_but

from . import architectures

pytest.importorskip("executorch")
pytest.importorskip("transformers")

BY_DATA = "Python decides by the elements of a tensor"
READ_OUT = "a number that is read out of a tensor"
# What the errors of the refused ones say.
REFUSED = {
    **dict.fromkeys(("fastspeech2_conformer", "fsmt", "led", "longformer", "openai_privacy_filter"), BY_DATA),
    **dict.fromkeys(("flaubert", "jetmoe", "xlm"), READ_OUT),
    **dict.fromkeys(("higgs_audio_v2", "vits"), "a result whose size the data decide"),
    "glm4_moe_lite": "Attempting to broadcast",  # torch.export traces it with other shapes than it has
    "mobilevit": "so much of a rounding",
    "paligemma": "as torch.export's program does",  # it masks otherwise while it is exported
    "rwkv": "the program writes to it",
    "switch_transformers": "Couldn't swap Linear.weight",
    "vit_mae": "random numbers",
}
QUICK = ["dpt", "exaone_moe", "cpmant", "t5gemma2"]
GROUPS = 40


@pytest.mark.parametrize("group", slow_but(["quick", *range(GROUPS)], ["quick"]))
def test_each_is_lowered_right_or_refused_for_a_known_reason(group: int | str) -> None:
    names = architectures.names()[group::GROUPS] if isinstance(group, int) else QUICK
    assert [fault for name in names if (fault := check(name))] == []


def check(name: str) -> str:
    """Return what is wrong with the lowering of an architecture, or nothing."""
    built = architectures.build(name)
    wanted = None if built is None else architectures.first_outputs(*built)
    if built is None or wanted is None:
        return f"{name} does not run" if name in QUICK else ""
    network, inputs = built
    try:
        lowered = dimorder.lower(network, inputs, target="xnnpack")
    except dimorder.DimorderError as error:
        return "" if REFUSED.get(name, "not refused") in str(error) else f"{name}: {error}"
    if name in REFUSED:
        return f"{name} is refused no longer"
    with torch.no_grad():
        after = network(*inputs)
    if not all(map(torch.equal, after, wanted)):
        return f"{name} computes otherwise after it was lowered"
    errors = [relative_error(*pair) for pair in zip(lowered(*inputs), wanted, strict=True)]
    return f"{name} is off by {max(errors)}" if max(errors) > 1e-3 else ""


@pytest.mark.slow
def test_a_quantised_network_of_which_torch_names_the_calls_anew_is_compared_call_by_call() -> None:
    """It writes positions in place, so that torch decomposes it."""
    built = architectures.build("dab-detr")
    assert built is not None
    network, (image,) = built
    quantised = dimorder.quantize(network, [image, torch.randn_like(image)])
    assert not dimorder.lower(quantised, (image,), target="xnnpack").artifact.outside
