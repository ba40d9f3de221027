"""Describe a network of the zoo, and build it so that it hides no mistake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Shape = tuple[int, ...]
# What a network is fed, from a generator and a batch: a tuple by position, or a dictionary by name.
Draw = Callable[[torch.Generator, int], "tuple[Any, ...] | dict[str, Any]"]
# How a part of a network is converted to what is deployed, from the part and what it is called with.
Convert = Callable[..., nn.Module]
SQUARE_224 = (1, 3, 224, 224)


@dataclass(frozen=True)
class Network:
    """A network of the zoo. `shape` is that of its one float32 input, batch first.

    `make` gives the bare module; `build` gives the one to test with, seeded and in eval mode. That is
    perturbed and calibrated, unless it is pretrained or tagged `constructor`. `draw` makes the inputs of a
    network that takes several, or integers; its `shape` is empty.

    `parts` are converted last, each by the name of its module, and the network itself by an empty name.
    `targets` has what each target does with a network that `test_named_targets.py` lowers. It is the error
    that the results may have, as a part of their norm, or the text of a refusal.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: Shape
    tags: frozenset[str]
    draw: Draw | None = None
    parts: Mapping[str, Convert] = field(default_factory=dict, hash=False)
    targets: Mapping[str, float | str] = field(default_factory=dict, hash=False)

    def build(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.make().eval()
        if self.tags & {"pretrained", "constructor"}:
            return module
        perturb(module, seed)
        args, kwargs = self.call(batch=2, seed=seed)
        calibrate(module, *args, **kwargs)
        args, kwargs = self.call(seed=seed)
        return convert_parts(module, self.parts, *args, **kwargs)

    def call(self, batch: int = 1, seed: int = 1) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Seeded inputs by position and by name, with `batch` for their first dimension: standard normal, or
        as they are drawn."""
        generator = torch.Generator().manual_seed(seed)
        if self.draw is None:
            return (torch.randn((batch, *self.shape[1:]), generator=generator),), {}
        drawn = self.draw(generator, batch)
        return ((), drawn) if isinstance(drawn, dict) else (drawn, {})

    def inputs(self, batch: int = 1, seed: int = 1) -> tuple[Any, ...]:
        """The inputs by position, of a network that takes none by name."""
        args, kwargs = self.call(batch, seed)
        assert not kwargs, f"{self.name} takes {', '.join(kwargs)} by name"
        return args

    def run(self, module: nn.Module, batch: int = 1, seed: int = 1) -> list[Tensor]:
        """The tensors that a network of this row gives for these inputs."""
        args, kwargs = self.call(batch, seed)
        with torch.no_grad():
            return [x for x in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(x, Tensor)]


def row(name: str, make: Callable[[], nn.Module], inputs: Shape | Draw, tags: str, **options: Any) -> Network:
    """One network, with the shape of its one input, or what draws its inputs. The options are more fields."""
    shape, draw = ((), inputs) if callable(inputs) else (inputs, None)
    return Network(name, make, shape, frozenset(tags.split()), draw, **options)


def perturb(module: nn.Module, seed: int = 0) -> nn.Module:
    """Moves every value that an initialiser left constant, in place: a zero or a one hides mistakes.

    Biases, scales, slopes and running statistics get noise of a tenth; a weight matrix that is constant
    becomes a random one. Variances stay positive. The same seed moves the same module the same way.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not value.is_floating_point() or value.numel() == 0:
                continue
            if name.endswith("running_var"):
                value.mul_(1 + 0.4 * torch.rand(value.shape, generator=generator))
            elif _is_vector(value) or name.endswith("running_mean"):
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
            elif _is_constant(value):
                fan_in = value[0].numel()
                value.copy_(torch.randn(value.shape, generator=generator) / fan_in**0.5)
    return module


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return a network of random weights, none of them constant; one seed gives one network."""
    torch.manual_seed(seed)
    return perturb(make().eval(), seed)


def calibrate(module: nn.Module, *inputs: Any, **named: Any) -> nn.Module:
    """Set every batch-norm's running statistics to those of `inputs` (batch of 2 or more), in place.

    With the statistics of an initialiser the activations of a MobileNet die out on the way. Its output would
    be the same for every input, and a wrong program would pass for a right one. A channel that is nearly dead
    gets a tenth of the others' variance: divided by its own, it would drown them in rounding.
    """
    norms = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return module
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = 1.0
    with torch.no_grad():
        module(*inputs, **named)
        for norm in norms:
            norm.running_var.clamp_(min=norm.running_var.mean() / 10)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval().momentum = momentum
    return module


def convert_parts(module: nn.Module, parts: Mapping[str, Convert], *inputs: Any, **named: Any) -> nn.Module:
    """Replace parts of a network by what they are converted to. Each is given its first call's inputs."""
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda part, args, kwargs: calls.setdefault(name, (args, kwargs)) and None

    hooks = [
        module.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True) for name in parts
    ]
    if parts:
        with torch.no_grad():
            module(*inputs, **named)
    for hook in hooks:
        hook.remove()
    for name, convert in parts.items():
        args, kwargs = calls[name]
        converted = convert(module.get_submodule(name), *args, **kwargs)
        if not name:
            return converted
        module.set_submodule(name, converted)
    return module


class Halved(nn.Module):
    """A part that computes in half precision, in a network of float32 or of integers."""

    def __init__(self, part: nn.Module, dtype: torch.dtype = torch.float16) -> None:
        super().__init__()
        self.part, self.dtype = part.to(dtype), dtype

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _cast((args, kwargs), self.dtype)
        return _cast(self.part(*args, **kwargs), torch.float32)


def in_half(part: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Convert a part to float16."""
    return Halved(part)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(cast, value)


def _is_vector(value: Tensor) -> bool:
    return value.numel() == max(value.shape, default=1)


def _is_constant(value: Tensor) -> bool:
    return bool((value == value.flatten()[0]).all())


class Field(nn.Module):
    """One field of a network that returns a dictionary."""

    def __init__(self, network: nn.Module, key: str) -> None:
        super().__init__()
        self.network = network
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.key]
