"""Write losses in calls that Arm's quantizers know; each is a function of the arguments, by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    """Return a loss as it is, its mean or its sum; torch numbers these."""
    return (lambda: loss, loss.mean, loss.sum)[reduction]()


def _squared_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    difference = self - target
    return _reduced(difference * difference, reduction)


def _absolute_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _reduced((self - target).abs(), reduction)


def _huber_loss(self: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """Return half of the square below `delta`, and a line beyond."""
    length = (self - target).abs()
    near = length.clamp(max=delta)
    return _reduced(near * (length - near * 0.5), reduction)


def _smooth_loss(self: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    if beta == 0:
        return _absolute_loss(self, target, reduction)
    length = (self - target).abs()
    near = length.clamp(max=beta)
    return _reduced(near * (length - near * 0.5) * (1 / beta), reduction)


def _soft_margin_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _reduced(torch.nn.functional.softplus(-self * target), reduction)


def _divergence(self: Tensor, target: Tensor, reduction: int, log_target: bool) -> Tensor:
    """Return how far logarithms of shares are from those of other shares. A share of 0 adds nothing."""
    if log_target:
        return _reduced(target.exp() * (target - self), reduction)
    least = torch.finfo(target.dtype).eps
    return _reduced(target * (target.clamp(min=least).log() - self), reduction)


def _triplet_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float,
    p: float,
    eps: float,
    swap: bool,
    reduction: int,
) -> Tensor:
    def distance(x: Tensor, y: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x - y + eps, p, -1)
        return length

    far = distance(anchor, negative)
    far = torch.minimum(far, distance(positive, negative)) if swap else far
    return _reduced((distance(anchor, positive) - far + margin).clamp(min=0), reduction)


def _cosine_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float, reduction: int) -> Tensor:
    """Return how far pairs are from the same direction, or how near they are if they are to differ."""
    x, y = (each / torch.linalg.vector_norm(each, 2, -1, True).clamp(min=1e-6) for each in (input1, input2))
    cosine = (x * y).sum(-1)
    of_others = torch.where(target == -1, (cosine - margin).clamp(min=0), 0.0)
    return _reduced(torch.where(target == 1, 1 - cosine, of_others), reduction)


def _class_loss(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> Any:
    return _loss_of_scores(self, target, weight, reduction, ignore_index, 0.0)


def _cross_entropy(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Any:
    scores = self.log_softmax(1 if self.dim() > 1 else 0)
    return _loss_of_scores(scores, target, weight, reduction, ignore_index, label_smoothing)


def _loss_of_scores(
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Any:
    """Return the sum of the negated scores, each times the share of its class.

    A target class is compared with each class, and an ignored one with none.
    """
    axis = 1 if scores.dim() > 1 else 0
    shape = [-1 if d == axis else 1 for d in range(scores.dim())]
    weights = None if weight is None else weight.reshape(shape)
    count = scores.shape[axis]
    if target.is_floating_point():
        shares = target * (1 - label_smoothing) + label_smoothing / count if label_smoothing else target
        losses = scores * shares if weights is None else scores * (shares * weights)
        loss = -losses.sum(axis)
        return loss.sum() / (target.numel() / count) if reduction == 1 else _reduced(loss, reduction)
    places = target.unsqueeze(axis)
    chosen = places == torch.arange(count, dtype=target.dtype, device=target.device).reshape(shape)
    if 0 <= ignore_index < count:
        chosen = torch.logical_and(chosen, places != ignore_index)
    weighted = -scores if weights is None else -scores * weights
    loss = torch.where(chosen, weighted, 0.0).sum(axis)
    if label_smoothing:
        others = torch.where(target != ignore_index, weighted.sum(axis), 0.0)
        loss = loss * (1 - label_smoothing) + others * (label_smoothing / count)
    if reduction != 1:
        return _reduced(loss, reduction)
    counted = chosen.to(scores.dtype)
    return loss.sum() / (counted if weights is None else counted * weights).sum()


LOSSES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.mse_loss.default: _squared_loss,
        aten.l1_loss.default: _absolute_loss,
        aten.huber_loss.default: _huber_loss,
        aten.smooth_l1_loss.default: _smooth_loss,
        aten.soft_margin_loss.default: _soft_margin_loss,
        aten.triplet_margin_loss.default: _triplet_loss,
        aten.kl_div.default: _divergence,
    }
)
# Losses of floats and of classes, which may be integers.
LOSSES_OF_CLASSES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.cosine_embedding_loss.default: _cosine_loss,
        aten.nll_loss_nd.default: _class_loss,
        aten.cross_entropy_loss.default: _cross_entropy,
    }
)
