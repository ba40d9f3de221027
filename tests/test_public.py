"""Test which names are public in `dimorder`, and that each tells how it is used, with an example."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

import dimorder
from dimorder import targets
from dimorder.algebra.dim_order import DimOrder
from dimorder.cli import parser
from dimorder.errors import UsageError

NAMES = {
    *("DimOrder", "DimorderError", "Layout", "Lowered", "Orders", "Program", "QuantizedNetwork", "Types"),
    *("collate", "convert", "empty", "expect_channels_last", "inspect", "is_channels_last"),
    *("load", "lower", "plan", "quantize", "to_channels_last", "to_contiguous", "unblock"),
}
ALIASES = {"Orders", "Types"}
NEVER_RAISES = {"collate", "is_channels_last"}


def test_these_names_are_public() -> None:
    assert set(dimorder.__all__) == NAMES and set(dir(dimorder)) >= NAMES
    for name in NAMES:
        assert getattr(dimorder, name) is not None


@pytest.mark.parametrize("name", sorted(NAMES - ALIASES))
def test_its_docstring_has_what_it_takes_gives_and_raises_and_an_example(name: str) -> None:
    value = getattr(dimorder, name)
    text = inspect.getdoc(value) or ""
    assert ">>> " in text
    sections = {"Args:"} if inspect.isclass(value) else {"Args:", "Returns:", "Raises:"}
    if inspect.isclass(value) and "Attributes:" in text:
        sections = {"Attributes:"}
    if name in NEVER_RAISES:
        sections -= {"Raises:"}
    assert {each for each in sections if each not in text} == set()


def test_orders_and_types_are_types() -> None:
    orders, types = typing.get_args(dimorder.Orders), typing.get_args(dimorder.Types)
    assert {str, torch.memory_format, DimOrder, type(None)} < set(orders)
    assert {str, torch.dtype, type(None)} < set(types)


def test_the_default_target_is_one_in_python_and_on_the_command_line() -> None:
    options: Any = parser().parse_args(["plan", "package:net"])
    assert options.target is None  # then it is the default
    defaults = {
        inspect.signature(each).parameters["target"].default for each in (dimorder.lower, dimorder.plan)
    }
    assert defaults == {targets.DEFAULT} == {"torch"}


class Pair(torch.nn.Module):
    def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (image * mask).relu()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    given = {"image": torch.randn(2, 3, 5, 7), "mask": torch.randn(2, 3, 5, 7)}
    lowered = dimorder.lower(Pair(), tuple(given.values()), input_orders="NHWC")
    path: Path = tmp_path_factory.mktemp("pair") / "net.pt2"
    return lowered, dimorder.load(lowered.save(path)), given


@pytest.mark.parametrize("positional", [0, 1, 2])
def test_a_lowered_network_and_a_loaded_program_are_called_alike(both: Any, positional: int) -> None:
    *programs, given = both
    args = list(given.values())[:positional]
    kwargs = dict(list(given.items())[positional:])
    for program in programs:
        torch.testing.assert_close(program(*args, **kwargs), Pair()(**given))


def test_they_refuse_alike(both: Any) -> None:
    *programs, given = both
    for program in programs:
        with pytest.raises(dimorder.DimorderError, match="NHWC"):
            program(*given.values(), on_mismatch="error")
        with pytest.raises(UsageError):
            program(given["image"], picture=given["mask"])
        with pytest.raises(UsageError, match="on_mismatch"):
            program(*given.values(), on_mismatch="ignore")
