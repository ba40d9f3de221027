"""dimorder::Program refuses what `dimorder.load` refuses by a file's tables: damage, and misread orders."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("executorch")
pytest.importorskip("torchao")

from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

import dimorder
from dimorder.errors import DimorderError
from dimorder.executorch.xnn_blob import TENSOR_EXTERNAL_ID, tensors_of_graph
from tests.device.guarded_programs import NOT_SUPPORTED, file_of, refused
from tests.device.native_fixture import NativeProgram
from tests.executorch import test_argument_checks as arguments
from tests.executorch import test_delegate_checks as delegates
from tests.executorch import test_delegate_orders as orders
from tests.executorch import test_dynamic_means as means
from tests.marks import slow_but
from tests.runtime.networks import Conv, export_pte

pytestmark = pytest.mark.usefixtures("guard_native")
IMAGE = (2, 3, 11, 9)
GRAPH_INPUTS, GRAPH_OUTPUTS = 4, 5  # in XNNGraph


def python_refuses(path: Path) -> str:
    with pytest.raises(DimorderError) as error:
        dimorder.load(path)
    return error.value.found


@pytest.fixture(scope="module")
def conv() -> bytes:
    return export_pte(Conv(3), (torch.randn(IMAGE),), None, xnnpack=True)


@pytest.fixture(scope="module")
def kernels() -> bytes:
    return export_pte(arguments.Network(), (torch.randn(2, 5, 7),), None)


def changed_plan(data: bytes, change: Callable[[Any], None], path: Path) -> Path:
    file = deserialize_pte_binary(data)
    change(file.program.execution_plan[0])
    path.write_bytes(bytes(serialize_pte_binary(file)))
    return path


def place_of(found: str) -> str:
    """Return which call is refused, or all of a refusal that names none; C++ has no names of arguments."""
    call = re.search(r"call \d+, [\w:.]+", found)
    return call[0] if call else found.replace("ValueError: ", "")


@pytest.mark.parametrize("found", arguments.DAMAGES)
def test_an_argument_that_would_end_the_process_is_refused(
    found: str, kernels: bytes, tmp_path: Path
) -> None:
    path = changed_plan(kernels, arguments.DAMAGES[found], tmp_path / "net.pte")
    why = refused(path)
    assert why.startswith("tables that contradict each other (")
    assert place_of(why) == place_of(python_refuses(path))


@pytest.mark.parametrize("change", arguments.FLOWS.values(), ids=list(arguments.FLOWS))
def test_a_jump_or_a_release_that_would_end_the_process_is_refused(
    change: Callable[[Any], None], kernels: bytes, tmp_path: Path
) -> None:
    path = changed_plan(kernels, change, tmp_path / "net.pte")
    assert place_of(refused(path)) == place_of(python_refuses(path))


@pytest.mark.parametrize("found", arguments.SIZE_DAMAGES)
def test_a_view_or_a_size_that_would_end_the_process_is_refused(found: str, tmp_path: Path) -> None:
    path = changed_plan(arguments.rows(), arguments.SIZE_DAMAGES[found], tmp_path / "net.pte")
    assert place_of(refused(path)) == place_of(python_refuses(path))


@pytest.mark.parametrize(("place", "name"), [(3, "stride"), (8, "groups")])
def test_a_number_by_which_a_kernel_divides_is_not_zero(place: int, name: str, tmp_path: Path) -> None:
    """A number of 0 groups ended the process."""
    data = export_pte(Conv(3), (torch.randn(IMAGE),), None)
    path = changed_plan(data, lambda plan: arguments.put_zero(plan, place), tmp_path / "net.pte")
    assert f"aten::convolution.out: argument {place}, by which it divides, is 0" in refused(path)
    assert f"aten::convolution.out: '{name}' is 0" in python_refuses(path)


@pytest.mark.parametrize("operator", ["floordiv", "mod"])
def test_a_number_by_which_a_size_is_divided_is_not_zero(operator: str, tmp_path: Path) -> None:
    """The process ended at the first call."""
    path, x = tmp_path / "net.pte", torch.randn(11, 5)
    path.write_bytes(arguments.steps())
    torch.testing.assert_close(NativeProgram(path).run(x), arguments.Steps()(x))
    changed_plan(arguments.steps(), lambda plan: arguments.divide_by_zero(plan, operator), path)
    assert place_of(refused(path)) == place_of(python_refuses(path))


@pytest.mark.parametrize(
    ("damage", "xnnpack"), [(arguments.earlier_constant, False), (arguments.earlier_segment, True)]
)
def test_constants_or_segments_that_overlap_are_refused(
    damage: Callable[[bytes], bytes], xnnpack: bool, tmp_path: Path
) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(damage(export_pte(Conv(3), (torch.randn(IMAGE),), None, xnnpack=xnnpack)))
    assert refused(path) == python_refuses(path).replace("ValueError: ", "")


@pytest.mark.parametrize("found", delegates.DAMAGES)
def test_a_delegate_that_would_end_the_process_is_refused(found: str, conv: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(delegates.DAMAGES[found](conv))
    why = refused(path)
    assert re.search(found, why) and why.startswith("delegate 0 (XnnpackBackend): ")
    assert why.endswith(python_refuses(path).replace("ValueError: ", ""))


def unlisted_output(data: bytes) -> bytes:
    """Take the output off the delegate's list, which then has the input twice, and give it no argument."""
    graph = delegates.graph_in(data)
    tensors, (given,), (output,) = (
        tensors_of_graph(graph),
        graph.numbers(GRAPH_INPUTS),
        graph.numbers(GRAPH_OUTPUTS),
    )
    at, _ = graph._vector(GRAPH_OUTPUTS)
    data = data[:at] + given.to_bytes(4, "little") + data[at + 4 :]
    return delegates.changed(data, tensors[output], TENSOR_EXTERNAL_ID, 99)


def test_an_output_that_a_delegate_does_not_list_is_an_argument_too(conv: bytes, tmp_path: Path) -> None:
    """XNNPACK's backend looked for it outside of the call's arguments."""
    path = tmp_path / "net.pte"
    path.write_bytes(unlisted_output(conv))
    assert refused(path).endswith("(a call without argument 99)")
    assert "IndexError" in python_refuses(path)


FEW = ["softmax after a convolution", "transpose of grey squares", "softmax after a convolution and a view"]


@pytest.mark.parametrize("name", slow_but(list(orders.CASES), FEW))
def test_a_stock_delegate_that_gives_wrong_numbers_is_refused_as_in_python(name: str, tmp_path: Path) -> None:
    expected, network, inputs = orders.CASES[name]
    path = tmp_path / "net.pte"
    path.write_bytes(orders.stock("xnnpack")(torch.export.export(network.eval(), tuple(inputs))))
    if "wrong" in expected.values():
        assert refused(path, NOT_SUPPORTED) == python_refuses(path)
    else:
        NativeProgram(path)


def test_a_mean_of_a_dynamic_batch_is_refused_as_in_python(tmp_path: Path) -> None:
    """The numbers differed from those of a program that was opened for one size."""
    x = means.picture(3, torch.float16)
    path = tmp_path / "net.pte"
    means.write(path, means.network(torch.float16, 3, means.BATCH), x, means.BATCH)
    assert refused(path, NOT_SUPPORTED) == python_refuses(path)
    still = tmp_path / "still.pte"
    means.write(still, means.network(torch.float16, 3, {}), x, {})
    NativeProgram(still)


class Flipped(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(3) + x


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x).view(2, 33, 9).relu()


@pytest.mark.parametrize("network", [Flipped(), Rows()])
def test_a_kernel_that_misreads_an_order_is_refused_as_in_python(
    network: torch.nn.Module, tmp_path: Path
) -> None:
    """Its numbers were wrong, silently."""
    x, path = torch.randn(IMAGE), tmp_path / "net.pte"
    path.write_bytes(export_pte(network, (x,), None))
    NativeProgram(path)
    if isinstance(network, Rows):  # of a view, PyTorch exports no other order
        path = changed_plan(path.read_bytes(), make_channels_last, path)
    else:
        path.write_bytes(export_pte(network, (x.to(memory_format=torch.channels_last),), None))
    assert refused(path, NOT_SUPPORTED) == python_refuses(path)


def make_channels_last(plan: Any) -> None:
    for value in plan.values:
        if type(value.val).__name__ == "Tensor" and len(value.val.sizes) == 4:
            value.val.dim_order = [0, 2, 3, 1]


@pytest.mark.parametrize("name", ["NHWC", "state", "two dynamic", "foreign dynamic", "int64"])
def test_sound_files_are_opened(name: str) -> None:
    NativeProgram(file_of(name))
