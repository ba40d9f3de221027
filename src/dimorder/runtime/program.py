"""Call a loaded program: check or adapt its inputs before it runs, and its outputs after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dimorder.contract import Contract
from dimorder.errors import DimorderError, UsageError
from dimorder.runtime.guard import Adaptation, OnMismatch, check, require_choice, restore
from dimorder.runtime.quick_guard import quick_check, quick_restore


@dataclass(frozen=True)
class Stats:
    """Counts of a program's calls and of its guard's copies since it was loaded, and the latest copies."""

    calls: int = 0
    conversions: int = 0
    cost_bytes: int = 0
    last: tuple[Adaptation, ...] = ()

    def after(self, conversions: tuple[Adaptation, ...]) -> Stats:
        """Return these counts with one more call's conversions."""
        cost = sum(conversion.cost_bytes for conversion in conversions)
        return Stats(self.calls, self.conversions + len(conversions), self.cost_bytes + cost, conversions)


def bind_inputs(
    contract: Contract, args: Sequence[torch.Tensor], kwargs: Mapping[str, torch.Tensor], where: str
) -> list[torch.Tensor]:
    """Return inputs by position and by name in the sequence of the contract, each exactly once."""
    names = [spec.name for spec in contract.inputs]
    open_names = names[len(args) :]
    odd = sorted(set(kwargs) - set(open_names)) or sorted(set(open_names) - set(kwargs))
    if odd:
        raise UsageError(
            f"the inputs of {where}",
            f"{len(args)} by position, {sorted(kwargs)} by name: {odd} unknown, twice or missing",
            f"pass each of {', '.join(names)} once",
        )
    return [*args, *(kwargs[name] for name in open_names)]


class Program:
    """A loaded program, called with the tensors of its contract; `dimorder.load` returns one.

    Inputs come in the contract's sequence or by its names, and outputs are tensors. The dicts and named
    tuples of the network are not in the file: only a `dimorder.Lowered` takes and returns them. If the
    contract has `state`, each call goes on where the last call ended, until `reset`. No two programs share
    their state.

    Args:
        path: the file that was loaded.
        contract: what the program promises.
        method: the runtime's function from inputs to outputs, as the program's own signature has them.
        on_mismatch: what happens to a tensor in another order than promised (`guard.check`).
        runtime: the name of the runtime in errors.

    >>> import dimorder, tempfile
    >>> folder, x = tempfile.mkdtemp(), torch.randn(2, 3, 5, 7)
    >>> lowered = dimorder.lower(torch.nn.Conv2d(3, 8, 3), (x,), input_orders="NHWC")
    >>> program = dimorder.load(lowered.save(Path(folder, "net.pt2")))
    >>> torch.equal(program(x), lowered(x)), torch.equal(program(input=x), lowered(input=x))
    (True, True)
    >>> program.stats.conversions  # x lay in NCHW, twice
    2
    >>> [y.shape for y in program.run(x)]  # a tuple, also of one output
    [torch.Size([2, 8, 3, 5])]
    >>> program.reset()  # nothing here: this network writes no buffer
    """

    def __init__(
        self,
        path: Path,
        contract: Contract,
        method: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
        on_mismatch: OnMismatch,
        runtime: str,
    ) -> None:
        self.path = path
        self.contract = contract
        self.on_mismatch: OnMismatch = on_mismatch
        self._calls = 0
        self._adapted = Stats()
        self._quick_check = quick_check(contract)
        self._quick_restore = quick_restore(contract)
        self._method = method
        self._runtime = runtime

    @property
    def stats(self) -> Stats:
        """Return what the guard has done since the program was loaded."""
        return replace(self._adapted, calls=self._calls)

    def __call__(
        self, *args: torch.Tensor, on_mismatch: OnMismatch | None = None, **kwargs: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the output, or a tuple if there are several; see `run`."""
        outputs = self.run(*args, on_mismatch=on_mismatch, **kwargs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(
        self, *args: torch.Tensor, on_mismatch: OnMismatch | None = None, **kwargs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Run the program, and return its outputs in logical shapes and the promised orders.

        Args:
            args: inputs by position.
            on_mismatch: what happens to a tensor in another order than promised. The default is what the
                program was loaded with.
            kwargs: inputs by name.

        Returns:
            The outputs, one tensor each.

        Raises:
            ContractError: if a tensor does not keep the contract.
            UsageError: if an input is unknown, missing or passed twice.
            DimorderError: if the runtime fails.
        """
        given = bind_inputs(self.contract, args, kwargs, str(self.path)) if kwargs else args
        if on_mismatch is not None:
            require_choice(on_mismatch)
        chosen = on_mismatch or self.on_mismatch
        conversions: tuple[Adaptation, ...] = ()
        try:
            tensors = self._quick_check(given)
        except RuntimeError:  # a nested tensor has no shape, and one of torch.vmap no memory: `check` says so
            tensors = None
        if tensors is None:
            guarded = check(self.contract, given, chosen, device="cpu")
            tensors, conversions = list(guarded.tensors), guarded.conversions
        try:
            raw = self._method(tensors)
        except RuntimeError as error:
            raise DimorderError(
                f"running {self.path}",
                f"{self._runtime}: {error}",
                f"see the line that {self._runtime} logged before; an operator in it refuses these tensors",
            ) from error
        outputs: Sequence[torch.Tensor] | None = self._quick_restore(raw)
        if outputs is None:
            restored = restore(self.contract, raw, chosen)
            outputs, conversions = restored.tensors, conversions + restored.conversions
        self._calls += 1
        if conversions or self._adapted.last:
            self._adapted = self._adapted.after(conversions)
        return tuple(outputs)

    def reset(self) -> None:
        """Restore the state that the program had when it was loaded.

        This does nothing for a program without state.
        """
        reset = getattr(self._method, "reset", None)
        if reset is not None:
            reset()

    def __repr__(self) -> str:
        return f"Program({str(self.path)!r}, on_mismatch={self.on_mismatch!r})\n{self.contract}"
