"""Measure `inspect` on the 31 networks of its tests: it may take two of the model's own runs and 2 s.

python -m benchmarks.inspect [NAME ...] [--out inspect.json]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from benchmarks import record
from dimorder.cpu import describe_machine, machine
from dimorder.eager.inspection.inspection import in_order, inspect
from tests.eager.inspection.networks import NETWORKS, build

RUNS = 5
PROMISED_RUNS, PROMISED_S = 2, 2.0


def measure(name: str) -> dict[str, float]:
    """Seconds of the model's own run in channels-last, the median of some, and of `inspect`.

    `inspect` is timed as it comes, what it does for the first time in a process included.
    """
    model, x = build(name)
    own = []
    with in_order(model, ((x,), {}), "channels_last") as (args, _):
        for _ in range(RUNS + 1):
            start = time.perf_counter()
            model(*args)
            own.append(time.perf_counter() - start)
    start = time.perf_counter()
    found = inspect(model, x)
    inspect_s = time.perf_counter() - start
    own_s = statistics.median(own[1:])
    return {
        "operators": len(found.calls),
        "model_s": own_s,
        "inspect_s": inspect_s,
        "beyond_s": inspect_s - PROMISED_RUNS * own_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of the 31 networks (default: all)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(describe_machine(machine(("torch",))))
    print(f"{'network':20} {'operators':>9} {'model':>8} {'inspect':>8} {'beyond 2 runs':>14}")
    networks = {}
    for name in options.names or NETWORKS:
        found = networks[name] = measure(name)
        print(
            f"{name:20} {found['operators']:9} {found['model_s']:6.3f} s {found['inspect_s']:6.3f} s "
            f"{found['beyond_s']:12.3f} s"
        )
    most = max(networks, key=lambda name: networks[name]["beyond_s"])
    beyond_s = networks[most]["beyond_s"]
    print(f"most beyond twice the model's run: {most}, {beyond_s:.3f} s of {PROMISED_S:g} s allowed")
    if options.out:
        record.write(options.out, "inspect", ("torch",), networks=networks)


if __name__ == "__main__":
    main()
