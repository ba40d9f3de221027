"""Small networks, and the .pte files that stock ExecuTorch makes of them, with a contract or without."""

import torch
from torch import nn

from dimorder.contract import Contract
from dimorder.contract_file import constant_methods, seal


class Pointwise(nn.Module):
    """Right in any order on ExecuTorch's portable kernels, wrong if memory is read in another than meant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + x


class Conv(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(channels, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class TwoInTwoOut(nn.Module):
    def forward(self, image: torch.Tensor, sound: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return image + image, torch.relu(sound)


def export_pte(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    contract: Contract | None,
    *,
    xnnpack: bool = False,
    dynamic_shapes: object = None,
    external_constants: bool = False,
) -> bytes:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    exported = torch.export.export(model.eval(), args, dynamic_shapes=dynamic_shapes)
    edge = to_edge_transform_and_lower(
        exported,
        partitioner=[XnnpackPartitioner()] if xnnpack else [],
        constant_methods=None if contract is None else constant_methods(contract),
    )
    config = ExecutorchBackendConfig(external_constants=external_constants)  # in a .ptd
    pte = bytes(edge.to_executorch(config).buffer)
    return pte if contract is None else seal(pte)
