"""Every spelling of a network has one normal form, which gives its numbers; the rest is refused by name."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dimorder
from dimorder.capture.captured import capture
from dimorder.errors import UnsupportedError, UsageError
from dimorder.modules import eval_mode
from dimorder.verification.relative_error import relative_error
from tests.small_networks import Net
from tests.zoo import perturb

X = (2, 6, 5, 7)


def r(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def operators(model: nn.Module | torch.export.ExportedProgram, *inputs: Tensor) -> list[str]:
    """The operators of the captured form, which must give the network's numbers."""
    program = capture(model, inputs)
    if isinstance(model, nn.Module):
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(model.eval()(*inputs))
            for got, value in zip(program.module(*inputs), wanted, strict=True):
                assert got.dtype == value.dtype
                assert relative_error(got, value) < 1e-5
    calls = [node for node in program.nodes if node.op == "call_function"]
    return [str(node.target).removeprefix("aten.").split(".")[0] for node in calls]


def norm(layer: nn.Module) -> nn.Module:
    return perturb(layer).eval()


def counted(**counts: int) -> Counter[str]:
    return Counter(counts)


# Name → the network, its shapes, and what is left of it.
FORMS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], Counter[str]]] = {
    "conv, batch-norm": (
        lambda m, x: m.n(nn.Conv2d.forward(m.c, x)), [X], counted(convolution=1)
    ),
    "transposed conv in groups, batch-norm": (lambda m, x: m.n(m.t(x)), [X], counted(convolution=1)),
    "a conv that is read twice keeps its batch-norm": (
        lambda m, x: (lambda y: m.n(y) + y)(m.c(x)), [X], counted(convolution=1, mul=1, add=2)
    ),
    "a causal convolution by cutting": (
        lambda m, x: F.conv2d(x, m.c.weight, padding=(2, 0))[:, :, :-2], [X],
        counted(constant_pad_nd=1, convolution=1),
    ),
    "a convolution that is cut at both ends of two dimensions": (
        lambda m, x: F.conv2d(x, m.c.weight, padding=(2, 2))[:, :, 1:-2, 2:], [X],
        counted(constant_pad_nd=1, convolution=1),
    ),
    "one that is cut by more than it is padded": (
        lambda m, x: F.conv2d(x, m.c.weight, padding=1)[:, :, 2:], [X], counted(convolution=1, slice=1)
    ),
    "one that is cut, and read whole": (
        lambda m, x: (lambda y: y[:, :, 1:] + y.mean())(F.conv2d(x, m.c.weight, padding=1)), [X],
        counted(convolution=1, slice=1, mean=1, add=1),
    ),
    "one with a stride that is cut": (
        lambda m, x: F.conv2d(x, m.c.weight, padding=1, stride=2)[:, :, 1:], [X],
        counted(convolution=1, slice=1),
    ),
    "attention with a mask that hides nothing": (
        lambda m, x: F.scaled_dot_product_attention(x, x, x, torch.ones(5, 5, dtype=torch.bool)), [X],
        counted(mul=1, permute=1, matmul=2, softmax=1),
    ),
    "copies of views": (
        lambda m, x: torch.permute_copy(torch.ops.aten.slice_copy(x, 2, 1, 4), (0, 3, 1, 2)),
        [X],
        counted(slice=1, permute=1),
    ),
    "batch-norm first": (lambda m, x: m.b(x), [X], counted(mul=1, add=1)),
    "conv1d without a batch": (lambda m, x: m.d(x), [(6, 11)], counted(reshape=2, convolution=1)),
    "same padding": (lambda m, x: m.s(x), [X], counted(constant_pad_nd=1, convolution=1)),
    "dropout, clone, contiguous": (
        lambda m, x: F.dropout(x.clone().contiguous(), 0.5, False).relu(), [X], counted(relu=1)
    ),
    "views of every spelling": (
        lambda m, x: x.flatten(1).unsqueeze(1).squeeze(1).view(X).unflatten(1, (2, 3)).relu(),
        [X], counted(reshape=5, relu=1),
    ),
    "a view and its way back": (lambda m, x: x.view(-1).view(X).relu(), [X], counted(reshape=2, relu=1)),
    "transposes": (
        lambda m, x: x.mT.transpose(0, 1).permute(0, 1, 2, 3).relu(), [X], counted(permute=2, relu=1)
    ),
    "chunk, split, select, unbind": (
        lambda m, x: x.chunk(2, 1)[1] + x.split([3, 3], 1)[0] * x[:, 2:3] + x.unbind(0)[1][3:],
        [X], counted(slice=5, reshape=1, add=2, mul=1),
    ),
    "slices of all": (lambda m, x: x[:, :, 0:5][..., ::1].relu(), [X], counted(relu=1)),
    "roll": (lambda m, x: x.roll((2, -3), (2, 3)), [X], counted(slice=4, cat=2)),
    "roll by nothing": (lambda m, x: x.roll(5, 2).relu(), [X], counted(relu=1)),
    "stack": (lambda m, x: torch.stack([x, x + 1], 2), [X], counted(add=1, reshape=2, cat=1)),
    "a cat of one and nothing": (
        lambda m, x: torch.cat([x, x[:, :0]], 1).relu(), [X], counted(relu=1)
    ),
    "constants of constants": (
        lambda m, x: x + torch.zeros(5, 7).masked_fill(torch.ones(5, 7).triu(1) > 0, 2.0) * 3,
        [X], counted(add=1),
    ),
    "pool to 1": (lambda m, x: F.adaptive_avg_pool2d(x, 1), [X], counted(mean=1)),
    "pool to a divisor": (lambda m, x: F.adaptive_avg_pool2d(x, (5, 1)), [X], counted(avg_pool2d=1)),
    "pool to the same": (lambda m, x: F.adaptive_avg_pool2d(x, (5, 7)).relu(), [X], counted(relu=1)),
    "group-norm": (
        lambda m, x: m.g(x), [X], counted(reshape=4, mean=4, expand=2, sub=1, mul=3, add=2, rsqrt=1)
    ),
    "instance-norm": (
        lambda m, x: F.instance_norm(x), [X], counted(mean=2, sub=1, mul=2, add=1, rsqrt=1)
    ),
    "attention": (
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
        [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)], counted(mul=1, permute=1, matmul=2, softmax=1),
    ),
    "causal attention": (
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6)], counted(mul=1, permute=1, matmul=2, add=1, softmax=1),
    ),
    "a product with a constant": (lambda m, x: x @ m.w, [X], counted(linear=1)),
    "dense": (lambda m, x: m.l(x), [X], counted(linear=1)),
    "an as_strided that overlaps": (
        lambda m, x: torch.as_strided(x + 1, (3, 4), (7, 2), 5),
        [X],
        counted(add=1, reshape=2, slice=10, cat=1),
    ),
    "an as_strided of a transposed value's memory": (
        lambda m, x: torch.as_strided((x + 1).transpose(1, 2), (3, 4), (7, 2), 5),
        [X],
        counted(add=1, permute=1, reshape=2, slice=10, cat=1),
    ),
    "an as_strided that is written": (
        lambda m, x, y: torch.as_strided_scatter(x + 1, y, (2, 3), (9, 2), 4),
        [X, (2, 3)],
        counted(add=1, reshape=3, index_put=1),
    ),
    "a running sum of one element": (lambda m, x: x[:, :1].cumsum(1), [X], counted(slice=1)),
    "a number in the shape of another tensor": (
        lambda m, x: x + torch.full_like(x, 3.0, device="cpu"), [X], counted(add=1)
    ),
    "an as_strided that is a view": (
        lambda m, x: torch.ops.aten.as_strided(x + 1, [12, 35], [35, 1]), [X], counted(add=1, reshape=1)
    ),
    "max-pool": (lambda m, x: F.max_pool2d(x, 2), [X], counted(max_pool2d=1)),
    "casts to the same type": (lambda m, x: x.float().to(torch.float32).relu(), [X], counted(relu=1)),
}  # fmt: skip

LAYERS = {
    "c": nn.Conv2d(6, 4, 3, bias=False),
    "n": norm(nn.BatchNorm2d(4)),
    "b": norm(nn.BatchNorm2d(6)),
    "t": nn.ConvTranspose2d(6, 4, 3, groups=2),
    "d": nn.Conv1d(6, 4, 3),
    "s": nn.Conv2d(6, 4, (2, 4), padding="same"),
    "g": norm(nn.GroupNorm(3, 6)),
    "l": nn.Linear(7, 3),
    "w": torch.randn(7, 3, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("name", FORMS)
def test_normal_form(name: str) -> None:
    function, shapes, wanted = FORMS[name]
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    assert Counter(operators(Net(function, **LAYERS), *inputs)) == wanted


def test_constants_of_one_name_and_names_of_the_graph_module_are_told_apart() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.a_b = nn.Module(), nn.Module()
            self.a.b_c, self.a_b.c = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7))
            self.graph, self.constant = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.a.b_c + self.a_b.c * torch.arange(7)) * self.graph - self.constant

    assert operators(Parts(), torch.randn(X)) == ["mul", "add", "mul", "sub"]


def test_a_program_keeps_its_constants_whatever_becomes_of_the_module() -> None:
    model, x = Net(lambda m, x: x * m.w.t()[:, :1, None].sum(), w=torch.randn(7, 3)), torch.randn(X)
    scaled = Net(lambda m, x: x * m.w, w=torch.randn(7))
    for net in (model, scaled):
        program = capture(net, (x,))
        before = program.module(x)
        with torch.no_grad():
            net.w.mul_(2)
        torch.testing.assert_close(program.module(x), before, rtol=0, atol=0)


def test_in_place_comparisons_keep_their_type() -> None:
    def compared(m: nn.Module, x: Tensor) -> Tensor:
        y = x + 1
        y.gt_(0)
        return y - x

    operators(Net(compared), torch.randn(X))


@pytest.mark.parametrize("kwargs", [{"a": 0, "b": 1}, {"b": 1, "a": 0}])
def test_examples_are_bound_by_name(kwargs: dict[str, int]) -> None:
    tensors = torch.randn(5, 7), torch.randn(5, 7)
    exported = torch.export.export(Named(), (), {"a": tensors[0], "b": {"u": tensors[1], "v": tensors[0]}})
    call = {"a": tensors[0], "b": {"v": tensors[0], "u": tensors[1]}}
    program = capture(exported, (), {name: call[name] for name in kwargs})
    wanted = Named()(**call)
    torch.testing.assert_close(program.module(*program.example_inputs)[0], wanted)


class Named(nn.Module):
    def forward(self, a: Tensor, b: dict[str, Tensor]) -> Tensor:
        return a - 2 * b["u"] + 3 * b["v"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (((torch.randn(X),), {}), "give 0 by position, by name a, b"),
        (((), {"a": torch.randn(5, 7), "c": {}}), "found: 0 by position, by name a, c"),
        (((), {"a": torch.randn(5, 7), "b": {}}), "another structure than the network was exported with"),
        (
            ((), {"a": torch.randn(2, 7), "b": {"u": torch.randn(5, 7), "v": torch.randn(5, 7)}}),
            "(2, 7), where the program was exported for (5, 7) of torch.float32",
        ),
    ],
)
def test_arguments_that_do_not_fit_a_program_are_refused(call: Any, text: str) -> None:
    tensor = torch.randn(5, 7)
    exported = torch.export.export(Named(), (), {"a": tensor, "b": {"u": tensor, "v": tensor}})
    with pytest.raises(UsageError) as caught:
        capture(exported, *call)
    assert text in str(caught.value)


def test_a_bare_tensor_is_no_tuple_of_arguments() -> None:
    with pytest.raises(UsageError, match="give a tuple of the network's arguments"):
        capture(nn.Linear(7, 3), torch.randn(X))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give a dict by name"):
        capture(nn.Linear(7, 3), (), [torch.randn(X)])  # type: ignore[arg-type]
    shapes = ({0: torch.export.Dim("N", max=8)},)
    with pytest.raises(UsageError, match="give a tuple of the network's arguments"):
        dimorder.lower(nn.Linear(7, 3), torch.randn(X), dynamic_shapes=shapes)  # type: ignore[arg-type]


def test_a_program_of_either_spelling_is_captured_like_its_module(tmp_path: Path) -> None:
    model, x = Net(lambda m, x: m.n(m.c(x)).relu(), **LAYERS), torch.randn(X)
    exported = torch.export.export(model.eval(), (x,))
    path = tmp_path / "net.pt2"
    torch.export.save(exported, path)
    forms = [operators(model, x), operators(exported, x), operators(torch.export.load(path), x)]
    assert forms == [["convolution", "relu"]] * 3
    assert capture(path).example_inputs[0].shape == x.shape


def test_a_program_that_returns_none_and_numbers_too_is_captured_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net(lambda m, x: (None, x.relu(), 3)), (torch.randn(X),)), path)
    assert capture(path).fixed_results == {0: None, 2: 3}


def test_every_part_of_a_module_keeps_its_mode() -> None:
    model = nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    model[1].eval()
    capture(model, (torch.randn(X),))
    assert [part.training for part in model.modules()] == [True, True, False, True]
    with pytest.raises(ZeroDivisionError), eval_mode(model):
        assert not any(part.training for part in model.modules())
        raise ZeroDivisionError
    assert [part.training for part in model.modules()] == [True, True, False, True]


def test_dropout_that_is_off_draws_no_numbers() -> None:
    model = Net(lambda m, x: m.gru(nn.functional.dropout(x, 0.5, False))[0], gru=nn.GRU(7, 3, 2, dropout=0.5))
    x = torch.randn(4, 5, 7)
    torch.testing.assert_close(capture(model.eval(), (x,)).module(x)[0], model(x), rtol=0, atol=1e-5)


REFUSED: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "random numbers": (Net(lambda m, x: x + torch.rand(5, 7)), X, "found: random numbers"),
    "a generator": (
        Net(lambda m, x: x + torch.randn(5, 7, generator=m.g), g=torch.Generator()), X, "found: a Generator"
    ),
    "dropout in use": (Net(lambda m, x: nn.functional.dropout(x, 0.5, True)), X, "found: random numbers"),
    "a number of a tensor": (Net(lambda m, x: x * x.sum().item()), X, "is read out of a tensor"),
    "no input": (Net(lambda m, x: m.w * 2, w=torch.randn(3)), (), "no tensor among its inputs"),
    "an input that is written": (
        Net(lambda m, x: x.add_(1)), X, "\n  found: the program writes to it"
    ),
    "memory that is read directly": (
        Net(lambda m, x: torch.as_strided(x[..., 1:].mT, (3, 2), (7, 2), 0)),
        X,
        "sizes [3, 2], strides [7, 2] read memory",
    ),
    "constants alone returned": (
        Net(lambda m, x: (None, x.shape[1])), X, "no tensor in what the network returns: None, 6"
    ),
    "no elements": (Net(lambda m, x: x + 1), (2, 0, 5), "shape (2, 0, 5) has no elements"),
    "a sparse tensor": (Net(lambda m, x: (x.to_sparse() * 2).to_dense()), X, "layout torch.sparse_coo"),
    "a sparse constant": (
        Net(lambda m, x: torch.sparse.mm(m.w, x), w=torch.diag(r(5)).to_sparse()), (5, 7), "torch.sparse_coo"
    ),
    "a branch on data": (
        Net(lambda m, x: x + 1 if x.sum() > 0 else x - 1), X, "torch.export of Net"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_normal_form_is_refused(name: str) -> None:
    model, shape, text = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        capture(model, (torch.randn(shape) if shape else 3,))
    assert text in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_with_the_way_to_pad_it() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    exported = torch.export.export(Net(lambda m, x: x * 2), (x,), strict=True)
    with pytest.raises(UnsupportedError, match=r"jagged\n  fix: compute with torch.nested.to_padded_tensor"):
        capture(exported)


def test_symbolic_shapes_are_refused_by_operator_and_line() -> None:
    batch = torch.export.Dim("batch", min=2, max=9)
    exported = torch.export.export(
        Net(lambda m, x: x.relu()), (torch.randn(X),), dynamic_shapes={"args": ({0: batch},)}
    )
    with pytest.raises(UnsupportedError, match="symbolic shape"):
        capture(exported)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_a_broken_pt2_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a readable exported program"):
        capture(path)


def test_an_archive_without_a_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:  # as torch._inductor.aoti_compile_and_package writes them
        archive.writestr("net/data/aotinductor/model/net.so", b"")
        archive.writestr("net/archive_format", b"pt2")
    with pytest.raises(UsageError, match="not a readable exported program: it holds no exported program"):
        capture(path)


@pytest.mark.parametrize("device", ["the network", "an input", "a program"])
def test_what_has_no_data_is_refused_and_what_to_do_is_said(device: str) -> None:
    """A tensor on the meta device would be compared with nothing."""
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 7)
    if device == "the network":
        layer.weight = nn.Parameter(layer.weight.to("meta"))
        model: Any = nn.Sequential(layer)
    elif device == "a program":
        model, x = torch.export.export(layer.to("meta"), (x.to("meta"),)), torch.randn(2, 3, 5, 7)
    else:
        model, x = layer, x.to("meta")
    with pytest.raises(UsageError) as caught:
        capture(model, (x,))
    name = {"the network": "0.weight", "an input": "0", "a program": "weight and 1 more"}[device]
    assert caught.value.found.startswith(f"no data in {name}: on the meta device")
    assert ("torch.randn" if device == "an input" else "to_empty(device='cpu')") in caught.value.fix


def test_the_meta_device_as_the_default_is_refused() -> None:
    x = r(2, 3)
    with torch.device("meta"), pytest.raises(UsageError, match="default device"):
        capture(nn.ReLU(), (x,))


def test_one_tensor_given_twice_is_two_inputs() -> None:
    """torch 2.13 exports `x - y` as `y - y` where one tensor is given for both."""
    x = r(2, 3)
    program = capture(Net(lambda m, x, y: (x, x - y)), (x, x))
    first, difference = program.module(x, x + 1)
    assert torch.equal(first, x) and torch.allclose(difference, torch.tensor(-1.0))


class Cache:
    """A class into which torch.export does not see."""


def test_a_cache_in_the_result_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedError) as caught:
        capture(Net(lambda m, x: (x * 2, Cache())), (r(2, 3),))
    assert caught.value.found == "a Cache in its output, into which torch.export cannot see"
    assert "use_cache=False" in caught.value.fix


def test_what_is_no_tensor_in_the_result_keeps_its_place() -> None:
    net = Net(lambda m, x, k, n: {"a": None, "b": (x * k, 3, x.shape[1]), "c": n, "d": x + 1})
    x = r(2, 5)
    lowered = dimorder.lower(net, (x, 2.5, None), target="torch", run_artifact=False)
    result = lowered.run(x, 2.5, None)
    assert result.keys() == {"a", "b", "c", "d"}
    assert (result["a"], result["b"][1:], result["c"]) == (None, (3, 5), None)
    torch.testing.assert_close((result["b"][0], result["d"]), (x * 2.5, x + 1))


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"dict is neither a torch\.nn\.Module nor an ExportedProgram"):
        capture({}, ())  # type: ignore[arg-type]


def test_an_operator_without_a_rule_for_shapes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no rule for the shapes of its results"):
        capture(Net(lambda m, x: torch.geqrf(x)[0]), (torch.randn(4, 3),))


def test_a_decomposition_that_transposes_in_place() -> None:
    model = Net(lambda m, x: torch.quantile(x, torch.tensor([0.3, 0.8]), 2, True, interpolation="midpoint"))
    assert not any("_." in str(node.target) for node in capture(model, (torch.randn(3, 2, 5),)).nodes)


def test_a_decomposition_whose_results_have_names() -> None:
    model = Net(lambda m, x: (*torch.aminmax(x, dim=1), F.binary_cross_entropy_with_logits(x, x.sigmoid())))
    names = {str(node.target) for node in capture(model, (torch.randn(3, 5),)).nodes}
    assert {"aten.amin.default", "aten.amax.default"} <= names


def test_what_is_computed_from_sizes_and_held_tensors_is_known() -> None:
    half, weight = torch.tensor(0.5), torch.tensor([3.0, 4.0])
    model = Net(lambda m, x: x * (torch.arange(x.shape[1]) + half) * weight.sum())
    constants = capture(model, (torch.randn(2, 5),)).size_constants
    assert [value.tolist() for value in constants.values()] == [[0, 1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5, 4.5]]


def test_two_programs_hold_once_what_both_have() -> None:
    scale = torch.tensor([0.5, 0.25, 2.0])
    quantized = torch.arange(12, dtype=torch.int8).reshape(3, 4)

    def forward(m: Any, x: Tensor) -> Tensor:
        read = torch.ops.quantized_decomposed.dequantize_per_channel.default
        weight = read(quantized, scale, None, 0, -128, 127, torch.int8)
        return (x @ weight.T) * torch.arange(x.shape[0]).reshape(-1, 1) + m.b

    model = Net(forward)
    model.b = nn.Parameter(r(3))
    first, second = (capture(model, (r(rows, 4),)) for rows in (2, 5))
    second.share_constants(first)
    pairs = [
        (first.constant(a), second.constant(b))
        for a in first.nodes
        for b in second.nodes
        if a.op == b.op == "get_attr" and a.target == b.target
    ]
    assert len(pairs) == 3
    assert sorted(a is b for a, b in pairs) == [False, True, True]
    assert all((a is b) == torch.equal(a, b) for a, b in pairs if a.shape == b.shape)


def test_memory_that_nothing_was_written_to_is_zeros() -> None:
    """A file would else hold what lay there, and differ from run to run."""

    class Fills(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            places = torch.empty(5, dtype=torch.int64)
            places[torch.tensor([3, 0, 4])] = torch.arange(3)
            like, new = torch.empty_like(x), x.new_empty(3)
            like[:, 1:] = x[:, 1:]
            strided, permuted = torch.empty_strided((2, 3), (1, 2)), torch.empty_permuted((2, 3), (1, 0))
            return places, like, new, x.new_empty_strided((2, 3), (1, 2)), strided, permuted

    x = torch.randn(2, 3)
    places, like, *others = capture(Fills(), (x,)).module(x)
    assert places.tolist() == [1, 0, 0, 0, 2]
    assert torch.equal(like, torch.cat([torch.zeros(2, 1), x[:, 1:]], 1))
    assert not any(map(torch.count_nonzero, others))
