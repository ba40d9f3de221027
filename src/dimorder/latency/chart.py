"""Draw a bench: a bar for each runtime, from fastest to slowest."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from dimorder.errors import UnsupportedError

if TYPE_CHECKING:
    from dimorder.latency.bench import Bench

_OURS, _OTHERS = "#2b6cb0", "#a0aec0"


def png(bench: Bench) -> bytes:
    """Return the medians of a bench as a bar chart.

    Raises `UnsupportedError` if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("a chart", str(error), "pip install 'dimorder[peers]'") from error
    timed = sorted((row for row in bench.rows if row.ms), key=lambda row: -(row.median or 0.0))
    figure = Figure(figsize=(8, 0.8 + 0.45 * len(timed)), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(
        [row.title for row in timed],
        [row.median or 0.0 for row in timed],
        color=[_OURS if row.is_ours else _OTHERS for row in timed],
    )
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.set_xlabel(f"ms, medians of {bench.run}")
    axes.set_title(bench.network)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    return image.getvalue()
