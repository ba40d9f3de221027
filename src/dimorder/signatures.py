"""Write several lowered networks into one file, as its signatures, and load them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from dimorder.capture.state import restart
from dimorder.contract import StateSpec
from dimorder.errors import UnsupportedError, UsageError, VerificationError, installed, require_type
from dimorder.files import as_path, write_whole
from dimorder.lowered import Lowered
from dimorder.runtime.guard import OnMismatch, check, require_choice
from dimorder.runtime.program import Program
from dimorder.targets import target_for_file
from dimorder.text import shape_text
from dimorder.verification.network_calls import Run


def save_signatures(
    path: str | os.PathLike[str], networks: Mapping[str, Lowered], *, share_state: bool = False
) -> Path:
    """Write several lowered networks into one file, as its signatures.

    Constants with equal bytes are stored once. Before the file is written, its bytes are loaded, and each
    signature must give the same bits as its network alone.

    Args:
        path: the file to write, with the target's suffix.
        networks: the lowered networks by the names of the signatures, all for target litert. The first is the
            one that `load` and tools without signatures run.
        share_state: whether buffers with equal names are one buffer, such as the cache of a decoder. The
            default is that each network has its own state.

    Returns:
        The path of the file.

    Raises:
        UsageError: if there is no network, for what is no lowered network or no path, if the name has another
            suffix, or if the file cannot be written.
        UnsupportedError: if the target has one network in a file, or if networks cannot share their state.
        VerificationError: if a signature gives other results than its network alone.

    >>> import tempfile, torch
    >>> from dimorder.api import lower
    >>> networks = {"relu": torch.nn.ReLU(), "tanh": torch.nn.Tanh()}
    >>> lowered = {name: lower(net, (torch.ones(2, 3),), target="litert") for name, net in networks.items()}
    >>> file = save_signatures(Path(tempfile.mkdtemp(), "both.tflite"), lowered)
    >>> load_signatures(file)["relu"](torch.tensor([[-1.0, 0.0, 1.0], [2.0, -2.0, 3.0]]))
    tensor([[0., 0., 1.],
            [2., 0., 3.]])
    """
    path = as_path(path, "saving")
    require_type(networks, Mapping, f"saving {path}", "give a dict of lowered networks, by signature")
    if not networks:
        raise UsageError(f"saving {path}", "no networks", "give one for each signature")
    for name, lowered in networks.items():
        require_type(name, str, f"signature {name!r} of {path}", "name each signature by a text")
        require_type(lowered, Lowered, f"signature {name!r} of {path}", "pass what dimorder.lower returns")
    target = next(iter(networks.values())).target
    target.check_name(path)
    for name, lowered in networks.items():
        if target.files.signatures is None or lowered.target.name != target.name:
            found = f"{name!r} is lowered for target {lowered.target.name}"
            raise UnsupportedError(f"saving {path}", found, "lower all networks for target litert")
    assert target.files.signatures is not None
    if share_state:
        _require_one_state(path, networks)
    data = target.files.signatures.join({name: each.artifact for name, each in networks.items()}, share_state)
    for name, (_, run) in target.files.signatures.load(data).items():
        _require_the_same(f"signature {name!r} of {path}", run, networks[name])
    return write_whole(path, data)


def _require_one_state(path: Path, networks: Mapping[str, Lowered]) -> None:
    """Refuse buffers of one name that differ, for they cannot be one buffer."""
    found = dict[str, tuple[str, StateSpec, torch.Tensor]]()
    for name, lowered in networks.items():
        for spec, buffer in zip(lowered.contract.state, lowered.program.state, strict=True):
            other, known, initial = found.setdefault(spec.name, (name, spec, buffer.initial))
            if spec == known and _have_equal_bits(buffer.initial, initial):
                continue
            differ = f"{name!r} begins with other values than {other!r}"
            if spec != known:
                differ = f"{_words(known)} in {other!r}, {_words(spec)} in {name!r}"
            fix = "let both networks have the same buffer, or leave out share_state"
            raise UnsupportedError(f"state {spec.name!r} of {path}", differ, fix)


def _words(spec: StateSpec) -> str:
    return f"{shape_text(spec.shape, ' x ')} {spec.dtype} {spec.order}"


def _require_the_same(where: str, run: Run, lowered: Lowered) -> None:
    """Refuse a signature that gives other results on the examples than its network alone."""
    examples = [each for each in lowered.program.examples if isinstance(each, torch.Tensor)]
    inputs = check(lowered.contract, examples).tensors
    wanted, got = lowered.artifact.start()(inputs), run(inputs)
    restart(run)
    for one, other in zip(got, wanted, strict=True):
        if not _have_equal_bits(one, other):
            raise VerificationError(
                where, "other results than the network alone gives", "report these networks"
            )


def _have_equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have one type, one shape and the same bits, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (a, b)))


def load_signatures(path: str | os.PathLike[str], on_mismatch: OnMismatch = "adapt") -> dict[str, Program]:
    """Load the signatures of a file that `save_signatures` or `Lowered.save` wrote for target litert.

    If the state was shared when the file was written, each program goes on where the last call of any of them
    ended. `reset` of one program restores the state of all.

    Args:
        path: the `.tflite`.
        on_mismatch: what happens to an input in another order than promised, as for `load`.

    Returns:
        The programs by the names of their signatures.

    Raises:
        UsageError: if there is no such file.
        ContractError: if the file is damaged, or if another tool wrote it.
        UnsupportedError: if the file is of another target.

    >>> load_signatures("missing.tflite")
    Traceback (most recent call last):
    dimorder.errors.UsageError: loading missing.tflite
      found: No such file or directory
      fix: give the path of a .tflite file
    """
    file = as_path(path, "loading")
    target = target_for_file(file)
    require_choice(on_mismatch)
    if target.files.signatures is None:
        found = f"a file of target {target.name}, which has one program"
        raise UnsupportedError(f"loading {file}", found, "load it with dimorder.load")
    with installed(f"target {target.name}", target.install):
        programs = target.files.read_signatures(file)
    return {
        name: Program(file, contract, run, on_mismatch, target.runtime.name)
        for name, (contract, run) in programs.items()
    }
