"""Print the folder of the CMake package of dimorder's C++ loader: `python -m dimorder.cmake`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from dimorder.errors import UnsupportedError, install_of

CPP = Path(__file__).with_name("cpp")
PACKAGE = CPP / "cmake"


def executorch_package() -> Path:
    """Return the folder of ExecuTorch's CMake package, without importing ExecuTorch."""
    spec = importlib.util.find_spec("executorch")
    places = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    for place in places:
        folder = place / "share" / "cmake"
        if (folder / "executorch-config.cmake").exists():
            return folder
    raise UnsupportedError(
        "ExecuTorch's CMake package",
        "no installed ExecuTorch",
        install_of("executorch"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dimorder.cmake", description="cmake -Ddimorder_DIR=$(python -m dimorder.cmake) ..."
    )
    parser.add_argument(
        "--executorch",
        action="store_true",
        help="the folder for -Dexecutorch_DIR instead, of ExecuTorch's wheel",
    )
    options = parser.parse_args()
    try:
        print(executorch_package() if options.executorch else PACKAGE)
    except UnsupportedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
