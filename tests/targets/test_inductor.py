"""Target inductor: AOTInductor's code is right, read back, and refused where it cannot run."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dimorder
from dimorder import targets
from dimorder.algebra.dim_order import DimOrder
from dimorder.errors import ContractError, UnsupportedError
from dimorder.lowered import Lowered
from tests import zoo
from tests.zoo.network import perturb

PICTURED = ("mobilenet_v3_small", "shufflenet_v2_x1_0", "convnext_tiny", "swin_t")


class Net(nn.Module):
    """Convolutions, a slice, a norm and a product: NHWC inside, one output of each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, (3, 5), groups=8)
        self.norm, self.last = nn.LayerNorm(7), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.second(self.first(x).relu())[:, :, 1:]
        return self.norm(maps), self.last(maps.mean((2, 3))).softmax(-1)


def made() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net().eval()
    perturb(net, 0)
    return net


X = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    return dimorder.lower(made(), (X,), target="inductor")


@pytest.fixture
def file(lowered: Lowered, tmp_path: Path) -> Path:
    return lowered.save(tmp_path / "net.pt2")


def close(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
    for y, expected in zip(found, wanted, strict=True):
        assert y.stride() == expected.stride()
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


def test_it_gives_eagers_numbers_and_the_plan_of_target_torch(lowered: Lowered) -> None:
    assert lowered.verified.artifact_ran and lowered.max_rel_error < 1e-5
    assert lowered.plan.cost == dimorder.plan(made(), (X,)).cost
    close(lowered.run(X), made()(X))


@torch.no_grad()
def test_a_file_is_known_by_what_is_inside(lowered: Lowered, file: Path, tmp_path: Path) -> None:
    plain = dimorder.lower(made(), (X,), target="torch").save(tmp_path / "plain.pt2")
    assert [targets.target_for_file(each).name for each in (file, plain)] == ["inductor", "torch"]
    program = dimorder.load(file)
    assert program.contract == lowered.contract
    close(program.run(X), made()(X))


@torch.no_grad()
def test_the_guard_saves_what_the_code_takes_for_another_order(lowered: Lowered, file: Path) -> None:
    last = X.contiguous(memory_format=torch.channels_last)
    wanted, program = made()(X), dimorder.load(file)
    silently = torch._inductor.aoti_load_package(str(file))(last)
    assert not torch.allclose(silently[0], wanted[0], atol=1e-2)
    close(program.run(last), wanted)
    assert [each.value for each in program.stats.last] == ["x"]


@torch.no_grad()
def test_an_input_may_begin_anywhere(lowered: Lowered, file: Path) -> None:
    for start in (1, 2, 3):
        memory = torch.zeros(X.numel() + start)
        view = memory[start:].view(X.shape)
        view.copy_(X)
        close(dimorder.load(file).run(view), made()(X))


@torch.no_grad()
def test_outputs_lie_in_memory_of_their_own(lowered: Lowered, file: Path) -> None:
    program, x = dimorder.load(file), X
    first = program.run(x)
    kept = [y.clone() for y in first]
    second = program.run(2 * x)
    assert all(torch.equal(y, each) for y, each in zip(first, kept, strict=True))
    assert not {y.data_ptr() for y in first} & {y.data_ptr() for y in second}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "order"), [*itertools.product(PICTURED, ("row-major", "channels-last")), ("bert", "row-major")]
)
def test_networks(name: str, order: str, tmp_path: Path) -> None:
    network = zoo.network(name)
    model, (args, kwargs) = network.build(), network.call(batch=2)
    orders = [DimOrder.channels_last(4) if x.dim() == 4 and order == "channels-last" else None for x in args]
    lowered = dimorder.lower(model, args, kwargs, target="inductor", input_orders=orders or None)
    program = dimorder.load(lowered.save(tmp_path / "net.pt2"))
    args, kwargs = network.call(batch=2, seed=5)
    wanted = pytree.tree_leaves(model(*args, **kwargs))
    for y, expected in zip(program.run(*args, **kwargs), wanted, strict=True):
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.slow
def test_one_file_for_every_batch(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("N", min=1, max=16)},)
    lowered = dimorder.lower(made(), (X,), target="inductor", dynamic_shapes=shapes)
    program = dimorder.load(lowered.save(tmp_path / "net.pt2"))
    with torch.no_grad():
        for count in (1, 2, 7, 16):
            x = torch.randn(count, 3, 9, 11)
            close(program.run(x), made()(x))


def test_a_damaged_file_is_refused(lowered: Lowered, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)
    with pytest.raises(ContractError, match="damaged"):
        dimorder.load(file)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ContractError):
        dimorder.load(file, target="inductor")


def test_another_tools_file_is_refused(lowered: Lowered, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(other, "w") as copy:
        for name in archive.namelist():
            if "/extra/" not in name:
                copy.writestr(name, archive.read(name))
    with pytest.raises(ContractError, match="no contract inside: another tool wrote it"):
        dimorder.load(other)


def test_code_for_other_instructions_is_refused(
    lowered: Lowered, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": False, "amx_tile": False})
    with pytest.raises(UnsupportedError, match=r"code for CPUs with AVX\w+.*, which this one has not"):
        dimorder.load(file)


def test_without_a_compiler_the_error_says_what_installs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config
    from torch._inductor.cpp_builder import get_cpp_compiler

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("no-such-compiler",))
    getattr(get_cpp_compiler, "cache_clear", lambda: None)()
    with pytest.raises(UnsupportedError) as error:
        dimorder.lower(
            nn.Sequential(nn.Linear(3, 5), nn.GELU()).eval(), (torch.ones(2, 3),), target="inductor"
        )
    assert error.value.found == "no C++ compiler works here" and "apt-get install g++" in error.value.fix


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


def test_what_it_has_not_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="programs for inductor have no state"):
        dimorder.lower(Counter(), (torch.ones(2, 3),), target="inductor")


def test_quantised_weights_are_refused_before_they_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.aot_compile", lambda *args, **options: pytest.fail("compiled"))
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    quantised = dimorder.quantize(nn.Conv2d(3, 4, (1, 2)).eval(), [x])
    with pytest.raises(UnsupportedError) as error:
        dimorder.lower(quantised, (x,), target="inductor")
    assert error.value.found.startswith("quantised weights") and "for target torch" in error.value.fix
