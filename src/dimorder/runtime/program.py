"""Decides how a loaded program is called: its tensors are checked, or adapted, before it runs and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dimorder.contract import Contract
from dimorder.errors import DimorderError, UsageError
from dimorder.runtime.guard import Adaptation, OnMismatch, check, restore


@dataclass(frozen=True)
class Stats:
    """What a program's guard has done since it was loaded; `last` is what it converted in the latest call."""

    calls: int = 0
    conversions: int = 0
    cost_bytes: int = 0
    last: tuple[Adaptation, ...] = ()


class Program:
    """A loaded program, called like the network it was lowered from; made by `dimorder.load`.

    `contract` is what it promises, `stats` what its guard did, `on_mismatch` what that does (`guard.check`);
    `runtime` is what errors call whatever computes `method`.

    Where the contract has `state`, each call goes on where the last one ended, until `reset`. No two programs
    share their state.
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
        self.stats = Stats()
        self._method = method
        self._runtime = runtime

    def __call__(
        self, *args: torch.Tensor, **kwargs: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The output, or a tuple where there are several; see `run`."""
        outputs = self.run(*args, **kwargs)
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, each of its logical shape and in the order that the contract promises.

        Inputs are positional, by name, or both. Raises `ContractError` for tensors that do not keep the
        contract, `UsageError` for names that it does not have, `DimorderError` where the runtime fails.
        """
        guarded = check(self.contract, self._bind(args, kwargs), self.on_mismatch, device="cpu")
        try:
            raw = self._method(list(guarded.tensors))
        except RuntimeError as error:
            raise DimorderError(
                f"running {self.path}",
                f"{self._runtime}: {error}",
                f"see the line that {self._runtime} logged before; an operator in it refuses these tensors",
            ) from error
        outputs = restore(self.contract, raw, self.on_mismatch)
        conversions = guarded.conversions + outputs.conversions
        cost = self.stats.cost_bytes + guarded.cost_bytes + outputs.cost_bytes
        self.stats = Stats(self.stats.calls + 1, self.stats.conversions + len(conversions), cost, conversions)
        return outputs.tensors

    def reset(self) -> None:
        """The state as it was when the program was loaded; of one without, nothing."""
        reset = getattr(self._method, "reset", None)
        if reset is not None:
            reset()

    def _bind(self, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        if not kwargs:
            return list(args)
        names = [spec.name for spec in self.contract.inputs]
        open_names = names[len(args) :]
        odd = sorted(set(kwargs) - set(open_names)) or sorted(set(open_names) - set(kwargs))
        if odd:
            raise UsageError(
                f"the inputs of {self.path}",
                f"{len(args)} by position, {sorted(kwargs)} by name: {odd} unknown, twice or missing",
                f"pass each of {', '.join(names)} once",
            )
        return [*args, *(kwargs[name] for name in open_names)]

    def __repr__(self) -> str:
        return f"Program({str(self.path)!r}, on_mismatch={self.on_mismatch!r})\n{self.contract}"
