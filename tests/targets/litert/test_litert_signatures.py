"""Several networks in one `.tflite`: they share constants and, if wanted, their state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dimorder
from dimorder.errors import VerificationError
from dimorder.signatures import _require_the_same

pytest.importorskip("ai_edge_litert")


class Frames(nn.Module):
    """A streaming convolution whose buffer has the last frames."""

    def __init__(self, scale: float = 1.0, initial: float = 0.5, kept: int = 4) -> None:
        super().__init__()
        self.conv, self.scale, self.kept = nn.Conv1d(3, 8, kept + 1), scale, kept
        with torch.no_grad():
            torch.nn.init.normal_(self.conv.weight, generator=torch.Generator().manual_seed(1))
            self.conv.bias.copy_(torch.arange(8) / 5)
        self.register_buffer("last", torch.full((1, 3, kept), initial))

    def forward(self, x: Tensor) -> Tensor:
        frames = torch.cat([self.last, x], 2)
        self.last.copy_(frames[:, :, -self.kept :])
        return self.conv(frames) * self.scale


class Constant(NamedTuple):
    """A signature with one result, whatever its inputs."""

    value: float

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.full((2, 3), self.value)]

    def reset(self) -> None:
        pass


def frames(count: int, seed: int) -> Tensor:
    return torch.randn(1, 3, count, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def networks() -> dict[str, dimorder.Lowered]:
    lengths = {"long": (16, 1.0), "short": (2, -3.0)}
    return {
        name: dimorder.lower(Frames(scale), (frames(length, 0),), target="litert")
        for name, (length, scale) in lengths.items()
    }


def test_signatures_share_their_state(networks: dict[str, dimorder.Lowered], tmp_path: Path) -> None:
    file = dimorder.save_signatures(tmp_path / "net.tflite", networks, share_state=True)
    long, short = dimorder.load_signatures(file).values()
    own = {1.0: Frames(1.0), -3.0: Frames(-3.0)}
    own[-3.0].last = own[1.0].last  # type: ignore[assignment]
    for program, scale, count in ((long, 1.0, 16), (short, -3.0, 2), (short, -3.0, 2), (long, 1.0, 16)):
        x = frames(count, count)
        torch.testing.assert_close(program(x), own[scale](x), rtol=1e-5, atol=1e-5)
    short.reset()  # for both
    x = frames(16, 3)
    torch.testing.assert_close(long(x), Frames(1.0)(x), rtol=1e-5, atol=1e-5)


def test_or_have_their_own(networks: dict[str, dimorder.Lowered], tmp_path: Path) -> None:
    programs = dimorder.load_signatures(dimorder.save_signatures(tmp_path / "net.tflite", networks))
    own = {"long": Frames(1.0), "short": Frames(-3.0)}
    for name in ("long", "short", "long", "short"):
        x = frames(networks[name].contract.inputs[0].shape[2], 7)  # type: ignore[arg-type]
        torch.testing.assert_close(programs[name](x), own[name](x), rtol=1e-5, atol=1e-5)


def test_constants_are_stored_once(tmp_path: Path) -> None:
    linear, rows = nn.Linear(256, 300).eval(), {"one": 1, "four": 4}
    wide = {name: dimorder.lower(linear, (torch.ones(n, 256),), target="litert") for name, n in rows.items()}
    file = dimorder.save_signatures(tmp_path / "net.tflite", wide)
    alone = len(wide["one"].artifact.data)
    assert alone > 4 * 256 * 300 and file.stat().st_size < 1.1 * alone


def test_the_first_is_what_load_and_check_read(
    networks: dict[str, dimorder.Lowered], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from dimorder.cli import main

    file = dimorder.save_signatures(tmp_path / "net.tflite", networks)
    x = frames(16, 5)
    torch.testing.assert_close(dimorder.load(file)(x), Frames(1.0)(x), rtol=1e-5, atol=1e-5)
    main(["check", str(file)])
    assert "signatures  long, short" in capfd.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (Frames(initial=0.25), "'other' begins with other values than 'long'"),
        (Frames(kept=3), "1 x 3 x 4 float32"),
    ],
)
def test_state_that_differs_is_not_shared(
    other: Frames, found: str, networks: dict[str, dimorder.Lowered], tmp_path: Path
) -> None:
    lowered = dimorder.lower(other, (frames(16, 0),), target="litert")
    file = tmp_path / "net.tflite"
    with pytest.raises(dimorder.DimorderError, match="leave out share_state") as raised:
        dimorder.save_signatures(file, {"long": networks["long"], "other": lowered}, share_state=True)
    assert found in str(raised.value) and not file.exists()


@pytest.mark.parametrize(("wanted", "given"), [(float("nan"), 0.0), (float("inf"), 3.4028234663852886e38)])
def test_special_values_are_no_other_numbers(wanted: float, given: float) -> None:
    lowered = dimorder.lower(nn.ReLU(), (torch.full((2, 3), wanted),))
    _require_the_same("signature", Constant(wanted), lowered)
    with pytest.raises(VerificationError, match="other results than the network alone"):
        _require_the_same("signature", Constant(given), lowered)


def test_buffers_that_both_begin_as_nan_are_shared(tmp_path: Path) -> None:
    networks = {
        str(n): dimorder.lower(Frames(initial=float("nan")), (frames(n, 0),), target="litert") for n in (8, 9)
    }
    assert dimorder.save_signatures(tmp_path / "net.tflite", networks, share_state=True).exists()


def test_other_targets_have_one_program_in_a_file(tmp_path: Path) -> None:
    lowered = dimorder.lower(nn.ReLU(), (torch.ones(2, 3),))
    with pytest.raises(dimorder.DimorderError, match="lower all networks for target litert"):
        dimorder.save_signatures(tmp_path / "net.pt2", {"relu": lowered})
    with pytest.raises(dimorder.DimorderError, match=r"load it with dimorder\.load"):
        dimorder.load_signatures(lowered.save(tmp_path / "net.pt2"))
    with pytest.raises(dimorder.DimorderError, match="give one for each signature"):
        dimorder.save_signatures(tmp_path / "net.tflite", {})


def test_a_damaged_file_is_refused(networks: dict[str, dimorder.Lowered], tmp_path: Path) -> None:
    file = dimorder.save_signatures(tmp_path / "net.tflite", networks)
    data = file.read_bytes()
    for place in range(0, len(data), len(data) // 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(dimorder.DimorderError, match="lower it again, or copy the file again"):
            dimorder.load_signatures(file)
