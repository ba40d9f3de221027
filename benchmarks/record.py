"""Decides what is kept of a benchmark: its command, the machine, the versions that matter, and its rows."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def write(out: Path, module: str, packages: Sequence[str], rows: Sequence[object]) -> None:
    """Write the rows of `python -m benchmarks.MODULE` as JSON."""
    machine = {
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
    command = ["python", "-m", f"benchmarks.{module}", *sys.argv[1:]]
    out.write_text(json.dumps({"command": command, "machine": machine, "rows": rows}, indent=2) + "\n")
