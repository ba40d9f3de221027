"""Channels-last networks under `torch.compile` and in three steps of distributed training."""

from __future__ import annotations

import os
import socket

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dimorder.eager.channels_last import (
    is_channels_last,
    to_channels_last,
)
from tests.eager.networks import Apply, Small


@pytest.mark.parametrize(("make", "shape"), [(Small, (2, 3, 8, 7)), (lambda: Apply(F.relu), (2, 3, 9))])
def test_compile_keeps_the_order(make, shape):
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(shape)
    expected = module(x)
    compiled = torch.compile(to_channels_last(module), backend="aot_eager", fullgraph=True)
    y = compiled(to_channels_last(x))
    torch.testing.assert_close(y, expected)
    assert is_channels_last(y)


def _train(rank: int, port: int, results) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for make, shape in ((Small, (2, 3, 8, 7)), (lambda: Apply(nn.BatchNorm1d(6)), (2, 3, 9))):
        for convert_it in (False, True):
            torch.manual_seed(0)
            module = to_channels_last(make()) if convert_it else make()
            network = nn.parallel.DistributedDataParallel(module)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
            x = torch.randn(shape, generator=torch.Generator().manual_seed(rank))
            losses = []
            for _ in range(3):
                optimizer.zero_grad()
                y = network(to_channels_last(x) if convert_it else x)
                loss = y.square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            weights = [p for p in module.parameters() if p.dim() == len(shape)]
            results.put((rank, shape, convert_it, losses, all(map(is_channels_last, [y, *weights]))))
    torch.distributed.destroy_process_group()


def test_three_steps_of_ddp_give_the_same_losses_and_keep_the_order():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(_train, (port, results), nprocs=2)
    found = {}
    for _ in range(8):
        rank, shape, converted, losses, kept = results.get()
        found[rank, shape, converted] = losses
        assert kept == converted and len(set(losses)) == 3
    for (rank, shape, _), losses in found.items():
        assert losses == pytest.approx(found[rank, shape, False], rel=1e-5)
