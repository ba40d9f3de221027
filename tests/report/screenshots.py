"""Take pictures of each report page: at the width of a desktop and of a phone, light and dark.

    python -m tests.report.screenshots FOLDER [PAGE-WIDTH-SCHEME ...]

docs/report-pages.md shows all of them.
"""

from __future__ import annotations

import importlib.util
import io
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import dimorder
from dimorder.files import write_whole
from dimorder.latency.bench import measure
from dimorder.report.bench_page import bench_page
from dimorder.report.comparison_page import comparison_page
from dimorder.report.inspection_page import inspection_page
from dimorder.report.plan_comparison import compare_plans
from dimorder.report.plan_page import plan_page
from tests.conftest import ROOT
from tests.report.browser import DESKTOP, PHONE, browser

LARGEST_KB = 150
_STEP = "document.querySelector('[data-step=\"1\"]').click();"
_CLOSER = "document.querySelector('.explorer').scrollIntoView(); scrollBy(0, -12);"


def segment(folder: Path) -> nn.Module:
    """Return the network of docs/inspect.md, from the file that it shows."""
    page = (ROOT / "docs" / "inspect.md").read_text()
    (code,) = re.findall(r"```python title=\"segment.py\"\n(.*?)```", page, re.DOTALL)
    path = folder / "segment.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("segment", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network: nn.Module = module.network()
    return network.eval()


def shufflenet() -> tuple[nn.Module, torch.Tensor]:
    from tests.zoo import load_torchvision

    keep = load_torchvision()
    from torchvision.models import shufflenet_v2_x1_0

    del keep
    return shufflenet_v2_x1_0().eval(), torch.randn(1, 3, 224, 224)


def plan(folder: Path) -> str:
    model, x = shufflenet()
    return plan_page(dimorder.plan(model, (x,), target="xnnpack", input_orders="NHWC"), "ShuffleNetV2")


def both(folder: Path) -> str:
    from dimorder.executorch.stock_graph import stock_graph

    model, x = shufflenet()
    ours = dimorder.plan(model, (x,), target="xnnpack")
    stock = stock_graph(torch.export.export(model, (x,)))
    return comparison_page(
        compare_plans({"dimorder": ours, "ExecuTorch": stock}, explained=True), "ShuffleNetV2"
    )


def inspect(folder: Path) -> str:
    return inspection_page(dimorder.inspect(segment(folder), torch.randn(2, 3, 128, 160)), "segment:network")


def bench(folder: Path) -> str:
    model, x = segment(folder), torch.randn(1, 3, 128, 160)
    return bench_page(
        measure(model, (x,), against=("eager", "eager-channels-last", "executorch"), rounds=11),
        "segment:network",
    )


# Page → what makes it, and what a reader does before the picture is taken.
PAGES: Mapping[str, tuple[Callable[[Path], str], str]] = {
    "plan": (plan, _STEP + _CLOSER),
    "both": (both, 5 * _STEP + _CLOSER),
    "inspect": (inspect, _STEP + _CLOSER),
    "bench": (bench, ""),
}
WIDTHS = {"desktop": (DESKTOP, 860), "phone": (PHONE, 844)}


def main(folder: str, *names: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    chosen = names or ["-".join(each) for each in product(PAGES, WIDTHS, ("light", "dark"))]
    written: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as temporary, browser(Path(temporary) / "profile") as page:
        for name in chosen:
            title, width, scheme = name.split("-")
            make, actions = PAGES[title]
            if title not in written:
                written[title] = Path(temporary) / f"{title}.html"
                written[title].write_text(make(Path(temporary)))
            page.open(written[title], *WIDTHS[width], dark=scheme == "dark")
            page.evaluate(f"{{ {actions} }}")
            data = _palette(page.picture())
            assert len(data) <= 1000 * LARGEST_KB, f"{name} has {len(data):,} bytes"
            print(write_whole(Path(folder) / f"{name}.png", data), f"{len(data):,} bytes")


def _palette(png: bytes) -> bytes:
    """Return a picture with 256 colours."""
    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        out, "PNG", optimize=True
    )
    return out.getvalue()


if __name__ == "__main__":
    main(*sys.argv[1:])
