"""Compare a program with its network on inputs of which the network may make much of a rounding.

On inputs of many magnitudes neighbours differ by up to six orders of magnitude. Examples may be all the same,
as `torch.ones` is. So the bound is not a tolerance. It is how far the network's outputs move when its inputs
change by a millionth, or when each operator rounds otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dimorder.graph.interpreter import GraphRun
from dimorder.verification.fp16_accumulation import HalfSums
from dimorder.verification.network_calls import Inputs, NetworkCalls, Run
from dimorder.verification.numerics import NoisyRun
from dimorder.verification.random_inputs import changed, scaled
from dimorder.verification.reference import Outputs, is_float16, is_half
from dimorder.verification.relative_error import TOLERANCE, finite_error
from dimorder.verification.selections import Numerics, Selections

_LEAST_SHARE = 1e-4  # of the inputs


class _Drawn(NamedTuple):
    """Inputs as the program takes them, and as the network does, with the network's outputs."""

    inputs: Inputs
    network_inputs: Inputs
    expected: Outputs


class AmplifyingInputs:
    """Inputs of a network, and its outputs there.

    Half precision may overflow on the way to them, and a runtime may make NaN of the infinity. Then a smaller
    share of the inputs is compared.

    Args:
        network: the network.
        like: draws the inputs, from the examples and a seed.
        seed: the seed.
    """

    def __init__(self, network: NetworkCalls, like: Callable[..., Inputs], seed: int) -> None:
        self.network, self.like, self.seed = network, like, seed
        self._drawn: dict[float, _Drawn | None] = {}

    @property
    def known_outputs(self) -> list[Outputs]:
        """The network's outputs, if a run has been compared, at each share of the inputs."""
        return [drawn.expected for drawn in self._drawn.values() if drawn is not None]

    def faults(
        self, run: Run, half_sums: bool, selections: Selections | None, share: float = 1.0
    ) -> list[str]:
        """Return the outputs that differ by more than a small change of the inputs, or float16 sums, explain.

        Outputs of integers are not compared. There are no faults if the network does not take such inputs.

        Args:
            run: takes and returns tensors as the program's signature has them.
            half_sums: whether the program may keep sums in float16.
            selections: the program that also returns its places, if it selects other ones than the network.
            share: the share of the inputs that is compared.
        """
        drawn = self._at(share)
        if drawn is None:
            return []
        network = self.network
        rounding = max(TOLERANCE, 4 * network.eps)
        got, expected = network.program_outputs(run, drawn.inputs), drawn.expected
        outputs: Callable[[Inputs], Outputs | str] = network.outputs
        follow: Callable[[Numerics], Numerics] = (
            selections.follow if selections else lambda numerics: numerics
        )
        if selections is not None:
            outputs = partial(network.exported_outputs, follow(GraphRun))
            expected = outputs(drawn.network_inputs)
        pairs = enumerate(zip(got, expected, strict=True))
        errors = {i: finite_error(g, w) for i, (g, w) in pairs if w.is_floating_point()}
        errors = {i: error for i, error in errors.items() if not error <= rounding}
        if not errors:
            return []
        factor, change = (4, network.eps) if is_half(network.eps) else (100, 1e-6)

        def beyond(others: Outputs) -> dict[int, float]:
            bounds = {i: factor * finite_error(others[i], expected[i]) for i in errors}
            return {i: error for i, error in errors.items() if not error <= bounds[i]}

        moved = outputs(changed(drawn.network_inputs, change, self.seed))
        if isinstance(moved, str):
            return []
        errors = beyond(moved)
        # If operators rounded otherwise, two values that tie may differ.
        noisy = partial(network.exported_outputs, follow(NoisyRun))
        errors = beyond(noisy(drawn.network_inputs)) if errors else {}
        if errors and half_sums and is_float16(network.eps):  # a sum of finite terms may overflow
            with HalfSums():
                errors = beyond(network.exported_outputs(follow(GraphRun), drawn.network_inputs))
        leaves = network.leaves_of(drawn.network_inputs)
        may_overflow = is_half(network.eps) and share > _LEAST_SHARE
        if errors and may_overflow and network.functional.overflows(leaves, follow):
            return self.faults(run, half_sums, selections, share / 16)
        return [
            f"{network.named(i)} differs from PyTorch's by {error:.2e} of its largest value"
            for i, error in errors.items()
        ]

    def _at(self, share: float) -> _Drawn | None:
        """Return a share of the inputs with the network's outputs, or None if the network takes no such."""
        if share not in self._drawn:
            inputs, network_inputs = self.network.draw(scaled(self.like, share), self.seed)
            expected = self.network.outputs(network_inputs)
            drawn = None if isinstance(expected, str) else _Drawn(inputs, network_inputs, expected)
            self._drawn[share] = drawn
        return self._drawn[share]
