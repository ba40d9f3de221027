"""Read MODEL, --arg and --input: a network, and tensors to export it with.

MODEL is a .pt2 file, or `package.module:factory`. The random weights of a factory are seeded.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dimorder.errors import DimorderError, UsageError, summary
from dimorder.text import shape_text

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    Model = torch.nn.Module | ExportedProgram

DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
_LIBRARIES = ("timm", "torchvision", "transformers")  # of networks, each with the name of its package
_NESTED = "for a list or a dict of tensors, give a .pt2 that torch.export.save wrote"
_INPUT = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>scalar|(?:\d+|[A-Z])(?:[x,](?:\d+|[A-Z]))*)(?::(?:torch\.)?(?P<dtype>\w+))?"
)


@dataclass(frozen=True)
class InputOption:
    """One `--input [NAME=]SHAPE[:DTYPE]`; a letter in the shape is a dynamic size.

    >>> InputOption.parse("ids=Nx128:int64")
    InputOption(name='ids', shape=('N', 128), dtype='int64')
    """

    name: str | None
    shape: tuple[int | str, ...]
    dtype: str

    @staticmethod
    def parse(text: str) -> InputOption:
        where, write = f"--input {text}", "write [NAME=]SHAPE[:DTYPE], such as 1x3x224x224 or ids=1x128:int64"
        match = _INPUT.fullmatch(text)
        if match is None:
            raise UsageError(where, "no shape", write)
        shape = (
            ()
            if match["shape"] == "scalar"
            else tuple(int(size) if size.isdigit() else size for size in re.split("[x,]", match["shape"]))
        )
        dtype = match["dtype"] or "float32"
        if 0 in shape:
            raise UsageError(where, "a dimension of size 0", "give sizes from 1 on")
        if dtype not in DTYPES:
            raise UsageError(where, f"no dtype {dtype!r}", f"use one of {', '.join(DTYPES)}")
        return InputOption(match["name"], shape, dtype)

    def tensor(self, seed: int, sizes: Mapping[str, int]) -> torch.Tensor:
        """Return standard normal numbers, or zeros and ones: an index or a mask that every network takes."""
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        shape = [size if isinstance(size, int) else sizes[size] for size in self.shape]
        needed = math.prod(shape) * dtype.itemsize
        if needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise UsageError(
                f"--input {self}",
                f"{needed:,} bytes, more than this machine's memory",
                "give a smaller shape",
            )
        generator = torch.Generator().manual_seed(seed)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator).to(dtype)
        return torch.randint(0, 2, shape, generator=generator).to(dtype)

    def __str__(self) -> str:
        name = f"{self.name}=" if self.name else ""
        return f"{name}{shape_text(self.shape, 'x')}:{self.dtype}"


def parse_argument(text: str) -> tuple[str, Any]:
    """Parse one `--arg key=value`; a value that is no Python literal is text.

    >>> parse_argument("width=[1, 2]"), parse_argument("weights=DEFAULT")
    (('width', [1, 2]), ('weights', 'DEFAULT'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"--arg {text}", "no key=value", "write it as in --arg num_classes=10")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def load_model(spec: str, arguments: Mapping[str, Any]) -> Model:
    """Return the network that MODEL names, in eval mode; raises `UsageError` if there is none."""
    _check_kind(spec)
    if spec.endswith(".pt2") or (":" not in spec and Path(spec).exists()):
        if arguments:
            raise UsageError(
                f"--arg {next(iter(arguments))}", f"arguments for the file {spec}", "leave them out"
            )
        return _load_exported(spec)
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", spec):
        raise UsageError(
            f"MODEL {spec}",
            "neither a .pt2 file nor module:name",
            "give mynet:Net for the class or function Net of mynet.py in this folder",
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return _build(spec, arguments)
    except RuntimeError as error:
        if not _lacks_torchvision_operators(error):
            raise
        _define_torchvision_operators()
        return _build(spec, arguments)


def example_inputs(
    model: Model, options: Sequence[InputOption], sizes: Mapping[str, int] = MappingProxyType({})
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Return tensors for the options: positional, then named; `sizes` has a size for each letter."""
    import torch

    letters = [size for option in options for size in option.shape if isinstance(size, str)]
    if not set(letters) <= set(sizes):
        fix = "give a number: dynamic sizes are for dimorder lower, plan and explain"
        raise UsageError("--input", f"the dynamic size {letters[0]}, where a fixed one is needed", fix)

    names = [option.name for option in options if option.name]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"--input {twice[0]}=", "given more than once", "give each input once")
    tensors = [option.tensor(seed, sizes) for seed, option in enumerate(options)]
    args = tuple(x for x, option in zip(tensors, options, strict=True) if option.name is None)
    kwargs = {option.name: x for x, option in zip(tensors, options, strict=True) if option.name}
    if not isinstance(model, torch.nn.Module):
        _check_exported_inputs(model, options)
        return args, kwargs
    signature = inspect.signature(model.forward)
    where = f"--input, for {type(model).__name__}"
    fix = f"give one --input for each tensor of forward{signature}; {_NESTED}"
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    unknown = [] if takes_any else [name for name in kwargs if name not in signature.parameters]
    if unknown:
        raise UsageError(where, f"{unknown[0]!r}, which is no argument of forward", fix)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(where, f"{error}", fix) from None
    return args, kwargs


def runnable(model: Model) -> torch.nn.Module:
    """Return the network as a module that runs as written. Raises `UsageError` for an exported program."""
    import torch

    if not isinstance(model, torch.nn.Module):
        found = "a .pt2 file, which has no modules"
        fix = "name the module itself, package.module:factory"
        raise UsageError("MODEL", found, fix)
    return model


def check_runs(model: Model, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `UsageError` if the network itself cannot take these inputs, so that no export can."""
    import torch

    if not isinstance(model, torch.nn.Module):
        return
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    except Exception as error:
        given = [*args, *kwargs.values()]
        shapes = ", ".join(shape_text(x.shape, "x") for x in given) or "nothing"
        raise UsageError(
            f"--input, for {type(model).__name__}",
            f"{shapes}, on which it raises {summary(error)}",
            f"give shapes and dtypes that the network takes{_channels_last_hint(given)}"
            # Python raises others if the network unpacks a list or a dict.
            + ("" if isinstance(error, RuntimeError) else f"; {_NESTED}"),
        ) from error


def _channels_last_hint(given: Sequence[Any]) -> str:
    """Return how to write a shape whose last size looks like that of channels, or nothing."""
    for x in given:
        if len(x.shape) == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            n, height, width, channels = x.shape
            return f", such as {n}x{channels}x{height}x{width}: channels come second, in any order of memory"
    return ""


def _check_kind(spec: str) -> None:
    """Raise `UsageError` for a file that is no exported program, and say what it is."""
    from dimorder import targets

    path, where = Path(spec), f"MODEL {spec}"
    source = re.fullmatch(r"(\w+)\.py(?::(\w+))?", spec)
    if source and Path(f"{source[1]}.py").is_file():
        raise UsageError(where, "the file of a module", f"write {source[1]}:{source[2] or 'NAME'}")
    if not path.is_file():
        return
    for name, info in targets.infos():  # ours come first; the last may be broken
        if info.suffix == path.suffix and info.reads(path):
            if path.suffix == ".pt2" and not info.member:
                return
            commands = [f"dimorder {each} {spec}" for each in ("check", "run") if info.kind or each == "run"]
            fix = f"give the network; of this file: {', '.join(commands)}"
            raise UsageError(where, f"a program that is lowered for target {name} already", fix)


def _load_exported(path: str) -> ExportedProgram:
    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "no such file"
        raise UsageError(f"MODEL {path}", found, "give a .pt2 file, or package.module:factory")
    from dimorder.capture.export import read_exported

    return read_exported(path, f"MODEL {path}")


def _check_exported_inputs(program: ExportedProgram, options: Sequence[InputOption]) -> None:
    """Check --input for an exported program, which has its own shapes: --input may only repeat them."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(program.example_inputs)
    own = [(tuple(x.shape), str(x.dtype)) for x in leaves if isinstance(x, torch.Tensor)]
    given = [(option.shape, f"torch.{option.dtype}") for option in options]
    named = next((option for option in options if option.name), None)
    if named is not None:
        found = "an input by name, where a .pt2 has its own inputs"
        raise UsageError(f"--input {named}", found, "leave --input out")
    if given and given != own:
        shapes = ", ".join(f"{shape_text(shape, 'x')}:{dtype[6:]}" for shape, dtype in own)
        raise UsageError(
            "--input, for an exported program",
            f"{', '.join(map(str, options))}, where it was exported for {shapes}",
            "leave --input out, or export the network again",
        )


def _build(spec: str, arguments: Mapping[str, Any]) -> torch.nn.Module:
    import torch

    module_name, _, path = spec.partition(":")
    torch.manual_seed(0)
    model = _attribute(spec, _import(spec, module_name), path)
    if not isinstance(model, torch.nn.Module):
        model = _call(spec, model, arguments)
    elif arguments:
        raise UsageError(f"--arg {next(iter(arguments))}", f"{spec} is a network already", "leave --arg out")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"MODEL {spec}",
            f"it gives an object of type {type(model).__name__}",
            "name a factory that returns a torch.nn.Module",
        )
    return model.eval()


def _import(spec: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(spec, f"importing {name}", error) from error
        package = error.name.split(".")[0]
        how = f"pip install {package} {_torch_pin()}" if error.name in _LIBRARIES else "install it"
        raise UsageError(
            f"MODEL {spec}",
            f"no module named {error.name!r}",
            f"{how}, or run dimorder in the folder that holds {package}",
        ) from error
    except Exception as error:
        if _lacks_torchvision_operators(error):
            raise
        raise _failed(spec, f"importing {name}", error) from error


def _torch_pin() -> str:
    """Return the installed torch as pip takes it: with this, pip finds a library's version for this torch."""
    return f"torch=={metadata.version('torch').partition('+')[0]}"


def _attribute(spec: str, module: Any, path: str) -> Any:
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [name for name in dir(found) if name[0] != "_"])
            owner = getattr(found, "__name__", type(found).__name__)
            hint = f"did you mean {' or '.join(close)}?" if close else f"name something that {owner} has"
            raise UsageError(f"MODEL {spec}", f"{owner} has no {part!r}", hint)
        found = getattr(found, part)
    return found


def _call(spec: str, factory: Any, arguments: Mapping[str, Any]) -> Any:
    if inspect.ismodule(factory):
        fix = f"write {factory.__name__}:NAME for a class or function of it"
        raise UsageError(f"MODEL {spec}", "a module of Python", fix)
    if not callable(factory):
        raise UsageError(
            f"MODEL {spec}",
            f"an object of type {type(factory).__name__}",
            "name a torch.nn.Module, or a callable that returns one",
        )
    with suppress(ValueError):  # some callables have no signature
        signature = inspect.signature(factory)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            name = spec.partition(":")[2]  # a functools.partial has none of its own
            fix = f"give --arg key=value as {name}{signature} takes them"
            raise UsageError(f"MODEL {spec}", f"{error}", fix) from None
    try:
        return factory(**arguments)
    except Exception as error:
        if _lacks_torchvision_operators(error):
            raise
        raise _failed(spec, "calling it", error) from error


def exit_error(spec: str, error: SystemExit) -> DimorderError:
    """Return the error of a network whose code ends Python."""
    fix = "take the exit out, or put it under if __name__ == '__main__'"
    return _failed(spec, "its code", error, fix)


def _failed(
    spec: str,
    doing: str,
    error: BaseException,
    fix: str = "fix it, or see the whole traceback with --debug",
) -> DimorderError:
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return DimorderError(f"MODEL {spec}", f"{doing} raised {summary(error)}{at}", fix)


def _lacks_torchvision_operators(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and "operator torchvision::nms does not exist" in str(error)


@functools.cache
def _define_torchvision_operators() -> torch.library.Library:
    """Define two schemas, without kernels, that torchvision 0.28 needs if its compiled part is missing."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
