"""Ranges of sizes that cannot be served are refused, each with its reason."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import dimorder
from dimorder.capture.size_refusals import refused_sizes
from dimorder.errors import UnsupportedError, UsageError, VerificationError
from tests import zoo
from tests.sizes.symbols import BATCH, TARGETS, Gated, errors, refusal


def test_tosa_has_one_graph_per_size() -> None:
    assert refusal(Gated().eval(), torch.ones(2, 3, 8, 8), BATCH, target="tosa") == [
        "target tosa",
        "  found: dynamic sizes, N = 1 … 16: its graphs have fixed ones",
        "  fix: lower one graph for each size: dimorder.lower_sizes",
    ]


def test_a_size_without_an_upper_bound_is_refused() -> None:
    assert refusal(Gated().eval(), torch.ones(2, 3, 8, 8), ({0: Dim("N", min=1)},)) == [
        "input x, dim 0",
        "  found: the size N, without an upper bound",
        '  fix: say how large it may be: torch.export.Dim("N", min=1, max=16)',
    ]


def line_of(network: type[nn.Module], step: int) -> str:
    """Return a line of a network's forward as errors name it."""
    return f"test_refusals.py:{inspect.getsourcelines(network.forward)[1] + step}"


def test_a_fraction_that_floats_round_is_no_size() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=0.29)  # of 100 it makes 28

    dims = ({2: Dim("H", min=8, max=109)},)
    _, found, fix = refusal(Scaled(), torch.ones(1, 3, 11, 13), dims, target="torch")
    assert "depends on a dynamic size in a way that we cannot express" in found and "fix the size" in fix


class WithNumber(nn.Module):
    def __init__(self, has_size: bool) -> None:
        super().__init__()
        self.has_size = has_size

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x.sin(), x.shape[0] * 2 if self.has_size else 3


def test_a_number_may_be_returned_with_dynamic_sizes_and_a_size_is_refused() -> None:
    x = torch.randn(2, 3, 5)
    lowered = dimorder.lower(WithNumber(False), (x[:1],), dynamic_shapes=BATCH, target="torch")
    assert lowered(x)[1] == 3
    assert refusal(WithNumber(True), x, BATCH, target="torch")[1:] == [
        "  found: a size among what the network returns",
        "  fix: return tensors: their shapes tell their sizes",
    ]


class LastTwo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -2:]


class Squeezed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().squeeze(1)


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (LastTwo(), "(3, 1, 5); torch.export says (3, 2, 5)"),
        (Squeezed(), "(3, 5); torch.export says (3, 1, 5)"),
    ],
)
def test_an_output_of_another_shape_at_a_size_of_one_is_told_with_both(
    module: nn.Module, shapes: str
) -> None:
    dims = ({1: Dim("N", min=1, max=16)},)
    assert refusal(module, torch.ones(3, 7, 5), dims, target="xnnpack") == [
        "the physical program for xnnpack, at N = 1",
        f"  found: output 0 has the shape {shapes}",
        "  fix: let the ranges begin at 2 (min=2), or return the same dimensions and sizes there",
    ]


@pytest.mark.parametrize(
    ("size", "dim", "found", "fix"),
    [
        (
            *(96, 8 * Dim("H", min=2, max=5), "a size of 96 in the example inputs, whose range is 16 to 40"),
            "give example inputs within the ranges, or wider ranges",
        ),
        (
            *(
                33,
                8 * Dim("H", min=2, max=5),
                "shape[2] = 33 in the example inputs, which is no multiple of 8",
            ),
            "give example inputs of sizes that dynamic_shapes allow, or other dynamic_shapes",
        ),
    ],
)
def test_an_example_outside_of_the_ranges_is_told(size: int, dim: Any, found: str, fix: str) -> None:
    told = refusal(nn.Conv2d(3, 5, 3), torch.ones(2, 3, size, 9), ({2: dim},))
    assert told == ["torch.export of Conv2d", f"  found: {found}", f"  fix: {fix}"]


@pytest.mark.parametrize("step", [1, 2])
def test_a_size_that_the_network_fixes_is_named_with_its_place(step: int) -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.avg_pool2d(x, x.shape[2:], divisor_override=5)

    dims = ({2: step * Dim("H", min=2, max=9) if step > 1 else Dim("H", min=2, max=9)},)
    assert refusal(Fixed(), torch.ones(2, 3, 8, 6), dims) == [
        f"torch.export of Fixed ({line_of(Fixed, 1)})",
        f"  found: the network takes one size alone: {'2*' * (step > 1)}H = 8 (dim 2 of x)",
        "  fix: give a fixed size there (None in dynamic_shapes), or let the network compute with x.shape",
    ]


def test_a_size_that_the_network_fixes_is_named_where_constants_decide_too() -> None:
    class Summed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.sum(torch.arange(1, 2).tolist(), keepdim=True)
            return nn.functional.avg_pool2d(x, x.shape[2:], divisor_override=5)

    assert refusal(Summed(), torch.ones(2, 3, 8, 6), ({2: Dim("H", min=2, max=9)},)) == [
        f"torch.export of Summed ({line_of(Summed, 2)})",
        "  found: the network takes one size alone: H = 8 (dim 2 of x)",
        "  fix: give a fixed size there (None in dynamic_shapes), or let the network compute with x.shape",
    ]


class Pieces(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([piece.relu().mean(1) for piece in x.split(8, 1)]).sum(0)


@pytest.mark.parametrize("least", [2, 3, 4])
def test_a_dynamic_size_does_not_decide_the_number_of_pieces(least: int) -> None:
    x, dims = torch.ones(2, 32, 3), ({1: 8 * Dim("L", min=least, max=8)},)
    where, found, _ = refusal(Pieces(), x, dims)
    assert where == f"torch.export of Pieces ({line_of(Pieces, 1)})"
    assert found == "  found: the network takes one size alone: 8*L = 32 (dim 1 of x)"
    place, *rest = refusal(torch.export.export(Pieces(), (x,), dynamic_shapes=dims), x, None)  # silent of it
    assert place.startswith("aten.split.Tensor (test_refusals.py:") and place.endswith(" = 40")
    assert rest == [
        "  found: 5 pieces of a dynamic size, where the example inputs have 4",
        "  fix: narrow the range of sizes, or cut a fixed number of pieces",
    ]


def test_an_operator_that_would_give_a_size_below_zero_is_named() -> None:
    class Rest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.narrow(1, 24, x.shape[1] - 24).relu()

    place, found, _ = refusal(Rest(), torch.ones(2, 32, 3), ({1: 8 * Dim("L", min=2, max=8)},))
    assert place.startswith("aten.narrow (test_refusals.py:") and place.endswith("), at L = 16")
    assert found == "  found: RuntimeError: narrow(): length must be non-negative."


def test_sizes_that_must_be_equal_are_named_with_their_places() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    dims = {"x": {0: Dim("N", min=2, max=9)}, "y": {0: Dim("M", min=2, max=9)}}
    with pytest.raises(UnsupportedError) as refused:
        dimorder.lower(Sum(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=dims)
    assert str(refused.value).splitlines() == [
        f"torch.export of Sum ({line_of(Sum, 1)})",
        "  found: the network needs M (dim 0 of y) equal to N (dim 0 of x)",
        "  fix: give both the same Dim",
    ]


def test_a_cost_is_asked_for_at_a_size_of_the_range() -> None:
    module, x = Gated().eval(), torch.ones(2, 3, 8, 8)
    assert refusal(module, x, BATCH, cost_at={"N": 17}) == [
        "cost_at",
        "  found: N = 17",
        "  fix: give a size of N = 1 … 16",
    ]
    assert refusal(module, x, BATCH, cost_at={"M": 1})[1:] == [
        "  found: no symbol 'M'",
        "  fix: give sizes of N",
    ]


def test_an_exported_program_has_its_own_symbols() -> None:
    module = Gated().eval()
    exported = torch.export.export(module, (torch.ones(3, 3, 8, 6),), dynamic_shapes=BATCH)
    with pytest.raises(UsageError, match="an exported program, which has its own"):
        dimorder.lower(exported, dynamic_shapes=BATCH)
    lowered = dimorder.lower(exported)
    (symbol,) = lowered.contract.symbols
    assert (symbol.maximum, symbol.step) == (16, 1)
    for n in (1, 5, 16):
        assert max(errors(lowered, module, torch.randn(n, 3, 8, 6))) <= 1e-4


def test_integers_have_fixed_sizes_on_inductor() -> None:
    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            integers = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)
            y: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(
                integers, 0.5, 0, -128, 127, torch.int8
            )
            return y + 1

    assert refusal(Rounded(), torch.ones(2, 3), BATCH, target="inductor") == [
        "a quantised network",
        "  found: dynamic sizes, which target inductor has for networks of floats",
        "  fix: lower one program for each size, or choose target torch, xnnpack or litert",
    ]


def test_a_network_that_takes_only_some_sizes_is_refused_with_what_torch_suggests() -> None:
    dims = ({2: Dim("H", min=24, max=96)},)
    where, *rest = refusal(zoo.network("unet").build(), torch.ones(1, 3, 32, 64), dims)
    assert where.startswith("torch.export of UNet (own.py:")  # the line that joins a map with a larger one
    assert rest == [
        "  found: the network needs (2*(H // 4)) == (H // 2), which not all 24 <= H <= 96 satisfy "
        "(dim 2 of x)",
        "  fix: give sizes that the network takes: _H = Dim('_H', min=6, max=24), H = 4*_H",
    ]


def test_all_that_a_network_needs_of_one_size_is_named() -> None:
    size = "T = L['x'].size()[1] in the specified range 4 <= T <= 30"
    start = f"  - Not all values of {size} satisfy the generated guard "
    guards = ("max(1, (-8) + L['x'].size()[1]) <= L['x'].size()[1]", "L['x'].size()[1] != 9")
    text = "\n".join(["Constraints violated (T)!", *(f"{start}{guard}." for guard in guards)])
    found, fix = refused_sizes(text) or ("", "")
    assert found == (
        "the network needs max(1, (-8) + T) <= T and T != 9, which not all 4 <= T <= 30 satisfy (dim 1 of x)"
    )
    assert fix == "narrow the range, or fix the size"


def test_sizes_of_which_torch_finds_no_words_are_named_as_the_cause() -> None:
    found, _ = refused_sizes("Expected an equality constraint, got s53 < s0") or ("", "")
    assert found.startswith("operators that ask something of a dynamic size")


def test_a_suggested_range_without_an_end_is_python() -> None:
    found = refusal(torch.nn.Conv1d(3, 5, 7), torch.ones(1, 3, 32), ({2: Dim("L", min=2)},))
    assert found[2] == "  fix: give sizes that the network takes: L = Dim('L', min=7)"


def test_shapes_in_another_form_than_the_call_are_refused_with_torchs_reason() -> None:
    class Sum(nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return xs[0] + xs[1]

    batch, x = Dim("N", min=2, max=16), torch.ones(4, 3)
    with pytest.raises(UnsupportedError, match="of Sum") as refused:
        dimorder.lower(Sum(), (x, x), dynamic_shapes=({0: batch}, {0: batch}))
    assert str(refused.value).splitlines()[1:] == [
        "  found: dynamic_shapes of another structure than the arguments: `inputs` has 1 elements, "
        "but `dynamic_shapes` has 2 elements",
        "  fix: give an entry for each argument, {dim: Dim} or None, and a tuple of them for *args",
    ]
    lowered = dimorder.lower(Sum(), (x, x), dynamic_shapes=(({0: batch}, {0: batch}),))
    assert lowered.run(x[:2], x[:2]).shape == (2, 3)


class Placed(Gated):
    """Has no place above a size of 96."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(96.0)
        return super().forward(x + places[: x.shape[2], None] + places[: x.shape[3]])


@pytest.mark.parametrize("target", TARGETS)
def test_ranges_of_two_sizes_are_planned_at_larger_sizes_too(target: str) -> None:
    dims, module = ({0: Dim("N", max=2), 2: 32 * Dim("H", min=2, max=3)},), Gated().eval()
    lowered = dimorder.lower(module, (torch.randn(1, 3, 64, 48),), target=target, dynamic_shapes=dims)
    for count, high in ((1, 64), (2, 96), (1, 96), (2, 64)):
        assert max(errors(lowered, module, torch.randn(count, 3, high, 48))) <= 1e-5


def test_ranges_with_too_few_sizes_to_tell_symbols_apart_are_refused() -> None:
    dims = ({2: 32 * Dim("H", min=2, max=3), 3: 32 * Dim("W", min=2, max=3)},)
    assert refusal(Placed().eval(), torch.ones(1, 3, 64, 96), dims) == [
        "the ranges of sizes",
        "  found: too few sizes in H = 64 … 96 in steps of 32, W = 64 … 96 in steps of 32",
        "  fix: give each range three sizes above its step, or two if it is the only one, or fix a size",
    ]


class Resized(nn.Module):
    """A resize with torch's options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.interpolate(x, **self.options)


@pytest.mark.parametrize(
    ("network", "dims", "why"),
    [
        (
            Resized(size=(4, 7), mode="bilinear", antialias=True, align_corners=True),
            ({0: Dim("N", min=1, max=5), 3: Dim("W", min=3, max=11)},),
            "the portable kernel does not change the size of its result",
        ),
        (
            Resized(scale_factor=0.5, mode="bicubic", align_corners=True),
            ({3: Dim("W", min=3, max=11)},),
            "PyTorch decomposes it with a division by the new size less 1, and the size may be 1",
        ),
    ],
)
def test_a_resize_that_executorch_computes_wrongly_at_some_sizes_is_refused(
    network: nn.Module, dims: Any, why: str
) -> None:
    _, found, fix = refusal(network, torch.ones(2, 3, 6, 9), dims, target="xnnpack")
    assert found.startswith(f"  found: {why} (outside because: XNNPACK has no aten.")
    assert fix == "  fix: replace it in the module, or run that part in torch"


def test_an_aligned_resize_is_of_any_batch_if_no_row_or_column_is_alone() -> None:
    network = Resized(scale_factor=0.5, mode="bicubic", align_corners=True)
    dims = ({0: Dim("N", min=1, max=5), 3: Dim("W", min=4, max=11)},)
    lowered = dimorder.lower(network, (torch.randn(2, 3, 6, 9),), target="xnnpack", dynamic_shapes=dims)
    for n, width in ((1, 4), (5, 11), (2, 7)):
        assert max(errors(lowered, network, torch.randn(n, 3, 6, width))) <= 1e-5


def test_a_resize_to_a_size_that_the_batch_may_have_is_in_the_delegate() -> None:
    network, dims = (
        Resized(size=(1, 2), mode="bilinear", antialias=True),
        ({0: Dim("N", min=1, max=3)},),
    )
    lowered = dimorder.lower(network, (torch.randn(2, 3, 4, 5),), target="xnnpack", dynamic_shapes=dims)
    assert lowered.artifact is not None and not lowered.artifact.outside
    for n in (1, 2, 3):
        assert max(errors(lowered, network, torch.randn(n, 3, 4, 5))) <= 1e-5


def test_two_multiples_of_one_size_are_named() -> None:
    """As the maps of a pyramid have them."""

    class Joined(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.cat([x.relu(), y], 1)

    height = Dim("h", min=4, max=20)
    example, dims = (torch.randn(3, 16), torch.randn(3, 8)), ({1: 2 * height}, {1: height})
    with pytest.raises(UsageError, match=r"the size 1\*h, and 2\*h in another place"):
        dimorder.lower(Joined(), example, dynamic_shapes=dims)


def test_what_is_computed_from_selected_places_is_refused_for_its_selections() -> None:
    """The distances of points to themselves are roundings, by whose inverses all others are weighted."""

    class Interpolated(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            far, places = torch.cdist(x[:, ::4], x).transpose(1, 2).topk(3, largest=False)
            weights = 1 / (far + 1e-3)
            rows = y[torch.arange(x.shape[0]).view(-1, 1, 1), places]
            return (rows * weights.unsqueeze(-1)).sum(2) / weights.sum(2, keepdim=True)

    count, batch = 4 * Dim("n", min=3, max=20), Dim("b", min=1, max=4)
    dims = ({0: batch, 1: count}, {0: batch, 1: count})
    example = (torch.randn(2, 40, 3), torch.randn(2, 40, 5))
    with pytest.raises(VerificationError, match="return what it selects from"):
        dimorder.lower(Interpolated(), example, dynamic_shapes=dims)


class Looped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(x.shape[0], 6)
        for i in range(x.shape[1]):
            y = (y + x[:, i]).relu()
        return y


class Longer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y if x.shape[1] > 20 else y.relu()


class Quartered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool1d(x.transpose(1, 2), x.shape[1] // 4)


class Wider(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) if x.shape[0] > x.shape[1] else x.exp()


class Remembering(nn.Module):
    """Computes places for one length, and keeps these for further calls."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0
        self.places = torch.ones(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, ::2].relu()
        if y.shape[1] != self.length:
            self.length, self.places = y.shape[1], torch.arange(y.shape[1])[:, None] * 0.1
        return y + self.places


def test_a_multiple_that_torch_fixes_is_refused_for_its_line() -> None:
    x, network = torch.randn(2, 12, 5), Remembering()
    network(x)
    dims = ({0: Dim("N", min=1, max=5), 1: 4 * Dim("T", min=2, max=9)},)
    where, found, _ = refusal(network, x, dims, target="torch")
    assert where == f"torch.export of Remembering ({line_of(Remembering, 2)})"
    assert found == "  found: the network takes one size alone: 4*T = 12 (dim 1 of x)"


@pytest.mark.parametrize(
    "network, step, found",
    [
        (Looped(), 2, "the network takes one size alone: T = 17 (dim 1 of x)"),
        (
            Longer(),
            2,
            "the network needs 4 <= T and T <= 20, which not all 4 <= T <= 40 satisfy (dim 1 of x)",
        ),
        (Quartered(), 1, "the network needs (T // 4) == 4, which not all 4 <= T <= 40 satisfy (dim 1 of x)"),
    ],
)
def test_a_refusal_names_the_line_that_decides_by_a_size(network: nn.Module, step: int, found: str) -> None:
    dims = ({0: Dim("N", min=1, max=30), 1: Dim("T", min=4, max=40)},)
    where, what, _ = refusal(network, torch.randn(7, 17, 6), dims, target="torch")
    assert where == f"torch.export of {type(network).__name__} ({line_of(type(network), step)})"
    assert what == f"  found: {found}"


def test_a_network_that_decides_by_two_sizes_is_refused_for_the_line() -> None:
    dims = ({0: Dim("N", min=1, max=30), 1: Dim("T", min=4, max=40)},)
    _, found, fix = refusal(Wider(), torch.randn(7, 17, 6), dims, target="torch")
    assert f"the network decides by sizes at {line_of(Wider, 1)}: output 0 has" in found
    assert "narrow the ranges" in fix
