"""Run a network in other runtimes, as a user of each would: from the module, in float32, on the CPU."""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dimorder.cpu import family
from dimorder.errors import install_of
from dimorder.graph.nodes import tensors_in
from dimorder.latency.timing import Invocation
from dimorder.modules import left_as_it_was
from dimorder.targets import find, info, require_objective
from dimorder.targets.xnnpack.times import KernelTime, by_name, measured_times


@dataclass(frozen=True)
class Given:
    """A network to be timed, with a call of it, and its number of threads."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    threads: int

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs, in the sequence of a flat signature."""
        return tensors_in((self.args, dict(self.kwargs)))

    def restored(self) -> AbstractContextManager[None]:
        """Return a context that leaves the network and the inputs as they were: a call may write them."""
        return left_as_it_was(self.model, (self.args, dict(self.kwargs)))


@dataclass(frozen=True)
class Runtime:
    """A runtime in which a network can be timed, with its packages and the command that installs them.

    `open` returns a function that runs the network once, from the file if `write` made one, and imports only
    `imports`. `write` returns the kernels of the file if their times are known, else None.
    """

    name: str
    title: str
    open: Callable[[Given, Path], Invocation]
    write: Callable[[Given, Path], tuple[KernelTime, ...] | None] | None = None
    suffix: str = ""
    imports: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    install: str = ""

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def ours(chosen: str) -> Runtime:
    """Return a target of dimorder's whose files run here, as TARGET or TARGET:OBJECTIVE.

    >>> ours("torch").title, ours("torch").suffix, ours("xnnpack:time").title
    ('dimorder, torch', '.pt2', 'dimorder, xnnpack by time')
    """
    target, _, objective = chosen.partition(":")
    about = info(target)
    if objective:
        require_objective(target, about.objectives, objective)

    def write(given: Given, path: Path) -> tuple[KernelTime, ...] | None:
        from dimorder.api import lower

        by = objective or None  # the target's own first
        lowered = lower(given.model, given.args, given.kwargs, target=target, objective=by)
        lowered.save(path)
        times = measured_times().get(family())
        kernels = getattr(lowered.artifact, "kernels", ()) if target == "xnnpack" else ()  # of float32
        known = kernels and not lowered.artifact.outside
        return by_name(times, kernels) if known and times and times.threads == given.threads else None

    def open_(given: Given, path: Path) -> Invocation:
        from dimorder.api import load

        found = find(target)
        program = load(path, target=found, threads=given.threads if found.runtime.set_threads else None)
        return lambda: program.run(*given.tensors)

    imports = ("dimorder.api", about.target.partition(":")[0], "executorch.extension.pybindings._C")
    needed = imports if about.suffix == ".pte" else imports[:2]
    title = f"dimorder, {target} by {objective}" if objective else f"dimorder, {target}"
    return Runtime(chosen, title, open_, write, about.suffix, needed)


# -- ExecuTorch


def _write_executorch(given: Given, path: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported = torch.export.export(given.model, given.args, dict(given.kwargs))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    path.write_bytes(edge.to_executorch().buffer)


def _open_executorch(given: Given, path: Path) -> Invocation:
    """Open a program of ExecuTorch's; its outputs are copied as ours are, not by PyTorch, which is slower."""
    import executorch.kernels.quantized  # noqa: F401  the kernels of what a quantised network leaves outside

    from dimorder.executorch import pte

    pte.set_threads(given.threads)
    method = pte.method_of_file(path)
    return lambda: method(given.tensors)


# -- PyTorch


def _flat(model: Any, given: Given) -> Invocation:
    torch.set_num_threads(given.threads)

    def call() -> Sequence[Tensor]:
        with torch.no_grad():
            return tensors_in(model(*given.args, **given.kwargs))

    return call


def _open_eager(given: Given, path: Path) -> Invocation:
    return _flat(given.model, given)


def _open_channels_last(given: Given, path: Path) -> Invocation:
    model = copy.deepcopy(given.model).to(memory_format=torch.channels_last)

    def channels_last(x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x

    args, kwargs = pytree.tree_map_only(Tensor, channels_last, (given.args, dict(given.kwargs)))
    return _flat(model, Given(model, args, kwargs, given.threads))


def _open_compiled(given: Given, path: Path) -> Invocation:
    torch.compiler.reset()
    call = _flat(torch.compile(given.model), given)
    with given.restored():
        call()  # the first call compiles
    return call


def _open_frozen(given: Given, path: Path) -> Invocation:
    with torch._inductor.config.patch(freezing=True):
        return _open_compiled(given, path)


# -- ONNX


def _write_onnx(given: Given, path: Path) -> None:
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    torch.onnx.export(
        given.model,
        given.args,
        str(path),
        kwargs=dict(given.kwargs),
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _open_onnx_runtime(given: Given, path: Path) -> Invocation:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = given.threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    fed = {name: x.numpy() for name, x in zip(names, given.tensors, strict=True)}
    return lambda: [torch.from_numpy(y) for y in session.run(None, fed)]


def _open_openvino(given: Given, path: Path) -> Invocation:
    import openvino

    how = {"INFERENCE_NUM_THREADS": given.threads, "PERFORMANCE_HINT": "LATENCY"}
    # By default it may compute in bfloat16, if the processor has that.
    compiled = openvino.Core().compile_model(str(path), "CPU", {**how, "INFERENCE_PRECISION_HINT": "f32"})
    request, fed = compiled.create_infer_request(), [x.numpy() for x in given.tensors]
    return lambda: [torch.from_numpy(y) for y in request.infer(fed, share_inputs=True).values()]


# -- LiteRT


def _write_litert(given: Given, path: Path) -> None:
    import litert_torch

    litert_torch.convert(given.model, given.args, dict(given.kwargs) or None).export(str(path))


def _open_litert(given: Given, path: Path) -> Invocation:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path), num_threads=given.threads)
    interpreter.allocate_tensors()
    run = interpreter.get_signature_runner()
    fed = dict(zip(sorted(run.get_input_details()), (x.numpy() for x in given.tensors), strict=True))
    names = sorted(run.get_output_details())

    def call() -> Sequence[Tensor]:
        found = run(**fed)
        return [torch.from_numpy(found[name]) for name in names]

    return call


_PEERS = install_of("peers")

PEERS: Mapping[str, Runtime] = {
    each.name: each
    for each in (
        Runtime(
            "executorch",
            "ExecuTorch",
            _open_executorch,
            _write_executorch,
            ".pte",
            ("executorch.kernels.quantized", "executorch.extension.pybindings._C", "dimorder.executorch.pte"),
            ("executorch",),
            install_of("executorch"),
        ),
        Runtime("eager", "PyTorch", _open_eager),
        Runtime("eager-channels-last", "PyTorch, channels-last", _open_channels_last),
        Runtime("compile", "torch.compile", _open_compiled),
        Runtime("compile-frozen", "torch.compile, frozen", _open_frozen),
        Runtime(
            "onnxruntime",
            "ONNX Runtime",
            _open_onnx_runtime,
            _write_onnx,
            ".onnx",
            ("onnxruntime",),
            ("onnxruntime", "onnx", "onnxscript"),
            _PEERS,
        ),
        Runtime(
            "openvino",
            "OpenVINO",
            _open_openvino,
            _write_onnx,
            ".onnx",
            ("openvino",),
            ("openvino", "onnx", "onnxscript"),
            _PEERS,
        ),
        Runtime(
            "litert-torch",  # not litert, which is a target's name
            "litert-torch",
            _open_litert,
            _write_litert,
            ".tflite",
            ("ai_edge_litert.interpreter",),
            ("ai_edge_litert", "litert_torch"),
            "pip install litert-torch ai-edge-litert",
        ),
    )
}


def runtime(name: str) -> Runtime:
    """Return the runtime of that name: a peer's, or else dimorder's own target.

    >>> runtime("onnxruntime").title
    'ONNX Runtime'
    """
    return PEERS.get(name) or ours(name)
