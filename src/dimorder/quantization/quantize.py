"""Quantize a float network: export it, observe it as it runs, and convert it by torchao's PT2E."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from dimorder.capture.calls import call_leaves
from dimorder.capture.dynamic import quantizes
from dimorder.capture.export import export
from dimorder.capture.refusals import refuse_write
from dimorder.clock import Progress, StepPart
from dimorder.errors import UnsupportedError, UsageError, installed, require_type
from dimorder.lowered import Lowered
from dimorder.modules import one_at_a_time, take_own_tensors, unchanged, unwritten
from dimorder.physical.wasted_levels import WastedLevels, wasted_levels
from dimorder.quantization.batch_norms import hide_batch_norms, separate_batch_norms, show_batch_norms
from dimorder.quantization.bias_ranges import fit_biases
from dimorder.quantization.biases import correct_biases
from dimorder.quantization.calibration import (
    Calibration,
    CalibrationCall,
    ExampleFiles,
    as_call,
    calls,
    count_examples,
    no_example,
    require_examples,
)
from dimorder.quantization.constants import root_of, without_writes_to_parts, writes, written_buffers
from dimorder.quantization.fidelity import OutputFidelity, fidelity
from dimorder.quantization.refusals import explained_by_pass, not_observed
from dimorder.reading import Normalization
from dimorder.sizes.export_symbolic import dynamic_shapes_of, export_symbolic
from dimorder.targets import choices, find
from dimorder.targets.base import Recipe, Target

KEPT = 16  # examples on which networks are compared
SEEN = 8  # examples that show the range of masked scores


@dataclass(frozen=True)
class QuantizedNetwork:
    """A quantised network with the float network that it was made from; `dimorder.lower` accepts it as it is.

    Attributes:
        module: The quantised network, which computes as PT2E defines it.
        original: The float network.
        examples: The first calls of the calibration.
        wasted: The levels that a clamp beside a value never lets through.
        dynamic_shapes: The dynamic sizes of its inputs, which `dimorder.lower` takes if it is given none.

    >>> x = torch.linspace(-1, 1, 105).reshape(1, 3, 5, 7)
    >>> quantised = quantize(torch.nn.Conv2d(3, 8, 3), [x, x / 2])
    >>> len(quantised.examples), quantised.module(x).shape
    (2, torch.Size([1, 8, 3, 5]))
    >>> from dimorder.api import lower
    >>> (found,) = quantised.compare(lower(quantised, (x,)))
    >>> found.name, found.snr_db > 30, found.quanta <= 1
    ('output0', True, True)
    """

    module: GraphModule
    original: GraphModule
    examples: tuple[CalibrationCall, ...]
    wasted: tuple[WastedLevels, ...]
    dynamic_shapes: Any = None

    def compare(self, lowered: Lowered) -> tuple[OutputFidelity, ...]:
        """Compare each output of a lowered program with the float network and with `module`.

        Args:
            lowered: this network, lowered.

        Returns:
            One row per output: dB against the float network, and quanta against `module`.

        Raises:
            UsageError: if `lowered` is a network of floats.
        """
        if not quantizes(lowered.program.exported.graph_module):
            fix = "give dimorder.lower(quantised, target=...)"
            raise UsageError("compare", "a lowered network of floats", fix)
        return fidelity(self.original, self.module, lowered, self.examples)


@one_at_a_time
def quantize(
    model: torch.nn.Module | ExportedProgram | str | Path,
    calibration: Calibration | None = None,
    recipe: str | None = None,
    *,
    target: str | Target = "xnnpack",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    normalization: Normalization | None = None,
    progress: Progress = lambda step: None,
) -> QuantizedNetwork:
    """Quantize the weights and activations of a float network to integers, by a recipe of the target.

    Rounded weights shift the mean of a channel; the bias takes the shift back. `model` is left unchanged.

    Args:
        model: a module, an exported program, or a `.pt2` file. A module is quantised in eval mode, whatever
            its mode is.
        calibration: inputs of the kind that the network will get: each a tensor, a tuple of arguments or a
            dict of keywords. Or the path of a .npz or .npy file, or of a folder of these files and of
            pictures. Files hold examples along the first dimension, with an array for each input by its name.
            A dynamic recipe, "int8-dynamic", finds the scales of activations as the program runs. It needs
            no calibration; networks are then only compared on it.
        recipe: the name of one of the target's recipes: "int8", which is the default, "int8-dynamic" on
            targets xnnpack and litert, "int16x8" on tosa and an ethos-u.
        target: the target that the network will be lowered for, by its name or as a value.
        args: example positional inputs; a dynamic recipe needs their shapes. The default is the first example
            of the calibration.
        kwargs: example keyword inputs.
        dynamic_shapes: the dynamic sizes, as in torch.export, if the program is to have some. The examples
            of the calibration may have any of these sizes. An exported program has its own.
        normalization: how the values of pictures become inputs, (x / 255 − mean) / std:
            `dimorder.Normalization(mean=(0.5,), std=(0.5,))`.
        progress: called with the name of each step as the step begins, and before each example.

    Returns:
        The quantised network.

    Raises:
        DimorderError: if the network cannot be quantised; the error says what to do.

    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU6()).eval()
    >>> quantised = quantize(net, [torch.randn(1, 3, 5, 7) for _ in range(4)])
    >>> quantised.module(torch.randn(1, 3, 5, 7)).shape, [each.wasted for each in quantised.wasted]
    (torch.Size([1, 8, 3, 5]), [0])
    """
    recipe, chosen = _recipe(recipe, find(target))
    require_examples(calibration)
    _require_normalization(normalization)
    whole = calibration  # the first example may be taken from an iterator below
    if calibration is None and not chosen.dynamic:
        raise UsageError("calibration", "none", f"recipe {recipe} observes inputs: give some, [x, ...]")
    if not args and not kwargs:
        (args, kwargs), calibration = _first_call(calibration, model)
    progress("exporting")
    exported, dynamic_shapes = _export(model, args, kwargs, dynamic_shapes)
    original = _float_network(exported)
    progress("preparing")
    if isinstance(calibration, (str, os.PathLike)):
        calibration = whole = ExampleFiles.read(Path(calibration), exported, normalization)
    given = iter(_exported_call(exported) if calibration is None else calls(calibration, exported))
    seen = list(islice(given, 0 if chosen.dynamic else SEEN))
    with installed(f"target {find(target).name}", chosen.install):
        prepared = _prepared(exported, chosen, seen)
    # Observers have buffers of their own.
    buffers = {name for name, _ in original.named_buffers(remove_duplicate=False)}
    with torch.no_grad(), unchanged(prepared, buffers):
        examples = _observed(prepared, original, chain(seen, given), count_examples(whole), progress)
    progress("quantising")
    fit_biases(prepared)
    module = _converted(prepared)
    _require_quantized(module, original, recipe)
    if not chosen.dynamic:
        progress("correcting biases")
        correct_biases(module, original, _flat(exported, examples))
    wasted = tuple(wasted_levels(module.graph))
    return QuantizedNetwork(module, original, tuple(examples), wasted, dynamic_shapes)


def _require_normalization(value: object) -> None:
    fix = "give dimorder.Normalization(mean=(0.5,), std=(0.5,))"
    require_type(value, (Normalization, type(None)), "normalization", fix)


def _first_call(calibration: Calibration | None, model: Any) -> tuple[tuple[Any, Any], Calibration | None]:
    """Return the arguments of the first example, and all examples; a file of a network has its own."""
    fix = "give args=(x,), of the shapes that the network takes"
    if calibration is None or isinstance(calibration, (str, os.PathLike)):
        if isinstance(model, torch.nn.Module):
            files = "" if calibration is None else ", and files alone to calibrate with"
            raise UsageError("args", f"no example inputs{files}", fix)
        return ((), None), calibration
    items = iter(calibration)
    first = next(items, None)
    if first is None:
        raise no_example("calibration")
    call = as_call(first)
    return (call.args, call.kwargs), chain((first,), items)


def _float_network(exported: ExportedProgram) -> GraphModule:
    """Return a program as the module that is to be quantised."""
    original = exported.module(check_guards=False)
    assert isinstance(original, GraphModule)
    if quantizes(original):
        raise UsageError("model", "a network that is quantised already", "lower it as it is")
    parameters = dict(original.named_parameters(remove_duplicate=False))
    for node in filter(writes, original.graph.nodes):
        root = root_of(node)
        if root.op == "placeholder" or root.target in parameters:
            kind = "user input" if root.op == "placeholder" else "parameter"
            raise refuse_write(kind, str(root.target), node)
    if any(weight.dtype == torch.float64 and weight.dim() > 1 for weight in parameters.values()):
        found = "weights of torch.float64, which torchao does not quantise"
        raise UsageError("model", found, "give model.float()")
    return original


def _prepared(exported: ExportedProgram, recipe: Recipe, seen: Sequence[CalibrationCall]) -> GraphModule:
    """Return the network with observers; `seen` are calls that show the ranges of its scores."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    from dimorder.quantization.corrections import CorrectedQuantizer
    from dimorder.quantization.masked_softmax import MasksInParts
    from dimorder.quantization.same_numbers import SameNumbers, results_of
    from dimorder.quantization.unknown_calls import UnknownCalls

    inputs = _flat(exported, seen)
    quantizer = SameNumbers(recipe.quantizer(), inputs)
    if recipe.in_parts:
        quantizer = MasksInParts(UnknownCalls(quantizer), inputs)
    module = exported.module(check_guards=False)
    take_own_tensors(module, with_parameters=recipe.in_parts)  # Arm's passes write factors into weights
    wanted = results_of(module, inputs)
    separate_batch_norms(module)
    prepared: GraphModule = prepare_pt2e(module, CorrectedQuantizer(quantizer, inputs, wanted))
    return prepared


def _observed(
    prepared: GraphModule,
    original: GraphModule,
    given: Iterable[CalibrationCall],
    total: int | None,
    progress: Progress,
) -> list[CalibrationCall]:
    """Call a network with observers, and return the first calls."""
    examples: list[CalibrationCall] = []
    for done, call in enumerate(given):
        progress(StepPart("calibrating", done, total))
        with unwritten(pytree.tree_leaves((call.args, call.kwargs))):
            try:
                prepared(*call.args, **call.kwargs)
            except Exception as error:  # an observer's, of NaN for example, or the network's own
                raise not_observed(done, error, _runs(original, call)) from error
        if len(examples) < KEPT:
            examples.append(call)
    return examples


def _runs(original: GraphModule, call: CalibrationCall) -> bool:
    """Return whether the float network takes a call."""
    try:
        with unchanged(original):
            original(*call.args, **call.kwargs)
    except Exception:  # whatever a network may raise
        return False
    return True


def _require_quantized(module: GraphModule, original: GraphModule, recipe: str) -> None:
    """Raise an error unless a network is quantised and has the state of the first one."""
    lost = written_buffers(original) - written_buffers(module)
    if lost:
        found = "torchao computes the buffer once, and no call would change it"
        raise UnsupportedError(f"buffer {min(lost)}", found, "assign to it: self.count = self.count + 1")
    if not quantizes(module):
        found = f"nothing in it that recipe {recipe} quantises"
        raise UnsupportedError("the network", found, "lower it in float")


def _flat(exported: ExportedProgram, given: Sequence[CalibrationCall]) -> list[Sequence[Any]]:
    """Return the tensors of calls, one for each placeholder of the program."""
    leaves = (call_leaves(exported, call.args, call.kwargs) for call in given)
    return [[leaf for leaf in each if isinstance(leaf, torch.Tensor)] for each in leaves]


def _converted(prepared: GraphModule) -> GraphModule:
    """Return the network with the observed scales.

    If torchao saw a batch norm, it would look for those of quantised training, and export networks for 15 s.
    """
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    hide_batch_norms(prepared)
    with explained_by_pass("torchao.convert_pt2e"):
        module: GraphModule = convert_pt2e(prepared)
    show_batch_norms(module)
    _forget_networks()
    return module


def _forget_networks() -> None:
    """Clear what torch and torchao know of the devices of networks, which keeps these and their weights."""
    from torch.ao.quantization.fx.utils import assert_and_get_unique_device
    from torchao.utils import _assert_and_get_unique_device

    assert_and_get_unique_device.cache_clear()
    _assert_and_get_unique_device.cache_clear()


def _export(
    model: torch.nn.Module | ExportedProgram | str | Path,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> tuple[ExportedProgram, Any]:
    """Return a network as an exported program, with the dynamic sizes of its inputs or None."""
    if not isinstance(model, torch.nn.Module):
        model = export(model, args, kwargs)  # a file is read once
    sizes = export_symbolic(model, args, kwargs, dynamic_shapes)
    if sizes is None:
        return without_writes_to_parts(export(model, args, kwargs)), None
    # The exported program names the arguments itself: those of `forward(self, *xs)` are xs_0, xs_1, …
    return without_writes_to_parts(sizes.exported), dynamic_shapes_of(sizes)


def _recipe(name: str | None, target: Target) -> tuple[str, Recipe]:
    """Return a recipe of the target with its name; no name is the first recipe."""
    known = name or next(iter(target.recipes), "integers")
    if known in target.recipes:
        return known, target.recipes[known]
    found = f"no recipe for target {target.name}"
    others = ", ".join(f"{recipe} for {owners}" for recipe, _, owners in choices("recipes"))
    raise UsageError(f"quantising to {known}", found, f"choose another target: there is {others}")


def _exported_call(exported: ExportedProgram) -> list[CalibrationCall]:
    """Return the call that a network was exported with."""
    if exported.example_inputs is None:
        raise UsageError("the exported program", "no example inputs in it", "give args=(x,)")
    args, kwargs = exported.example_inputs
    return [CalibrationCall(args, kwargs)]
