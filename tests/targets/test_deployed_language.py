"""Networks of language, speech and audio that people deploy: ids, masks, states and keywords as inputs.

On target xnnpack each is one delegate; beside it run the lookup of ids and what computes on integers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree

import dimorder
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.marks import slow_but
from tests.targets.test_deployed import conversions_in_own_orders
from tests.zoo import audio, hugging_face

TOLERANCE = 1e-4
QUICK = {"bert", "gpt2_step", "silero_vad"}
NAMES = slow_but(
    (row.name for row in (*hugging_face.NETWORKS, *audio.NETWORKS) if "deployed" in row.tags), QUICK
)

# What runs beside the delegate: the rows of a table by ids, and the cast of a mask of integers. CLIP's text
# tower looks for the last token among the ids, and takes the row of features at that place.
LOOKUP, CAST = "aten::embedding.out", "dim_order_ops::_to_dim_order_copy.out"
OUTSIDE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bert", "distilbert", "t5_encoder", "gpt2", "llama"), (LOOKUP, CAST)),
    **dict.fromkeys(
        ("fnet", "gpt2_step", "whisper_decoder", "mamba", "lstm_tagger", "gru_tagger"), (LOOKUP,)
    ),
    "clip_text": (LOOKUP, CAST, "aten::eq.Scalar_out", "aten::argmax.out", "aten::index.Tensor_out"),
}


def tensors(result: object) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def error(got: object, wanted: list[Tensor]) -> float:
    return max(relative_error(*pair) for pair in zip(tensors(got), wanted, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_xnnpack(name: str, tmp_path: Path) -> None:
    row = zoo.network(name)
    module = row.build()
    args, kwargs = row.call()
    lowered = dimorder.lower(module, args, kwargs, target="xnnpack")
    assert (lowered.artifact.delegates, set(lowered.artifact.outside)) == (1, set(OUTSIDE.get(name, ())))
    told = lowered.to_dict()
    assert told["optimal"] and told["candidates"] == "complete"
    assert told["conversion_count"] <= conversions_in_own_orders(lowered)
    args, kwargs = row.call(seed=2)  # other ids, other masks, than the network was lowered with
    assert error(lowered.run(*args, **kwargs), row.run(module, seed=2)) <= TOLERANCE

    loaded = dimorder.load(lowered.save(tmp_path / f"{name}.pte"))
    fed = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    names = [spec.name for spec in loaded.contract.inputs]
    assert error(loaded(**dict(zip(names, fed, strict=True))), row.run(module, seed=2)) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", [row.name for row in (*hugging_face.NETWORKS, *audio.NETWORKS)])
def test_tosa(name: str) -> None:
    row = zoo.network(name)
    module = row.build()
    args, kwargs = row.call()
    lowered = dimorder.lower(module, args, kwargs, target="tosa")
    args, kwargs = row.call(seed=2)
    assert error(lowered.run(*args, **kwargs), row.run(module, seed=2)) <= TOLERANCE
