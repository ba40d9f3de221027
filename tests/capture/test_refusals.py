"""Test that a network that cannot be captured is an error of three lines. They are the construct with its
source line, what was found, and the way round.
"""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops import scan, while_loop
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx

import dimorder
from dimorder.capture.captured import capture
from dimorder.capture.refusals import not_exported
from dimorder.errors import DimorderError, UnsupportedError, UsageError

ROW = torch.linspace(-1, 1, 3)


class Nonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero()  # here


class MaskedSelect(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.masked_select(x, x > 0)  # here


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()  # here


class MaskedLinear(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x[x > 0.5], torch.ones(5, 4))  # here


class Array(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, x.sum(0).topk(2)[1].detach().numpy()]  # here


class SizeOfItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(int(x.sum().item()) + 1)  # here


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # here
            return x + 1
        return x - 1


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum())):  # here
            x = x + 1
        return x


class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.again, torch.neg, (x,))  # here

    def again(self, x: Tensor) -> Tensor:
        return torch.cond(x.max() > 1, torch.relu, torch.exp, (x,))


class While(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))  # here


class Map(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mapped(lambda v: v.relu(), x)  # here


class Scan(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return scan(lambda a, v: (a + v, a * v), x[0], x)  # here


class CondWrites(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda v: v.add_(1) * 2, lambda v: v * 3, (x,))  # here


class MapsShared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mapped(lambda v, first: v.sin() + first, x, x[0])  # here


class GradientWithout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(x.square().sum(), x)[0]  # here


class WritesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2  # here


class WritesItsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.add_(x) * 2  # here


class Drops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.1) * 2  # here


class Asserts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 4:
            raise AssertionError  # here
        return x * 2


BY_DATA = (
    "torch.export of {name} ({line})",
    "Python decides by the elements of a tensor, in an `if`, a loop or a size",
    "choose by torch.where, or compute what decides before the export",
)
SIZE = "keep the size, torch.where(mask, x, 0), or take a fixed number: torch.topk"
KEEP = "return the new value as an output instead, or keep it in a buffer"
CALL = "call the network once before lowering if only its first call writes"
TOLD: dict[type[nn.Module], tuple[str, str, str]] = {
    Nonzero: ("aten.nonzero ({line})", "a result whose size the data decide: (u0, 2)", SIZE),
    MaskedSelect: ("aten.masked_select ({line})", "a result whose size the data decide: (u0)", SIZE),
    MaskedLinear: ("aten.index.Tensor ({line})", "a result whose size the data decide: (4)", SIZE),
    Item: (
        "aten.item ({line})",
        "a number that is read out of a tensor",
        "keep it a tensor, or make it a constant",
    ),
    Array: (
        "torch.export of {name} ({line})",
        "NumPy reads the elements of a tensor, which torch.export cannot trace",
        "compute it in torch, or before the export if the inputs do not matter",
    ),
    SizeOfItem: BY_DATA,
    Branch: BY_DATA,
    Loop: BY_DATA,
    Cond: (
        "cond ({line})",
        "control flow within a branch of torch.cond",
        "compute both and choose: torch.where(condition, a, b)",
    ),
    While: (
        "while_loop ({line})",
        "control flow: data decide how often a loop runs",
        "run it a fixed number of times, or lower its body and loop outside",
    ),
    Map: (
        "map_impl ({line})",
        "control flow: a function that is mapped over a dimension",
        "write it for all of the dimension at once, with torch.vmap perhaps",
    ),
    Scan: (
        "scan ({line})",
        "control flow: a function that is scanned over a dimension",
        "unroll it in Python, or lower one step that keeps what it carries in a buffer",
    ),
    CondWrites: (
        "cond ({line})",
        "control flow with a function that writes to what it gets",
        "compute a new value there: x + 1, not x.add_(1)",
    ),
    MapsShared: (
        "torch.export of {name} ({line})",
        "control flow with a function that gets or returns one tensor twice, or returns what it gets",
        "clone it: x.clone()",
    ),
    GradientWithout: (
        "torch.export of {name} ({line})",
        "a gradient (torch.autograd.grad, torch.func.grad), which torch.export cannot trace",
        "lower its graph instead: torch.fx.experimental.proxy_tensor.make_fx(network)(*inputs)",
    ),
    Drops: (
        "aten.dropout ({line})",
        "random numbers",
        "F.dropout drops in eval mode too, unless it is told not to: pass training=self.training",
    ),
    Asserts: (
        "torch.export of {name} ({line})",
        "AssertionError: raise AssertionError # here",
        "make the module exportable, and check the shapes of the example inputs",
    ),
    WritesItsInput: (
        "user input x ({line})",
        "the program writes to it",
        f"write to a copy, as x = x.clone(); or {KEEP}",
    ),
    WritesItsWeight: ("parameter weight ({line})", "the program writes to it", f"{KEEP}; {CALL}"),
}


@pytest.mark.parametrize("network", TOLD, ids=lambda network: network.__name__)
def test_a_refusal_says_what_and_where_and_the_way_round(network: type[nn.Module]) -> None:
    place, found, fix = TOLD[network]
    lines, first = inspect.getsourcelines(network)
    number = first + next(i for i, line in enumerate(lines) if "# here" in line)
    with pytest.raises(UnsupportedError) as caught:
        capture(network(), (torch.rand(2, 3),))
    at = place.format(name=network.__name__, line=f"test_refusals.py:{number}")
    assert str(caught.value) == f"{at}\n  found: {found}\n  fix: {fix}"


def test_elements_of_which_torch_says_no_more_are_told_in_the_same_words() -> None:
    error = not_exported(nn.ReLU(), DataDependentOutputException(torch.ops.aten.item.default))
    assert (error.found, error.fix) == BY_DATA[1:]


class Forces(nn.Module):
    """The gradient of an energy by the places, as torch.autograd or as torch.func computes it."""

    def __init__(self, energy: nn.Module, is_function: bool = False) -> None:
        super().__init__()
        self.energy, self.is_function = energy, is_function

    def forward(self, x: Tensor) -> Tensor:
        if self.is_function:
            return torch.func.grad(lambda places: self.energy(places).sum())(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).sum(), x)[0]


def _energy() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


UNREADABLE = {
    "forces": (Forces(_energy()), "a gradient", "lower its graph instead"),
    "forces by a function": (Forces(_energy(), is_function=True), "a gradient", "lower its graph instead"),
    "lazy": (nn.Sequential(nn.LazyLinear(4)), "a lazy module", "call the network once before"),
    "script": (torch.jit.script(_energy()), "TorchScript", "pass the module that"),
    "trace": (torch.jit.trace(_energy(), ROW), "TorchScript", "pass the module that"),
    "part": (nn.Sequential(nn.Tanh(), torch.jit.script(_energy())), "TorchScript", "pass the module that"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_torch_export_cannot_read_is_refused(name: str) -> None:
    network, found, fix = UNREADABLE[name]
    with pytest.raises(UnsupportedError) as caught:
        capture(network, (ROW,))
    assert caught.value.found.startswith(found) and caught.value.fix.startswith(fix)


def test_a_scripted_part_is_named_and_a_traced_one_is_taken() -> None:
    network = nn.Sequential(nn.Tanh(), torch.jit.script(_energy()))
    with pytest.raises(UnsupportedError, match=r"part '1' of Sequential\n"):
        capture(network, (ROW,))
    traced = nn.Sequential(nn.Tanh(), torch.jit.trace(_energy(), ROW))
    assert torch.allclose(dimorder.lower(traced, (ROW,))(ROW), traced(ROW), atol=1e-6)


def test_weights_of_inference_mode_are_refused_outside_of_it_and_taken_within() -> None:
    with torch.inference_mode():
        network = _energy()
        assert dimorder.lower(network, (ROW,))(ROW).shape == (1,)
    with pytest.raises(UnsupportedError, match="weights that were made within"):
        capture(network, (ROW,))


def test_an_autocast_around_the_call_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UsageError, match="it is on"):
        dimorder.lower(_energy(), (ROW,))


def test_threads_lower_one_after_another() -> None:
    networks = [_energy() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        lowered = list(pool.map(lambda network: dimorder.lower(network, (ROW,), target="torch"), networks))
    for network, program in zip(networks, lowered, strict=True):
        assert torch.allclose(program(ROW), network(ROW), atol=1e-6)


@pytest.mark.parametrize("is_function", [False, True])
def test_a_graph_of_gradients_is_lowered(is_function: bool) -> None:
    forces = Forces(_energy(), is_function)
    lowered = dimorder.lower(make_fx(forces)(ROW), (ROW,))
    assert torch.allclose(lowered(ROW), forces(ROW), atol=1e-6)


def test_gradients_of_weights_that_nobody_asked_for_are_refused() -> None:
    x = torch.randn(1, 2, 5, 6)
    graph = make_fx(Forces(nn.Conv2d(2, 3, 3)))(x)
    with pytest.raises(UnsupportedError, match="gradients of operands, some of which are not asked for"):
        capture(graph, (x,))


def test_a_number_that_is_read_out_of_a_tensor_is_refused_with_dynamic_sizes_too() -> None:
    class Checks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._check((x > 0).sum().item() <= 80)
            return x * 2

    sizes = ({0: torch.export.Dim("N", min=2, max=6)},)
    with pytest.raises(UnsupportedError, match="found: a number that is read out of a tensor"):
        dimorder.plan(Checks(), (torch.rand(3, 5),), dynamic_shapes=sizes)


class Weighs(nn.Module):
    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return x * mask


@pytest.mark.parametrize(
    ("args", "kwargs", "found", "fix"),
    [
        ((), {"mask": ROW}, "no example input for x", "give it with the others: args=(..., x)"),
        ((ROW,), {}, "no example input for mask", 'or by name kwargs={"mask": mask}'),
        (
            (ROW, ROW),
            {"mask": ROW},
            "too many positional arguments",
            "an example for each argument of forward",
        ),
        ((ROW,), {"mask": ROW, "mark": ROW}, "'mark'", "an example for each argument of forward"),
        ((ROW.numpy(),), {"mask": ROW}, "type numpy.ndarray", "give tensors, such as torch.as_tensor(x)"),
    ],
)
def test_example_inputs_that_forward_does_not_take_are_refused(
    args: Any, kwargs: Any, found: str, fix: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        capture(Weighs(), args, kwargs)
    assert found in caught.value.found and fix in caught.value.fix


@pytest.mark.parametrize(
    ("model", "found", "fix"),
    [
        (Weighs, "the class Weighs", "pass an instance: Weighs()"),
        (torch.neg, "neither a torch.nn.Module nor", "a function needs a module"),
    ],
)
def test_what_is_no_network_is_refused(model: Any, found: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        capture(model, (ROW,))
    assert found in caught.value.found and fix in caught.value.fix


def test_a_lowered_network_says_which_arguments_it_takes() -> None:
    lowered = dimorder.lower(Weighs(), (ROW,), {"mask": ROW})
    with pytest.raises(UsageError) as caught:
        lowered()
    assert str(caught.value) == (
        "the arguments\n  found: no arguments\n  fix: give 1 by position (x), by name mask"
    )


class Remembers(nn.Module):
    """Keeps what it has seen where torch.export does not look."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.kept, list):
            y, self.kept[0] = x + self.kept[0], x * 2
            return y
        self.kept = self.kept + 1
        return x * self.kept


@pytest.mark.parametrize("kept", [[torch.zeros(2, 3)], 0], ids=["a tensor in a list", "a number"])
def test_a_network_that_keeps_what_is_no_buffer_is_refused(kept: Any) -> None:
    with pytest.raises(UnsupportedError) as caught:
        dimorder.lower(Remembers(kept), (torch.rand(2, 3),))
    assert str(caught.value) == (
        "the network, called again on the same inputs\n"
        "  found: other results: it keeps something that is no buffer, or a kernel of PyTorch varies\n"
        "  fix: register what it keeps: self.register_buffer(name, tensor)"
    )


def test_a_tensor_that_is_written_and_no_buffer_is_refused() -> None:
    class Adds(Remembers):
        def forward(self, x: Tensor) -> Tensor:
            self.kept.add_(x)
            return x * self.kept

    with pytest.raises(UnsupportedError) as caught:
        dimorder.plan(Adds(torch.zeros(2, 3)), (torch.rand(2, 3),))
    assert str(caught.value) == (
        "tensor kept, which the network writes\n  found: it is an attribute, and no buffer\n"
        "  fix: register it: self.register_buffer('kept', tensor)"
    )


@pytest.mark.parametrize(
    ("network", "x", "found"),
    [
        (
            nn.Conv2d(3, 4, 3),
            torch.rand(1, 3, 5, 7).double(),
            "a product of double and float",
        ),
        (nn.Linear(7, 4).half(), torch.rand(2, 7), "a product of float32 and float16"),
        (nn.Linear(7, 4), torch.ones(2, 7).int(), "a product of int32 and float32"),
    ],
)
def test_an_input_of_another_type_than_the_weights_is_refused(
    network: nn.Module, x: torch.Tensor, found: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"found: {found}\n  fix: give inputs of the weights' type"):
        dimorder.lower(network, (x,))


N = torch.export.Dim("N", min=1, max=9)


@pytest.mark.parametrize(
    ("sizes", "found", "fix"),
    [
        (({0: "N"},), "dynamic_shapes with 'N' for dimension 0", "give torch.export.Dim"),
        ({0: N}, r"dynamic_shapes by \[0\], which are no names of arguments", "give .* one entry for each"),
        (({0: torch.export.Dim.AUTO},), "Dim.AUTO or such, which torch took for a fixed size", "give .*Dim"),
    ],
)
def test_dynamic_sizes_of_another_form_are_refused(sizes: Any, found: str, fix: str) -> None:
    with pytest.raises(DimorderError, match=rf"\n  found: {found}\n  fix: {fix}"):
        dimorder.lower(nn.Conv2d(3, 4, 3), (torch.rand(1, 3, 5, 7),), dynamic_shapes=sizes)


def test_a_file_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"~/net.pt2\n  found: no such file\n  fix: give the path of a .pt2"):
        dimorder.lower("~/net.pt2")
