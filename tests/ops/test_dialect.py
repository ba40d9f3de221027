"""The dialect's operators against eager torch on NCHW, in real, fake, exported and decomposed form."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dimorder.ops import dialect

OPS = torch.ops.dimorder


def nhwc(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def volumes(weight: Tensor) -> Tensor:
    """A transposed weight in two dimensions and two groups as (O, D, H, W, I / groups): thrice in depth."""
    return ohwi_of_transposed(weight, 2).unsqueeze(1).expand(-1, 3, -1, -1, -1).contiguous()


def ohwi_of_transposed(weight: Tensor, groups: int) -> Tensor:
    """torch's (I, O/groups, KH, KW) as (O, KH, KW, I/groups)."""
    per_group = weight.unflatten(0, (groups, weight.shape[0] // groups))
    return per_group.permute(0, 2, 3, 4, 1).flatten(0, 1).contiguous()


X = torch.randn(2, 6, 9, 11, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, 3, 5, 2)
DEPTHWISE = torch.randn(12, 1, 3, 5)
TRANSPOSED = torch.randn(6, 4, 3, 2)
B4, B8, B12, SLOPE = torch.randn(4), torch.randn(8), torch.randn(12), torch.rand(6)

CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "conv": (
        lambda x: OPS.conv2d_nhwc(x, nhwc(W), B4, [2, 1], [2, 2, 1, 1], [1, 2], 2),
        lambda x: F.conv2d(x, W, B4, (2, 1), (2, 1), (1, 2), 2),
    ),
    "conv, asymmetric padding": (
        lambda x: OPS.conv2d_nhwc(x, nhwc(W), None, [1, 1], [0, 3, 2, 1], [1, 1], 2),
        lambda x: F.conv2d(F.pad(x, (2, 1, 0, 3)), W, None, groups=2),
    ),
    "depthwise conv, multiplier 2": (
        lambda x: OPS.conv2d_nhwc(x, nhwc(DEPTHWISE), B12, [1, 1], [1, 1, 2, 2], [1, 1], 6),
        lambda x: F.conv2d(x, DEPTHWISE, B12, padding=(1, 2), groups=6),
    ),
    "transposed conv": (
        lambda x: OPS.conv_transpose2d_nhwc(
            x, ohwi_of_transposed(TRANSPOSED, 2), B8, [3, 2], [1, 0], [2, 1], [1, 2], 2
        ),
        lambda x: F.conv_transpose2d(x, TRANSPOSED, B8, (3, 2), (1, 0), (2, 1), 2, (1, 2)),
    ),
    "transposed conv, 3-D": (
        lambda x: OPS.conv_transpose3d_ndhwc(
            x.unsqueeze(1), volumes(TRANSPOSED), B8, [3, 1, 2], [1, 1, 0], [2, 0, 1], [1, 1, 2], 2
        )[:, 1].contiguous(),
        lambda x: F.conv_transpose3d(
            x.unsqueeze(2),
            TRANSPOSED.unsqueeze(2).expand(-1, -1, 3, -1, -1),
            B8,
            (3, 1, 2),
            (1, 1, 0),
            (2, 0, 1),
            2,
            (1, 1, 2),
        )[:, :, 1],
    ),
    "max pool": (
        lambda x: OPS.max_pool2d_nhwc(x, [3, 2], [2, 3], [1, 0], [1, 2], True),
        lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 0), (1, 2), ceil_mode=True),
    ),
    "average pool": (
        lambda x: OPS.avg_pool2d_nhwc(x, [3, 2], [2, 3], [1, 0], True, False, None),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), True, False),
    ),
    "bilinear": (
        lambda x: OPS.upsample_bilinear2d_nhwc(x, [13, 17], True, None, None),
        lambda x: F.interpolate(x, (13, 17), mode="bilinear", align_corners=True),
    ),
    "nearest": (
        lambda x: OPS.upsample_nearest2d_nhwc(x, [18, 33], None, None),
        lambda x: F.interpolate(x, (18, 33), mode="nearest"),
    ),
    "nearest, scales": (
        lambda x: OPS.upsample_nearest2d_nhwc(x, [11, 16], 1.3, 1.5),
        lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="nearest"),
    ),
    "bilinear, scales": (
        lambda x: OPS.upsample_bilinear2d_nhwc(x, [11, 16], False, 1.3, 1.5),
        lambda x: F.interpolate(x, scale_factor=(1.3, 1.5), mode="bilinear"),
    ),
    "prelu": (lambda x: OPS.prelu_last(x, SLOPE), lambda x: F.prelu(x, SLOPE)),
}


class Wrapped(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_torch_on_nchw(name: str) -> None:
    ours, torchs = CASES[name]
    expected = nhwc(torchs(X))
    y = ours(nhwc(X))
    assert y.stride() == expected.stride()
    torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("name", CASES)
def test_decomposed_program_has_no_dialect_and_the_same_numbers(name: str) -> None:
    ours, torchs = CASES[name]
    program = torch.export.export(Wrapped(ours), (nhwc(X),))
    assert any(str(node.target).startswith("dimorder.") for node in program.graph.nodes)
    plain = dialect.decompose(program)
    assert not any(str(node.target).startswith("dimorder.") for node in plain.graph.nodes)
    torch.testing.assert_close(program.module()(nhwc(X)), nhwc(torchs(X)))
    torch.testing.assert_close(plain.module()(nhwc(X)), nhwc(torchs(X)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(1, 9, 11, 6), (2, 9, 11, 6), (1, 13, 4, 6)])
def test_fake_result_has_the_real_strides(name: str, shape: tuple[int, ...]) -> None:
    ours, _ = CASES[name]
    if "scales" in name and shape[1] != 9:
        pytest.skip("the case's output size belongs to 9 x 11")
    program = torch.export.export(Wrapped(ours), (torch.randn(shape),))
    fake: Any = program.graph.output_node().args[0][0].meta["val"]  # type: ignore[index,union-attr]
    real = ours(torch.randn(shape))
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())


@pytest.mark.parametrize("channels", [1, 2])
def test_strides_are_canonical_where_sizes_are_one(channels: int) -> None:
    x, weight = torch.randn(1, 1, 5, 3), torch.randn(channels, 1, 1, 3)
    y = OPS.conv2d_nhwc(x, weight, None, [1, 1], [0, 0, 0, 0], [1, 1], 1)
    assert y.stride() == (5 * channels, 5 * channels, channels, 1)


def test_registration_survives_a_second_import() -> None:
    importlib.reload(dialect)
    assert OPS.prelu_last(torch.tensor([-2.0, 3.0]), torch.tensor([0.5, 0.5])).tolist() == [-1.0, 3.0]


def test_dialect_imports_no_executorch() -> None:
    code = "import sys, dimorder.ops.dialect; sys.exit('executorch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
