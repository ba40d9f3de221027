"""Programs of target torch as files: run under their contract, refused where damaged or another tool's."""

import contextlib
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import dimorder
from dimorder.cli import main
from dimorder.errors import ContractError, UsageError
from dimorder.files import write_whole


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Hardswish(), nn.Conv2d(6, 4, (1, 3))).eval()


def numbers() -> torch.Tensor:
    return torch.randn((2, 3, 5, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lowered = dimorder.lower(network(), (numbers(),), target="torch", input_orders="NHWC")
    return lowered.save(tmp_path_factory.mktemp("pt2") / "net.pt2")


def test_a_saved_program_gives_what_eager_gives_however_it_is_fed(saved: Path) -> None:
    x, program = numbers(), dimorder.load(saved)
    for fed in (x, x.contiguous(memory_format=torch.channels_last), x.flip(0).flip(0)):
        assert torch.allclose(program(fed), network()(x), atol=1e-5)
    with pytest.raises(ContractError, match=r"NHWC"):
        dimorder.load(saved, on_mismatch="error")(x)


def test_the_command_runs_it(saved: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import numpy as np

    np.save(tmp_path / "x.npy", numbers().numpy())
    assert main(["run", str(saved), "--input", str(tmp_path / "x.npy")]) == 0
    assert "output0" in capfd.readouterr().out


def test_what_is_no_program_of_ours_is_refused(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt2"
    torch.export.save(torch.export.export(network(), (numbers(),)), other)
    with pytest.raises(ContractError, match="no contract inside: another tool wrote it"):
        dimorder.load(other)
    other.write_bytes(saved.read_bytes()[:-900])
    with pytest.raises(ContractError, match="lower it again, or copy the file again"):
        dimorder.load(other)
    with pytest.raises(UsageError, match="no such file"):
        dimorder.load(tmp_path / "missing.pt2")


def test_damage_that_torch_does_not_notice_is_refused(saved: Path, tmp_path: Path) -> None:
    whole, other = saved.read_bytes(), tmp_path / "other.pt2"
    with zipfile.ZipFile(saved) as archive:
        weight = next(archive.read(name) for name in archive.namelist() if name.endswith("weight_0"))
    directory = whole.find(b"PK\x01\x02")
    for place in (whole.find(weight) + 3, *range(directory + 6, len(whole), 97)):
        other.write_bytes(whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        with contextlib.suppress(ContractError):
            assert torch.equal(dimorder.load(other)(numbers()), dimorder.load(saved)(numbers()))
    with pytest.raises(ContractError, match="damaged: "):
        other.write_bytes(whole.replace(weight, weight[::-1]))
        dimorder.load(other)
    with pytest.raises(UsageError, match="damaged: "):
        dimorder.lower(str(other))


def test_a_name_too_long_for_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / ("n" * 250 + ".pt2"), b"...")
    assert not list(tmp_path.iterdir())
