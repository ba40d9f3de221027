"""Test which names are public in `dimorder`, and that each tells how it is used, with an example."""

from __future__ import annotations

import doctest
import functools
import inspect
import pkgutil
import re
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

import dimorder
import dimorder.executorch
from dimorder import targets
from dimorder.algebra.dim_order import DimOrder
from dimorder.cli import parser
from dimorder.eager.inspection.inspection import Inspection
from dimorder.errors import UsageError
from dimorder.executorch.checking import Check
from dimorder.plans.network_plan import NetworkPlan

NAMES = {
    *("DimOrder", "DimorderError", "Layout", "Lowered", "Normalization", "Orders", "Program"),
    *("QuantizedNetwork", "Types"),
    *("collate", "convert", "empty", "expect_channels_last", "inspect", "is_channels_last"),
    *("load", "load_signatures", "lower", "lower_sizes", "plan", "quantize", "save_signatures"),
    *("to_channels_last", "to_contiguous", "unblock"),
}
ALIASES = {"Orders", "Types"}
NEVER_RAISES = {f"dimorder.{name}" for name in ("collate", "is_channels_last")} | {
    f"dimorder.executorch.{name}" for name in ("canonicalize", "guarded", "probe", "sweep")
}
PASSES = {  # without options
    f"dimorder.executorch.{name}"
    for name in ("Annotate", "InsertDimOrderOperators", "RevertDimOrderOperators")
}


def test_these_names_are_public() -> None:
    assert set(dimorder.__all__) == NAMES and set(dir(dimorder)) >= NAMES
    for name in NAMES:
        assert getattr(dimorder, name) is not None


PUBLIC = {f"dimorder.{name}": getattr(dimorder, name) for name in NAMES - ALIASES} | {
    f"dimorder.executorch.{name}": getattr(dimorder.executorch, name) for name in dimorder.executorch.__all__
}
RESULTS = {each.__name__: each for each in (Check, Inspection, NetworkPlan)}  # that public functions return
CLASSES = {name: each for name, each in {**PUBLIC, **RESULTS}.items() if inspect.isclass(each)}
METHODS = sorted(
    f"{name}.{method}"
    for name, each in CLASSES.items()
    for method, value in vars(each).items()
    if not method.startswith("_")
    and (callable(value) or isinstance(value, staticmethod | property | functools.cached_property))
    and not any(hasattr(base, method) for base in each.__mro__[1:])  # such as `call` of ExecuTorch's passes
)


def examples(value: Any) -> str:
    """Return the source of the examples in a docstring that run as doctests."""
    found = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    return "".join(each.source for each in found if doctest.SKIP not in each.options)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_its_docstring_has_what_it_takes_gives_and_raises_and_an_example(name: str) -> None:
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    assert examples(value)
    if inspect.isroutine(value):
        sections = {"Args:", "Returns:", "Raises:"} - ({"Raises:"} if name in NEVER_RAISES else set())
        assert {each for each in sections if each not in text} == set()
    else:
        assert "Args:" in text or "Attributes:" in text or name in PASSES


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_says_what_it_does_and_has_an_example(name: str) -> None:
    home, _, method = name.rpartition(".")
    value = inspect.getattr_static(CLASSES[home], method)
    assert inspect.getdoc(value)
    assert examples(value) or re.search(rf"\.{method}\b", examples(CLASSES[home]))


@pytest.mark.parametrize("package", [dimorder, dimorder.executorch])
def test_no_public_name_is_a_module_too(package: Any) -> None:
    """Else it is the one or the other, by what was imported first."""
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules.isdisjoint({*package.__all__})


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
        with pytest.raises(dimorder.DimorderError, match=r"a tensor on meta.*runs on cpu"):
            program(*(tensor.to("meta") for tensor in given.values()))
        with pytest.raises(dimorder.DimorderError, match="NHWC"):
            program(*given.values(), on_mismatch="error")
        with pytest.raises(UsageError):
            program(given["image"], picture=given["mask"])
        with pytest.raises(UsageError, match="on_mismatch"):
            program(*given.values(), on_mismatch="ignore")
