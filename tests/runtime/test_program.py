"""Loading and running .pte files in ExecuTorch: every order against every contract, and damaged files."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dimorder.algebra.dim_order import DimOrder
from dimorder.api import load
from dimorder.contract import Contract, Symbol, TensorSpec
from dimorder.contract_file import seal
from dimorder.errors import ContractError, DimorderError, UnsupportedError, UsageError
from dimorder.executorch.pte import read_contract
from dimorder.runtime.program import Program
from tests.marks import slow_but
from tests.runtime.networks import Conv, Pointwise, TwoInTwoOut, export_pte

pytest.importorskip("executorch")

NCHW, NHWC, NLC = DimOrder(0, 1, 2, 3), DimOrder(0, 2, 3, 1), DimOrder(0, 2, 1)
ORDERS = {"NCHW": NCHW, "NHWC": NHWC}


def numbers(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def laid(tensor, order):
    return torch.empty_strided(tensor.shape, order.strides(tensor.shape)).copy_(tensor)


def same_contract(shape, out_shape, order):
    x = TensorSpec("image", shape, "float32", order)
    return Contract((x,), (TensorSpec("features", out_shape, "float32", order),))


def boundary_example(spec):
    """A tensor as the program's own signature shows it."""
    return laid(numbers(*spec.boundary_shape), spec.boundary_order)


@pytest.fixture(scope="module")
def pte(tmp_path_factory):
    """A function that exports a network for one shape and order, once per module."""
    folder, made = tmp_path_factory.mktemp("pte"), {}

    def make(kind, shape, order_name):
        key = (kind, shape, order_name)
        if key not in made:
            model = Conv(shape[1]) if kind == "conv" else Pointwise()
            out_shape = tuple(model(numbers(*shape)).shape)
            contract = same_contract(shape, out_shape, ORDERS[order_name])
            data = export_pte(
                model, (boundary_example(contract.inputs[0]),), contract, xnnpack=kind == "conv"
            )
            path = folder / f"{kind}-{order_name}-{'x'.join(map(str, shape))}.pte"
            path.write_bytes(data)
            made[key] = (path, model)
        return made[key]

    return make


MAIN = (2, 6, 5, 7)
FED = {
    "NCHW": lambda: numbers(*MAIN),
    "NHWC": lambda: numbers(*MAIN).to(memory_format=torch.channels_last),
    "channel slice": lambda: numbers(2, 9, 5, 7)[:, 2:8],
    "channel slice of NHWC": lambda: numbers(2, 9, 5, 7).to(memory_format=torch.channels_last)[:, 2:8],
    "strided step": lambda: numbers(2, 6, 10, 14)[:, :, ::2, ::2],
    "transposed view": lambda: numbers(2, 6, 7, 5).transpose(2, 3),
    "permuted view": lambda: numbers(2, 5, 7, 6).permute(0, 3, 1, 2),
    "C=1": lambda: numbers(2, 1, 5, 7),
    "C=1 channels last": lambda: laid(numbers(2, 1, 5, 7), NHWC),
    "H=W=1": lambda: numbers(2, 6, 1, 1),
    "H=W=1 channels last": lambda: laid(numbers(2, 6, 1, 1), NHWC),
    "batch 1 of NCHW": lambda: numbers(*MAIN)[1].unsqueeze(0),
    "batch 1 of NHWC": lambda: numbers(*MAIN).to(memory_format=torch.channels_last)[1].unsqueeze(0),
    "expanded": lambda: numbers(2, 1, 5, 7).expand(MAIN),
}


@pytest.mark.parametrize("promised", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fed", FED)
def test_adapt_gives_what_eager_gives(pte, promised, fed):
    tensor = FED[fed]()
    path, model = pte("pointwise", tuple(tensor.shape), promised)
    program = load(path)
    result = program(tensor)
    assert torch.equal(result, model(tensor))
    assert result.stride() == program.contract.outputs[0].boundary_order.strides(tensor.shape)
    assert program.stats.conversions in (0, 1)
    assert program.stats.cost_bytes == program.stats.conversions * tensor.numel() * 4


@pytest.mark.parametrize("promised", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fed", FED)
def test_error_gives_what_eager_gives_or_names_the_input_and_both_orders(pte, promised, fed):
    tensor = FED[fed]()
    path, model = pte("pointwise", tuple(tensor.shape), promised)
    if not adapts(path, tensor):
        assert torch.equal(load(path, "error")(tensor), model(tensor))
        return
    with pytest.raises(ContractError) as error:
        load(path, "error")(tensor)
    where, found, _ = str(error.value).splitlines()
    assert where.startswith("input 'image', promised in ") and ORDERS[promised].name in where
    assert "not dense: " in found or "(0, " in found


def adapts(path, tensor):
    program = load(path)
    program(tensor)
    return program.stats.conversions > 0


@pytest.mark.parametrize(
    ("fed", "promised"),
    [(fed, order) for fed in FED for order in ORDERS if "=1" in fed or fed in (order, f"batch 1 of {order}")]
    + [("permuted view", "NHWC")],
)
def test_what_is_already_as_promised_is_not_copied(pte, fed, promised):
    tensor = FED[fed]()
    assert not adapts(pte("pointwise", tuple(tensor.shape), promised)[0], tensor)


@pytest.mark.parametrize("promised", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fed", ["NCHW", "NHWC", "channel slice", "expanded"])
def test_a_delegate_gives_what_eager_gives(pte, promised, fed):
    tensor = FED[fed]()
    path, model = pte("conv", MAIN, promised)
    expected = model(tensor)
    result = load(path)(tensor)
    assert (result - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_without_the_guard_the_wrong_order_is_silently_wrong(pte):
    """Test why there is a guard; if this fails, ExecuTorch has come to check orders itself."""
    path, model = pte("pointwise", MAIN, "NCHW")
    program = load(path)
    wrong = program._method([FED["NHWC"]()])[0]
    assert not torch.allclose(wrong, model(FED["NHWC"]()))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    image = TensorSpec("image", MAIN, "float32", NHWC)
    sound = TensorSpec("sound", (2, 3, 11), "float32", NLC)
    contract = Contract(
        (image, sound),
        (TensorSpec("doubled", MAIN, "float32", NHWC), TensorSpec("loud", (2, 3, 11), "float32", NLC)),
    )
    args = tuple(boundary_example(spec) for spec in contract.inputs)
    path = tmp_path_factory.mktemp("two") / "two.pte"
    path.write_bytes(export_pte(TwoInTwoOut(), args, contract))
    return path


def test_a_physical_boundary_is_logical_for_the_caller(two):
    image, sound = numbers(*MAIN), numbers(2, 3, 11)
    doubled, loud = load(two)(image, sound)
    assert torch.equal(doubled, image + image) and doubled.stride() == NHWC.strides(MAIN)
    assert torch.equal(loud, torch.relu(sound)) and loud.stride() == NLC.strides((2, 3, 11))


def test_inputs_go_by_position_by_name_or_both(two):
    program, image, sound = load(two), numbers(*MAIN), numbers(2, 3, 11)
    by_place = program(image, sound)
    for outputs in (program(sound=sound, image=image), program(image, sound=sound)):
        assert all(torch.equal(a, b) for a, b in zip(outputs, by_place, strict=True))


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((1,), {"image": 2}, "['image'] unknown, twice or missing"),
        ((1,), {"noise": 2}, "['noise'] unknown, twice or missing"),
        ((), {"image": 2}, "['sound'] unknown, twice or missing"),
    ],
)
def test_names_that_do_not_fit_are_an_error_of_three_lines(two, args, kwargs, says):
    with pytest.raises(UsageError) as error:
        load(two)(*args, **kwargs)
    assert says in str(error.value) and len(str(error.value).splitlines()) == 3


def test_stats_count_what_the_guard_did(two):
    program, image, sound = load(two), numbers(*MAIN), numbers(2, 3, 11)
    program(image, sound)
    program(image.to(memory_format=torch.channels_last), sound)
    assert (program.stats.calls, program.stats.conversions) == (2, 3)
    assert program.stats.cost_bytes == image.nbytes + 2 * sound.nbytes
    assert [conversion.value for conversion in program.stats.last] == ["sound"]


def test_the_contract_is_read_without_loading_the_network(two):
    assert read_contract(two) == load(two).contract
    assert [spec.name for spec in read_contract(two).inputs] == ["image", "sound"]


def test_outputs_outlive_the_program_and_the_next_call(two):
    image, sound = numbers(*MAIN), numbers(2, 3, 11)
    program = load(two)
    first, _ = program(image, sound)
    program(-image, sound)
    del program
    assert torch.equal(first, image + image)


# -- files that are not as they should be --------------------------------------------------------------------


def refused(path, error_type=ContractError):
    with pytest.raises(error_type) as error:
        load(path)
    lines = str(error.value).splitlines()
    assert len(lines) == 3 and lines[0] == f"loading {path}"
    return lines[1]


@pytest.mark.parametrize("step", slow_but((7, 41), (41,)))
def test_a_file_cut_off_anywhere_is_refused_before_the_runtime_sees_it(pte, tmp_path, monkeypatch, step):
    from executorch.extension.pybindings import _C

    monkeypatch.delattr(_C, "_load_program_from_buffer")
    data = pte("conv", MAIN, "NHWC")[0].read_bytes()
    cut = tmp_path / "cut.pte"
    for length in range(0, len(data), step):
        cut.write_bytes(data[:length])
        found = refused(cut)
        assert (
            ("it is cut off" in found)
            if length >= 12
            else ("do not begin as a .pte does" in found or length >= 8)
        )


@pytest.mark.parametrize("step", slow_but((13, 97), (97,)))
def test_a_changed_byte_anywhere_is_refused_before_the_runtime_sees_it(pte, tmp_path, monkeypatch, step):
    from executorch.extension.pybindings import _C

    monkeypatch.delattr(_C, "_load_program_from_buffer")
    data = pte("conv", MAIN, "NHWC")[0].read_bytes()
    mark = data.find(b"dimorder sha256 ")
    changed = tmp_path / "changed.pte"
    for place in [p for p in range(0, len(data), step) if not mark <= p < mark + 16]:
        changed.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        refused(changed)


@pytest.mark.parametrize("content", [b"", b"not a program", b"\x00" * 5000, b"PK\x03\x04" * 100])
def test_what_is_no_pte_is_refused(tmp_path, content):
    path = tmp_path / "other.pte"
    path.write_bytes(content)
    assert "do not begin as a .pte does" in refused(path)


def test_a_head_without_a_body_is_refused(tmp_path):
    path = tmp_path / "head.pte"
    path.write_bytes(b"\x08\x00\x00\x00ET12" + b"\x00" * 60)
    assert "ExecuTorch" in refused(path)


def test_a_missing_file_and_a_folder_are_wrong_usage(tmp_path):
    assert "No such file" in refused(tmp_path / "none.pte", UsageError)
    assert "directory" in refused(tmp_path, UsageError)


def test_a_contract_that_this_version_cannot_read_is_refused(pte, tmp_path):
    data = pte("pointwise", MAIN, "NCHW")[0].read_bytes()
    place = data.find(b"dimorder sha256 ") + 16
    unsealed = data[:place] + b"0" * 64 + data[place + 64 :]
    path = tmp_path / "newer.pte"
    path.write_bytes(seal(unsealed.replace(b'"version": 1', b'"version": 9')))
    with pytest.raises(ContractError, match="version 9"):
        load(path)


def test_without_executorch_the_error_says_what_to_install(pte, monkeypatch):
    path, _ = pte("pointwise", MAIN, "NCHW")
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings", None)
    with pytest.raises(UnsupportedError, match=r"pip install '\.\[executorch\]'"):
        load(path)


def test_a_failing_runtime_is_an_error_of_three_lines(pte, monkeypatch):
    path, _ = pte("pointwise", MAIN, "NCHW")
    program = load(path)

    def fail(_):
        raise RuntimeError("method->execute() failed with error 0x12")

    monkeypatch.setattr(program, "_method", fail)
    with pytest.raises(DimorderError) as error:
        program(numbers(*MAIN))
    assert "0x12" in error.value.found and len(str(error.value).splitlines()) == 3


# -- files that dimorder did not write -----------------------------------------------------------------------


@pytest.mark.parametrize("promised", ["NCHW", "NHWC"])
def test_a_foreign_program_is_guarded_by_its_own_tensor_table(tmp_path, promised):
    path = tmp_path / "foreign.pte"
    path.write_bytes(export_pte(Pointwise(), (laid(numbers(*MAIN), ORDERS[promised]),), None))
    program = load(path)
    spec = program.contract.inputs[0]
    assert (spec.name, spec.shape, spec.dtype, spec.dim_order) == (
        "input0",
        MAIN,
        "float32",
        ORDERS[promised],
    )
    for fed in ("NCHW", "NHWC", "channel slice", "expanded"):
        tensor = FED[fed]()
        assert torch.equal(program(tensor), torch.relu(tensor) + tensor)
    assert program.stats.conversions == 3
    with pytest.raises(ContractError, match="input 'input0', promised in"):
        load(path, "error")(FED["channel slice"]())


def test_an_upper_bound_of_a_foreign_program_is_a_symbol(tmp_path):
    path = tmp_path / "dynamic.pte"
    shapes = {"x": {0: torch.export.Dim("n", min=1, max=4)}}
    path.write_bytes(export_pte(Pointwise(), (numbers(2, 3, 5),), None, dynamic_shapes=shapes))
    program = load(path)
    assert program.contract.symbols[0] == Symbol("input0_size0", 0, 4)
    for batch in (1, 3, 4):
        tensor = numbers(batch, 5, 3).transpose(1, 2)
        assert torch.equal(program(tensor), torch.relu(tensor) + tensor)
    with pytest.raises(ContractError, match="size 5 in dim 0, where input0_size0 is from 0 to 4"):
        program(numbers(5, 3, 5))


@pytest.mark.parametrize("step", slow_but((31, 97), (97,)))
def test_a_foreign_program_cut_off_anywhere_is_refused(tmp_path, step):
    data = export_pte(Conv(6), (numbers(*MAIN),), None, xnnpack=True)
    path = tmp_path / "cut.pte"
    for length in range(0, len(data), step):
        path.write_bytes(data[:length])
        refused(path)


def test_loading_our_program_imports_neither_the_exporter_nor_torchvision(pte):
    path, _ = pte("pointwise", MAIN, "NCHW")
    code = (
        "import sys; from dimorder import load; assert 'executorch' not in sys.modules;"
        f"load({str(path)!r});"
        "assert not {'executorch.exir', 'torchvision'} & set(sys.modules)"
    )
    source = Path(__file__).parents[2] / "src"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(source)}, capture_output=True
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_with_the_way_to_pad_it(batch, layout):
    spec = TensorSpec("rows", (batch, 4, 3), "float32", NLC)
    program = Program(Path("net.pte"), Contract((spec,), ()), lambda tensors: tensors, "adapt", "a runtime")
    nested = torch.nested.nested_tensor([numbers(2, 3), numbers(4, 3)], layout=layout)
    with pytest.raises(ContractError, match=r"a nested tensor.*\n.*to_padded_tensor"):
        program(nested)
