"""Check what the LiteRT example prints: the same face by three ways, and a refusal."""

from __future__ import annotations

import torch

from examples.litert import face


def test_the_face_is_found_by_every_way_and_the_wrong_order_is_refused(tmp_path, capsys):
    with torch.no_grad():
        face.main(tmp_path)
    printed = capsys.readouterr().out
    for title in ("PyTorch", "LiteRT alone", "dimorder.load", "the same, fed NCHW"):
        (line,) = (line for line in printed.splitlines() if line.startswith(f"  {title}  "))
        assert line.split()[-2:] == ["0.9999950", "0.0030105"], line
    for name in ("pnet", "rnet", "onet"):
        (line,) = (line for line in printed.splitlines() if line.startswith(f"  {name}  "))
        assert line.split()[1:4] == ["0", "0", "0"], line
    assert "2 inputs converted, 55,296 bytes" in printed
    assert "fix: x = x.contiguous(memory_format=torch.channels_last)" in printed
