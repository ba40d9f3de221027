"""Compile transpose.c by the C compiler of the installing machine, or leave it out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/dimorder/cpp/src/transpose.c")
LIBRARY = Path("src/dimorder/eager/transpose.so")
FLAGS = ("-O3", "-fopenmp", "-shared", "-fPIC")


class CompileHook(BuildHookInterface):  # type: ignore[misc]
    """What `pip install` runs, for wheels and for editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        reason = compile_into(root / LIBRARY, root / SOURCE)
        if reason:
            self.app.display_warning(f"transpose.c is not compiled, conversions are slower: {reason}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"artifacts": [str(LIBRARY)], "tag": f"py3-none-{platform}"}
        build_data["pure_python"] = False


def compile_into(library: Path, source: Path) -> str:
    """Compile `source` into `library`; the reason where that fails, which leaves no library: one of an older
    source may not be taken for it."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    beside = library.with_suffix(".part")
    try:
        if not compiler:
            raise FileNotFoundError("there is no C compiler")
        command = [*shlex.split(compiler), *FLAGS, "-o", str(beside), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        beside.replace(library)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        beside.unlink(missing_ok=True)
        library.unlink(missing_ok=True)
        said = (getattr(error, "stderr", None) or str(error)).splitlines()
        return next((line for line in said if "error" in line), said[-1])
    return ""
