"""Build what the tests of a session share: the C++ guard, `dimorder-run`, and programs to run on it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.device import emulation
from tests.device.native_fixture import built
from tests.device.runner_programs import PIXELS, Heard, Next, Ran, Run, Scale, lower
from tests.runtime.networks import Conv, export_pte
from tests.zoo import stateful


@pytest.fixture(scope="session")
def runner() -> Path:
    """The path of `dimorder-run` for this machine; what is built stays in `build/device`."""
    if reason := emulation.missing(emulation.HOST):
        pytest.skip(reason)
    return emulation.built()


@pytest.fixture(scope="session")
def guard_native() -> None:
    """Build the C++ guard, or skip where it cannot be built."""
    built("guard_native")


@pytest.fixture
def run(runner: Path, files: Path) -> Run:
    """Call `dimorder-run` in the folder of the files."""

    def call(*words: object) -> Ran:
        command = [str(runner), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=files)
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, and files to feed them with: also x.npy in other strides, and with special values."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(1)
    torch.manual_seed(0)
    image, sound = torch.randn(1, 3, *PIXELS), torch.randn(1, 9)
    lower(
        folder / "two.pte", Heard(), image, sound, input_orders=["NHWC", "NC"], output_orders=["NHWC", "NC"]
    )
    lower(folder / "one.pte", Scale(), torch.randn(2, 3, 5, 7))
    lower(folder / "photo.pte", Scale(), image, input_orders="NHWC")
    lower(folder / "grey.pte", Scale(), torch.randn(1, 1, *PIXELS))
    lower(folder / "count.pte", Next(), torch.arange(6).reshape(2, 3))
    lower(folder / "brain.pte", Scale(torch.bfloat16), image.bfloat16())
    lower(folder / "counter.pte", stateful.Counter(), torch.randn(5, 7))
    ranges = ({0: torch.export.Dim("N", min=1, max=6), 2: torch.export.Dim("H", min=4, max=12)},)
    lower(folder / "sizes.pte", Scale(), torch.randn(2, 3, 5, 7), dynamic_shapes=ranges)
    (folder / "foreign.pte").write_bytes(export_pte(Conv(3), (image,), None))
    np.save(folder / "sound.npy", sound.numpy())
    np.save(folder / "image.npy", np.moveaxis(rng.standard_normal((1, *PIXELS, 3), np.float32), 3, 1))
    x = rng.standard_normal((2, 3, 5, 7), np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "turned.npy", np.asfortranarray(x))
    special = np.round(x)
    special[0, 1, 2, :4] = np.nan, np.inf, -np.inf, np.inf
    np.save(folder / "special.npy", special)
    np.save(folder / "seen.npy", rng.standard_normal((5, 7), np.float32))
    np.save(folder / "right.npy", Scale()(torch.from_numpy(x)).detach().numpy())
    Image.fromarray(rng.integers(0, 256, (*PIXELS, 3), np.uint8)).save(folder / "photo.ppm")
    return folder
