"""A file of LiteRT that computes one size after another."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dimorder
from dimorder.targets.litert.runtime import LiteRtProgram

pytest.importorskip("ai_edge_litert")


class JoinedHeads(nn.Module):
    """Scores of joined heads, whose reshapes lie between three delegates."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.linear = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        first, second = (
            self.linear(each).transpose(1, 2).reshape(batch, 1, 8, length) for each in (x, x.sin())
        )
        heads = torch.cat([first] * 3 + [second] * 3, 1).reshape(batch, 2, 24, length)
        return torch.softmax(heads.transpose(2, 3) @ heads, -1)


def test_a_longer_input_is_right_after_a_shorter_one() -> None:
    """XNNPACK once left out copies here: after 10, all of 24 was off by its largest value."""
    net, x = JoinedHeads().eval(), torch.randn(2, 7, 32)
    sizes = {0: Dim("B", min=1, max=4), 1: Dim("N", min=1, max=32)}
    lowered = dimorder.lower(net, (x,), target="litert", dynamic_shapes=(sizes,))
    assert lowered.artifact.delegates > 1
    program = LiteRtProgram(lowered.artifact.data, lowered.contract)
    for length in (10, 24, 3, 32):
        x = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(program([x])[0], net(x), rtol=1e-4, atol=1e-5)


def test_so_is_one_of_a_signature(tmp_path: Path) -> None:
    """LiteRT's own function of a signature resizes once: after 10, all of 24 was off by a third."""
    net, x = JoinedHeads().eval(), torch.randn(2, 7, 32)
    sizes = {0: Dim("B", min=1, max=4), 1: Dim("N", min=1, max=32)}
    heads = dimorder.lower(net, (x,), target="litert", dynamic_shapes=(sizes,))
    other = dimorder.lower(nn.Tanh(), (x,), target="litert")
    file = dimorder.save_signatures(tmp_path / "net.tflite", {"other": other, "heads": heads})
    program = dimorder.load_signatures(file)["heads"]
    for length in (10, 24, 3, 32):
        x = torch.randn(2, length, 32, generator=torch.Generator().manual_seed(length))
        torch.testing.assert_close(program(x), net(x), rtol=1e-4, atol=1e-5)


class FirstHalf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, : x.shape[1] // 2]


def test_a_result_may_have_no_elements_at_some_sizes() -> None:
    sizes = {0: Dim("B", min=1, max=4), 1: Dim("N", min=1, max=16)}
    lowered = dimorder.lower(FirstHalf(), (torch.randn(2, 7, 5),), target="litert", dynamic_shapes=(sizes,))
    for length in (1, 9):
        x = torch.randn(3, length, 5)
        assert torch.equal(lowered.run(x), x[:, : length // 2])


def test_a_result_of_a_signature_may_have_none(tmp_path: Path) -> None:
    sizes = {0: Dim("B", min=1, max=4), 1: Dim("N", min=1, max=16)}
    lowered = dimorder.lower(FirstHalf(), (torch.randn(2, 7, 5),), target="litert", dynamic_shapes=(sizes,))
    file = dimorder.save_signatures(tmp_path / "net.tflite", {"half": lowered})
    program = dimorder.load_signatures(file)["half"]
    for length in (1, 9):
        x = torch.randn(3, length, 5)
        assert torch.equal(program(x), x[:, : length // 2])


@pytest.mark.parametrize("is_signature", [False, True])
def test_several_threads_may_call_one_program(is_signature: bool, tmp_path: Path) -> None:
    net, sizes = JoinedHeads().eval(), {0: Dim("B", min=1, max=4), 1: Dim("N", min=1, max=32)}
    lowered = dimorder.lower(net, (torch.randn(2, 7, 32),), target="litert", dynamic_shapes=(sizes,))
    file = dimorder.save_signatures(tmp_path / "net.tflite", {"heads": lowered})
    program = dimorder.load_signatures(file)["heads"] if is_signature else dimorder.load(file)
    fed = [torch.randn(2, length, 32) for length in (10, 24, 3, 32)]
    with torch.no_grad():
        wanted = [net(x) for x in fed]
    errors: list[float] = []

    def work(first: int) -> None:
        for turn in range(50):
            i = (first + turn) % len(fed)
            errors.append(float((program(fed[i]) - wanted[i]).abs().max()))  # type: ignore[union-attr]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a call
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert len(errors) == 200 and max(errors) < 1e-4


class Squeezed(nn.Module):
    """The mean over all pixels of a convolution, quantised by the linear that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.conv(x).relu().mean((2, 3)))


@pytest.mark.parametrize(("dims", "islands"), [((2, 3), 0), ((0,), 1), ((0, 2, 3), 1)])
def test_a_mean_of_integers_for_a_dynamic_batch_is_computed_in_float32(
    dims: tuple[int, ...], islands: int
) -> None:
    """XNNPACK may add its integers up in the memory of other values: 13 of 28 results of regnety_002."""
    pytest.importorskip("executorch")
    torch.manual_seed(0)
    sizes = ({dim: Dim(f"D{dim}", min=3 if dim else 1, max=9) for dim in dims},)
    calls = [(torch.randn(2, 3, 6, 5),), (torch.randn(2, 3, 6, 5),)]
    quantized = dimorder.quantize(Squeezed(), calls, target="litert", dynamic_shapes=sizes)
    reasons = [why for _, why in dimorder.lower(quantized, target="litert").plan.float_islands]
    assert [why.startswith("a mean of a dynamic number of results") for why in reasons] == [True] * islands
