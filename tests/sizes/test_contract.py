"""The contract of a program for a range of sizes: in its file, and held to by its guard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.contract import Contract
from dimorder.errors import ContractError
from dimorder.verification.relative_error import relative_error
from tests import zoo
from tests.sizes.symbols import PICTURES, RANGES, TARGETS, Gated, lower, sized


def test_a_file_is_loaded_and_run_at_every_size_in_any_order(tmp_path: Path) -> None:
    module = zoo.network("unet").build()
    program = dimorder.load(lower(module, "1x3xHxW", target="xnnpack").save(tmp_path / "unet.pte"))
    for sizes in PICTURES:
        x = sized("1x3xHxW", sizes)
        with torch.no_grad():
            wanted = module(x)
        for fed in (x, x.contiguous(memory_format=torch.channels_last)):
            assert relative_error(program(fed), wanted) <= 1e-4


def test_a_saved_program_of_torch_keeps_its_ranges(tmp_path: Path) -> None:
    module = Gated().eval()
    program = dimorder.load(lower(module, "Nx3xHxW", target="torch").save(tmp_path / "gated.pt2"))
    for sizes in PICTURES:
        x = sized("Nx3xHxW", sizes)
        with torch.no_grad():
            assert relative_error(program(x), module(x)) <= 1e-4


@pytest.fixture(scope="module")
def lowered() -> dimorder.Lowered:
    return lower(Gated().eval(), "Nx3xHxW")


def test_a_contract_holds_names_and_ranges() -> None:
    lowered = lower(Gated().eval(), "Nx3xHxW", input_orders="NHWC")
    contract = lowered.contract
    assert contract.inputs[0].shape == ("N", 3, "H", "W")
    assert contract.outputs[0].shape == ("N", 8, "H/2", "W/2")
    assert contract.symbols == tuple(RANGES[name] for name in "NHW")
    assert Contract.from_json(contract.to_json()) == contract


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((17, 3, 32, 48), "size 17 in dim 0, where N is from 1 to 16"),
        ((2, 3, 16, 48), "size 16 in dim 2, where H is from 32 to 96"),
        ((2, 3, 40, 48), "size 40 in dim 2, where H is a multiple of 16"),
    ],
)
def test_a_size_outside_of_its_range_is_refused(
    lowered: dimorder.Lowered, shape: tuple[int, ...], told: str
) -> None:
    with pytest.raises(ContractError) as refused:
        lowered.run(torch.zeros(shape))
    assert str(refused.value).splitlines()[1] == f"  found: {told}"


def test_a_range_of_steps_says_what_to_pad_to(lowered: dimorder.Lowered) -> None:
    with pytest.raises(ContractError, match="fix: pad to 48, or lower the program for other sizes"):
        lowered.run(torch.zeros(2, 3, 40, 48))


class Two(nn.Module):
    """Ids and a picture that share a batch; the ids have a length of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(20, 6), nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, ids: torch.Tensor, *, image: torch.Tensor) -> dict[str, torch.Tensor]:
        told = self.table(ids).mean(1)
        return {"seen": self.conv(image).relu() * told[:, :, None, None], "told": told}


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_share_a_symbol(target: str) -> None:
    module, batch = Two().eval(), Dim("N", min=1, max=8)
    call = (torch.randint(0, 20, (1, 5)),), {"image": torch.randn(1, 3, 9, 7)}
    dims = {"ids": {0: batch, 1: Dim("L", min=2, max=12)}, "image": {0: batch}}
    lowered = dimorder.lower(module, *call, dynamic_shapes=dims, target=target)
    for n, length in ((1, 2), (8, 12), (1, 12), (3, 7)):
        ids, image = torch.randint(0, 20, (n, length)), torch.randn(n, 3, 9, 7)
        wanted, got = module(ids, image=image), lowered.run(ids, image=image)
        assert all(relative_error(got[key], wanted[key].detach()) <= 1e-4 for key in wanted)
    with pytest.raises(ContractError, match="size 3 in dim 0, where N is 2 elsewhere in this call"):
        lowered.run(torch.zeros(2, 5, dtype=torch.int64), image=torch.zeros(3, 3, 9, 7))


def test_the_program_for_other_partitioners_has_the_symbols_too() -> None:
    module = Gated().eval()
    program = lower(module, "Nx3xHxW").decomposed().module(check_guards=False)
    for sizes in PICTURES:
        x = sized("Nx3xHxW", sizes)
        with torch.no_grad():
            assert relative_error(program(x)[0], module(x)) <= 1e-4
