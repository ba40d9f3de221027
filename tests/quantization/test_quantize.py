"""Float networks that become quantised ones: what is observed, how near the result is, what is wasted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dimorder

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from dimorder.errors import UnsupportedError, UsageError
from dimorder.graph.quantized import QUANTIZE
from dimorder.physical.wasted_levels import wasted_levels
from dimorder.targets import find
from tests.marks import slow_but
from tests.targets.quantised import by_arm


class Clamped(nn.Module):
    """Convolutions whose results are clamped, by a ReLU6 and by two bounds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3, groups=8)
        self.third = nn.Conv2d(8, 5, 1)
        with torch.no_grad():
            for conv in (self.first, self.second, self.third):
                conv.weight.mul_(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.first(x))
        x = F.hardtanh(self.second(x), -0.5, 2.0)
        return self.third(x)


def inputs(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 9, 11, generator=draw) for _ in range(count)]


def as_the_quantizer_observes(net: nn.Module) -> Any:
    """PT2E with XNNPACKQuantizer as it is."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    prepared = prepare_pt2e(
        torch.export.export(net, (inputs(1)[0],)).module(), find("xnnpack").recipes["int8"].quantizer()
    )
    for x in inputs(4):
        prepared(x)
    return convert_pt2e(prepared)


def test_what_a_clamp_takes_away_has_no_levels() -> None:
    net = Clamped().eval()
    made = dimorder.quantize(net, inputs(4))
    assert [each.wasted for each in made.wasted] == [0, 0]
    observed = as_the_quantizer_observes(net)
    stock = wasted_levels(observed.graph)
    assert max(each.wasted for each in stock) > 200
    real = net(inputs(1)[0])
    ours, theirs = ((real - each(inputs(1)[0])).square().sum() for each in (made.module, observed))
    assert ours < theirs / 4


class Padded(Clamped):
    """Zeros around what a ReLU6 gives, by an operator of their own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.pad(F.relu6(self.first(x)), (1, 2, 0, 1)))


def test_a_padded_value_has_the_scale_of_what_is_padded() -> None:
    made = dimorder.quantize(Padded().eval(), inputs(4))
    graph = dimorder.lower(made, target="xnnpack", input_orders="NHWC").physical.graph
    values = [node for node in graph.nodes if node.target is QUANTIZE]
    (scales,) = {(node.args[1], node.args[2]) for node in values[1:-1]}
    assert len(values) == 3 and scales[0] <= 6 / 255


def test_a_float_network_becomes_an_int8_program() -> None:
    made = dimorder.quantize(Clamped().eval(), iter(inputs(20)))
    assert len(made.examples) == 16
    lowered = dimorder.lower(made, target="xnnpack", input_orders="NHWC", input_types="int8")
    assert (lowered.artifact.delegates, lowered.plan.outside) == (1, ())
    assert lowered.contract.inputs[0].dtype == "int8"
    (told,) = made.compare(lowered)
    assert told.name == "output0" and told.quanta is not None and told.off is not None
    assert told.snr_db is not None and told.snr_db > 25
    assert told.quanta <= 2 and told.off < 0.02
    assert lowered.to_dict()["wasted_levels"][0] == {
        "value": lowered.wasted[0].value,
        "levels": 256,
        "wasted": 0,
    }


def test_a_quantised_weight_is_stored_as_integers_alone() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(64, 128, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x)

    x = torch.randn(1, 64, 5, 6)
    lowered = dimorder.lower(dimorder.quantize(Wide().eval(), [x]), target="xnnpack")
    weights = 64 * 128 * 9
    assert weights < len(lowered.artifact.data) < 1.2 * weights


def test_a_dynamic_recipe_needs_example_inputs_alone() -> None:
    net, x = nn.Sequential(nn.Linear(13, 7), nn.GELU(), nn.Linear(7, 5)).eval(), torch.randn(3, 13)
    made = dimorder.quantize(net, recipe="int8-dynamic", args=(x,))
    lowered = dimorder.lower(made, target="xnnpack")
    assert (lowered.artifact.delegates, lowered.plan.float_islands, made.wasted) == (1, (), ())
    (compared,) = made.compare(lowered)
    assert compared.snr_db is not None and compared.snr_db > 30
    with pytest.raises(dimorder.DimorderError, match="a network that is quantised already"):
        dimorder.quantize(made.module, recipe="int8-dynamic", args=(x,))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("int8", "calibration\n  found: none\n  fix: recipe int8 observes inputs"),
        ("int8-dynamic", "args\n  found: no example inputs\n  fix: give args=(x,)"),
    ],
)
def test_what_a_recipe_lacks_is_told(recipe: str, said: str) -> None:
    with pytest.raises(dimorder.DimorderError, match=said.replace("(", "\\(").replace(")", "\\)")):
        dimorder.quantize(nn.Linear(13, 7).eval(), recipe=recipe)


class Lengthened(nn.Module):
    """A 1-D transposed convolution, which neither quantizer knows, between two convolutions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Conv1d(3, 8, 3), nn.Conv1d(6, 5, 3)
        self.longer = nn.ConvTranspose1d(8, 6, 4, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(F.relu(self.longer(F.relu(self.before(x)))))


OPTIONS: tuple[dict[str, Any], ...] = (
    {"stride": 2, "padding": 1},
    {"stride": 3, "output_padding": 2, "bias": False},
    {"dilation": 2, "padding": 1},
    {"stride": 2, "groups": 2},
)


@pytest.mark.parametrize(
    ("target", "recipe", "options"),
    slow_but(
        [
            *(("tosa", "int8", options) for options in OPTIONS),
            *((target, "int8", OPTIONS[0]) for target in ("xnnpack", "litert")),
            *(("ethos-u85-256", "int8", options) for options in (OPTIONS[0], OPTIONS[3])),
            *(("tosa", "int16x8", options) for options in (OPTIONS[0], OPTIONS[3])),
        ],
        [
            ("tosa", "int8", OPTIONS[1]),
            ("xnnpack", "int8", OPTIONS[0]),
            ("ethos-u85-256", "int8", OPTIONS[3]),
            ("tosa", "int16x8", OPTIONS[0]),
        ],
    ),
)
def test_a_transposed_convolution_of_one_dimension_is_quantised(
    target: str, recipe: str, options: dict[str, Any]
) -> None:
    pytest.importorskip("executorch" if target in ("xnnpack", "litert") else "tosa_serializer")
    if target.startswith("ethos-u"):
        pytest.importorskip("ethosu")
    draw = torch.Generator().manual_seed(1)
    examples = [torch.randn(1, 3, 22, generator=draw) for _ in range(4)]
    made = dimorder.quantize(Lengthened(**options).eval(), examples, recipe, target=target)
    lowered = dimorder.lower(made, target=target)
    assert lowered.plan.float_islands == ()
    (found,) = made.compare(lowered)
    assert found.snr_db is not None and found.snr_db > 25


def test_a_transposed_convolution_that_stays_in_float_is_refused_with_the_recipe() -> None:
    pytest.importorskip("tosa_serializer")
    x = torch.randn(1, 3, 22, generator=torch.Generator().manual_seed(1))
    quantised = by_arm(Lengthened(stride=2, padding=1).eval(), x)
    said = r"in longer\)\n  found: a weight that is not quantised\n.*, as dimorder.quantize does,"
    with pytest.raises(dimorder.DimorderError, match=said):
        dimorder.lower(quantised, (x,), target="tosa")


class Positioned(nn.Module):
    """Ids with positions that begin at 2 or, after what is not padding, at 1: as BART and RoBERTa count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.head = nn.Embedding(20, 8), nn.Embedding(16, 8), nn.Linear(8, 5)

    def forward(self, ids: Tensor) -> Tensor:
        counted = ids.ne(1).int().cumsum(1) * 3 + 1
        places = torch.arange(ids.shape[1]) + 2
        return self.head(self.words(ids) + self.places(places) + self.places(counted % 16))


@pytest.mark.parametrize("target", slow_but(["xnnpack", "litert"], ["litert"]))
def test_integer_arithmetic_stays_integer(target: str) -> None:
    if target == "litert":
        pytest.importorskip("ai_edge_litert")
    draw = torch.Generator().manual_seed(2)
    examples = [torch.randint(0, 20, (2, 7), generator=draw) for _ in range(6)]
    quantised = dimorder.quantize(Positioned().eval(), examples, target=target)
    (found,) = quantised.compare(dimorder.lower(quantised, target=target))
    assert found.quanta <= 1 and found.snr_db > 25
    numbers = [node.args[1] for node in quantised.module.graph.nodes if "add" in str(node.target)]
    assert numbers[:1] != [] and {1, 2} <= {number for number in numbers if isinstance(number, int)}
    assert not [name for name, _ in quantised.module.named_buffers() if name.startswith("_tensor_constant")]


class Factors(nn.Module):
    """Convolutions times a number and times a scale of each channel, which Arm's passes fold into weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 5, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(5, 1, 1) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) * 3
        z: torch.Tensor = y + self.second(y) * self.scale
        return z


@pytest.mark.parametrize("target", ["xnnpack", "tosa"])
def test_the_network_keeps_its_weights(target: str) -> None:
    torch.manual_seed(0)
    net, x = Factors().eval(), torch.randn(1, 3, 12, 10)
    before, expected = {name: value.clone() for name, value in net.state_dict().items()}, net(x)
    quantized = dimorder.quantize(net, [torch.randn_like(x) for _ in range(4)], target=target)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(quantized.original(x), expected)
    assert (quantized.module(x) - expected).norm() < 0.05 * expected.norm()


def test_examples_that_the_network_writes_to_are_refused() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x.sub_(0.5))
            return y

    examples = [torch.randn(2, 5) for _ in range(3)]
    before = [x.clone() for x in examples]
    with pytest.raises(UnsupportedError, match=r"user input x .*\n  found: the program writes to it"):
        dimorder.quantize(Writes(), examples)
    assert all(map(torch.equal, examples, before))


def test_a_network_whose_first_call_writes_to_its_weights_is_quantised_after_that_call() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.is_halved = nn.Linear(5, 7), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.is_halved:
                with torch.no_grad():
                    self.linear.weight.div_(2)
                self.is_halved = True
            y: torch.Tensor = self.linear(x)
            return y

    network, examples = Halves().eval(), [torch.randn(2, 5) for _ in range(3)]
    with pytest.raises(
        UnsupportedError, match=r"parameter linear.weight .*\n.*\n.*call the network once before"
    ):
        dimorder.quantize(network, examples)
    network.is_halved = False  # the export has called it
    network(examples[0])
    dimorder.lower(dimorder.quantize(network, examples), (examples[0],))


def test_a_lowered_network_of_floats_is_not_compared() -> None:
    network, x = nn.Conv2d(3, 8, 3).eval(), torch.randn(1, 3, 7, 9)
    quantised = dimorder.quantize(network, [x, x / 2])
    with pytest.raises(UsageError, match="a lowered network of floats"):
        quantised.compare(dimorder.lower(network, (x,)))


class Scaled(nn.Module):
    """A linear whose result is scaled by a number, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        y: Tensor = self.linear(x)
        return y if scale is None else y * scale


@pytest.mark.parametrize("scale", [2.0, None])
def test_an_argument_may_be_a_number_or_none(scale: float | None) -> None:
    quantised = dimorder.quantize(Scaled().eval(), [(torch.randn(2, 8), scale)] * 3)
    (found,) = quantised.compare(dimorder.lower(quantised, target="xnnpack"))
    assert found.snr_db is not None and found.snr_db > 30
