"""Draw pooling and resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fuzz.rows import (
    Draw,
    Drawn,
    Operator,
    per_dim,
    plain,
)


def _pool(space: int, kind: str) -> Operator:
    def draw(d: Draw) -> Drawn:
        kernel, stride = per_dim(d, space, (2, 2, 3)), per_dim(d, space, (1, 2, 2, 3))
        padding = per_dim(d, space, (0, 0, 1))
        attributes: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
        attributes["ceil"] = d.chance(0.4)
        if kind == "max":
            attributes["dilation"] = per_dim(d, space, (1, 1, 2))
        else:
            attributes["counted"] = d.chance(0.5)
        return [d.x], attributes

    more = "dilation={dilation}" if kind == "max" else "count_include_pad={counted}"
    source = f"F.{kind}_pool{space}d({{0}}, {{kernel}}, {{stride}}, {{padding}}, ceil_mode={{ceil}}, {more})"
    return Operator(source, draw, range(space + 1, space + 3))


def _adaptive(space: int, kind: str) -> Operator:
    def draw(d: Draw) -> Drawn:
        return [d.x], {"sizes": tuple(d.rng.choice([1, 2, 3, s]) for s in d.shape[-space:])}

    return Operator(f"F.adaptive_{kind}_pool{space}d({{0}}, {{sizes}})", draw, range(space + 1, space + 3))


def _resize(d: Draw, modes: Sequence[str]) -> dict[str, Any]:
    mode = d.rng.choice(modes)
    corners = d.rng.choice([True, False]) if mode != "nearest" else None
    return {"mode": mode, "corners": corners}


_MODES = {
    3: ("nearest", "linear"),
    4: ("nearest", "bilinear", "bilinear", "bicubic"),
    5: ("nearest", "trilinear"),
}


def _scaled(d: Draw) -> Drawn:
    return [d.x], {"by": d.rng.choice([2, 2, 3, 0.5]), **_resize(d, _MODES[d.rank])}


def _resized(d: Draw) -> Drawn:
    size = tuple(d.rng.randint(1, 2 * s) for s in d.shape[2:])
    return [d.x], {"size": size, **_resize(d, _MODES[d.rank])}


def _antialiased(d: Draw) -> Drawn:
    """Not to a single column: there PyTorch 2.13 itself is wrong, where an input is not channels-last."""
    size = (d.rng.randint(1, 2 * d.shape[2]), d.rng.randint(2, 2 * d.shape[3]))
    return [d.x], {"size": size, **_resize(d, ("bilinear", "bicubic"))}


_UPSAMPLES = tuple(
    f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "bilinear2d", "linear1d")
)
_INTERPOLATE = "F.interpolate({0}, %s, mode={mode!r}, align_corners={corners})"

SPATIAL = {
    **{f"{kind}_pool{space}d": _pool(space, kind) for kind in ("max", "avg") for space in (1, 2, 3)},
    **{
        f"adaptive_{kind}_pool{space}d": _adaptive(space, kind)
        for kind in ("max", "avg")
        for space in (1, 2, 3)
    },
    "upsample": Operator(_INTERPOLATE % "scale_factor={by}", _scaled, range(3, 6), _UPSAMPLES),
    "antialiased": Operator(
        _INTERPOLATE % "size={size}, antialias=True", _antialiased, range(4, 5), ("_upsample_bilinear2d_aa",)
    ),
    "resize": Operator(_INTERPOLATE % "size={size}", _resized, range(3, 6), _UPSAMPLES),
    "max_pool2d_indices": plain(
        "F.max_pool2d({0}, 2, return_indices=True)[1].to({0}.dtype)",
        range(4, 5),
        ("max_pool2d_with_indices",),
    ),
    "unfold": plain("F.unfold({0}, 2)", range(4, 5)),
}
