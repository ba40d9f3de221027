"""Run a benchmark with one row for each network: measure the rows that are missing, and keep each at once."""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import keep, rows_kept
from dimorder.cpu import machine
from dimorder.latency.bench import ROUNDS

Row = dict[str, Any]


def command_line(module: str, text: str | None, networks: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser of the command `python -m benchmarks.MODULE`."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--networks", nargs="+", metavar="NAME", choices=networks, help="measure these anew")
    made.add_argument("--rounds", type=int, default=ROUNDS)
    made.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    return made


def measured(
    module: str,
    options: argparse.Namespace,
    networks: Collection[str],
    packages: Sequence[str],
    timed: Callable[[str], Row],
    table: Callable[[Mapping[str, Any]], str],
    told: Callable[[Row], str],
    on_any_machine: bool = False,
) -> list[Row]:
    """The rows of `networks`: those of an earlier run on this machine, and those that it lacks, or that are
    asked for, measured. Each is kept, with the `table` of all, and `told` in a line. Rows without times may
    be of any machine that has the same packages."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    options.results.mkdir(parents=True, exist_ok=True)
    kept, here = options.results / f"{module}.json", machine(packages)
    of = packages if on_any_machine else None
    done = {row["network"]: row for row in rows_kept(kept, here, of)}
    for name in options.networks or [name for name in networks if name not in done]:
        start = time.perf_counter()
        done[name] = timed(name)
        keep(kept, module, here, [done[each] for each in networks if each in done], table)
        print(f"{told(done[name])}  {time.perf_counter() - start:.0f} s", flush=True)
    return [done[name] for name in networks if name in done]


def verdict(faults: Sequence[str]) -> int:
    """Print the bounds that do not hold, and return the exit code."""
    print("; ".join(faults) or "every bound holds")
    return int(bool(faults))
