"""Networks in which Python decides by elements: of constants, of what it writes, or of an input.

They are in a file of their own, whose assertions pytest does not rewrite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Deciding(nn.Module):
    """A network that decides by a function of itself and its input."""

    def __init__(self, forward: Callable[[Deciding, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(5, 7)
        self.register_buffer("is_ready", torch.tensor([True]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("mean", torch.ones(1))
        self.register_buffer("apart", torch.ones(8)[::2])
        self.sizes = torch.tensor([4, 2])  # no buffer
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def by_flag(net: Deciding, x: Tensor) -> Tensor:
    return net.linear(x) if net.is_ready else x


def by_list(net: Deciding, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x)
    return y.sum(torch.arange(1, x.dim()).tolist())


def by_attribute(net: Deciding, x: Tensor) -> Tensor:
    return torch.cat([net.linear(x)] * int(net.sizes.max()))


def by_number(net: Deciding, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x) * net.linear.weight.abs().max().item()
    return y + float(net.linear.bias[2])


def by_elements_written(net: Deciding, x: Tensor) -> Tensor:
    marks = torch.zeros(3)
    marks[1] = 2
    marks.mul_(net.count)
    return net.linear(x) if marks.max() > 5 else x


def by_copy_written(net: Deciding, x: Tensor) -> Tensor:
    count = net.count.clone()
    count += 1
    return net.linear(x) if count > 3 else x


def by_window(net: Deciding, x: Tensor) -> Tensor:
    envelope = torch.hann_window(8, periodic=False)[1:-1].square().expand(1, 3, -1).sum(1)
    assert (envelope > 1e-3).all()
    y: Tensor = net.linear(x) / envelope.mean()
    return y


def checked(net: Deciding, x: Tensor) -> Tensor:
    y = F.pad(x, (1, 2))
    assert (y[..., 1:6] == x).all(), "padded"
    assert not y.isnan().any()
    if y.isinf().any():
        raise ValueError(f"infinite numbers among {y.shape}")
    return net.linear(y[..., 2:7])


def checked_numbers(net: Deciding, x: Tensor) -> Tensor:
    largest = x.abs().max().item()
    assert largest * 2 < 999.5, f"{largest} is large"
    assert (x > 9).sum().item() <= x.shape[0] * 7
    if x.isnan().sum().item() > x.shape[1]:
        raise ValueError("too many are missing")
    return net.linear(x)


def by_mask(net: Deciding, x: Tensor) -> Tensor:
    lower = torch.ones(7, 5).tril(-1) > 0
    y: Tensor = net.linear(x)[:, 0, :, None] * net.linear.weight
    return y[:, lower]


def by_places(net: Deciding, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x)
    return F.linear(y[..., (net.linear.bias > 0).nonzero()[:, 0]], net.linear.weight[:, :4])


def by_sizes(net: Deciding, x: Tensor) -> Tensor:
    padded = F.pad(x, (net.count - 1, net.sizes.max() // 2))
    y: Tensor = net.linear(padded[..., net.count - 2 : net.count + 3])
    steps = torch.arange(0, net.count, dtype=y.dtype) / net.count
    return y[..., None].expand(-1, -1, -1, net.count) * net.linear.bias[: net.count] + steps


def by_sizes_of_functions_in_python(net: Deciding, x: Tensor) -> Tensor:
    resized = F.interpolate(net.linear(x)[None], size=(net.sizes[0], net.count), mode="bilinear")
    return F.normalize(resized, 2, net.count)


def by_input(net: Deciding, x: Tensor) -> Tensor:
    return net.linear(x) if x.sum() > 0 else x


def by_input_written(net: Deciding, x: Tensor) -> Tensor:
    marks = torch.zeros(3)
    first = marks[:1]
    marks[0] = x.sum()
    return net.linear(x) if first > 0 else x


def by_chance(net: Deciding, x: Tensor) -> Tensor:
    return net.linear(x) if torch.rand(3).sum() > 1.5 else x


def by_negation(net: Deciding, x: Tensor) -> Tensor:
    is_small = not x.sum() > 0
    return net.linear(x) * is_small


def by_error_caught(net: Deciding, x: Tensor) -> Tensor:
    try:
        if x.sum() > 0:
            raise ValueError("too large")
        return net.linear(x)
    except ValueError:
        return x


def by_assertion_caught(net: Deciding, x: Tensor) -> Tensor:
    try:
        _require_small(x)
    except:  # noqa: E722
        return x
    return net.linear(x)


def _require_small(x: Tensor) -> None:
    assert x.sum() < 0


def by_number_asserted_and_caught(net: Deciding, x: Tensor) -> Tensor:
    try:
        assert x.max().item() < 9
    except AssertionError:
        return x
    return net.linear(x)


def by_error_suppressed(net: Deciding, x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(AssertionError):
        assert x.sum() > 0
        y = net.linear(x)
    return y


def by_loop_before_error(net: Deciding, x: Tensor) -> Tensor:
    total = torch.zeros(())
    while total < 3:
        total = total + x.sum()
        if total.dim():
            return x
    raise ValueError("it does not end otherwise")


def by_number_drawn_in_place(net: Deciding, x: Tensor) -> Tensor:
    return net.linear(x) if torch.zeros(3).uniform_().sum() > 1.5 else x


def by_list_written(net: Deciding, x: Tensor) -> Tensor:
    marks = torch.zeros(2)
    first = marks[:1]
    torch._foreach_add_([marks], [x.sum((1, 2))])
    return net.linear(x) if first > 0 else x


def by_array_of_input(net: Deciding, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x)
    return y * float(x.detach().numpy().sum())


def by_data_replaced(net: Deciding, x: Tensor) -> Tensor:
    marks = torch.zeros(2)
    marks.data = x.sum((1, 2))
    return net.linear(x) if marks.sum() > 0 else x


def by_parameter_replaced(net: Deciding, x: Tensor) -> Tensor:
    first = net.linear.weight
    net.linear._parameters["weight"] = x.sum((0, 1)).expand(7, 5)  # type: ignore[assignment]
    y = net.linear(x) if net.linear.weight.sum() > 0 else x
    net.linear._parameters["weight"] = first
    return y


def by_buffer_written_below(net: Deciding, x: Tensor) -> Tensor:
    torch.ops.aten.add_.Tensor(net.count, 1)
    return net.linear(x) if net.count < 6 else x


def by_state(net: Deciding, x: Tensor) -> Tensor:
    net.count += 1
    return net.linear(x) if net.count < 6 else x


def by_state_of_a_view(net: Deciding, x: Tensor) -> Tensor:
    y = net.linear(x) if net.count < 6 else x
    net.count.view(1).add_(1)
    return y


def by_state_replaced(net: Deciding, x: Tensor) -> Tensor:
    y = net.linear(x) if net.count < 6 else x
    net.count.data = net.count + 1
    return y


def by_statistics(net: Deciding, x: Tensor) -> Tensor:
    y = net.linear(x) if net.mean < 6 else x
    return y + F.batch_norm(x.reshape(-1, 1), net.mean, torch.ones(1), training=True).view(x.shape).sum()


def by_mask_of_state(net: Deciding, x: Tensor) -> Tensor:
    y: Tensor = net.linear(x)[..., (net.mean > 0).expand(7)]
    net.mean += 1
    return y


def by_copies(net: Deciding, x: Tensor) -> Tensor:
    copied = net.apart.contiguous()
    copied[0] = 5
    return net.linear(x) if net.apart[0] > 1 else x


def by_arrays(net: Deciding, x: Tensor) -> Tensor:
    sizes = net.sizes.detach().cpu().numpy()
    marks = np.asarray(torch.arange(4) * net.count)
    y: Tensor = net.linear(x) * float(sizes[0] + net.apart.numpy().sum())
    return torch.cat([y] * int(marks.argmax()))


def by_mapped(net: Deciding, x: Tensor) -> Tensor:
    y = torch.vmap(lambda row: row * net.count)(x)
    return net.linear(y) if net.is_ready else y


def checked_state(net: Deciding, x: Tensor) -> Tensor:
    assert net.count < 900
    if net.count > 900:
        raise ValueError("too many calls")
    net.count += 1
    y: Tensor = net.linear(x) * net.count
    return y


DECIDED = (
    by_flag,
    by_list,
    by_attribute,
    by_number,
    by_elements_written,
    by_copy_written,
    by_window,
    checked,
    checked_numbers,
    by_copies,
    by_mask,
    by_places,
    by_sizes,
    by_sizes_of_functions_in_python,
    by_arrays,
)
REFUSED = (
    by_input,
    by_input_written,
    by_chance,
    by_negation,
    by_error_caught,
    by_assertion_caught,
    by_number_asserted_and_caught,
    by_error_suppressed,
    by_loop_before_error,
    by_number_drawn_in_place,
    by_list_written,
    by_array_of_input,
    by_data_replaced,
    by_parameter_replaced,
    by_buffer_written_below,
)
STATES = (by_state, by_state_of_a_view, by_state_replaced, by_statistics, by_mask_of_state)
