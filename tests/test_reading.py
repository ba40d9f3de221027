"""Test that a damaged file of arrays is refused in three lines, whichever byte is damaged."""

from __future__ import annotations

import numpy as np
import pytest

from dimorder.errors import UsageError
from dimorder.reading import read_arrays


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
