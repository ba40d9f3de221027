"""Test that a damaged file of arrays is refused in three lines, whichever byte is damaged."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dimorder.algebra.dim_order import DimOrder
from dimorder.contract import TensorSpec
from dimorder.errors import UsageError
from dimorder.reading import read_arrays, read_image


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@pytest.mark.filterwarnings("ignore")
def test_a_byte_flipped_anywhere_gives_numbers_or_a_refusal(save, tmp_path):
    file = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(file, np.arange(60.0).reshape(3, 4, 5))
    data = file.read_bytes()
    refusals = 0
    for place in range(0, len(data), 3):
        file.write_bytes(data[:place] + bytes([data[place] ^ 8]) + data[place + 1 :])
        try:
            read_arrays(str(file), "--input")
        except UsageError as error:
            assert len(str(error).splitlines()) == 3
            refusals += 1
    assert refusals


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_more_than_8_bits_are_refused(dtype, channels, tmp_path):
    file = tmp_path / "x.tiff"
    Image.fromarray(np.linspace(0, 65535, 80).astype(dtype).reshape(8, 10)).save(file)
    spec = TensorSpec("x", (1, channels, 8, 10), "float32", DimOrder(0, 2, 3, 1))
    with pytest.raises(UsageError, match="pixels of more than 8 bits"):
        read_image(str(file), spec, None, "--input x.tiff")
