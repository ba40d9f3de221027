"""Compare the speed of our float32 programs for XNNPACK with ExecuTorch's and with the runtimes used instead.

    python -m benchmarks.latency [--networks NAME ...] [--targets NAME ...] [--against NAME ...]

`dimorder bench` times each network, at the size at which it is used. Every program is checked against eager
first. All run in turn, each timed call after a pause and untimed ones. Runtimes that are not installed are
left out (extra `peers`). Results are kept in benchmarks/results/latency.json after every network; the .md
beside it is the table, the .png the chart. Ends with 1 if a bound does not hold.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.command import Row, command_line, measured
from benchmarks.record import failed, record_lines
from dimorder.files import write_whole
from dimorder.latency.bench import measure
from dimorder.latency.runtimes import PEERS, runtime
from dimorder.latency.timing import geometric_mean
from tests import zoo
from tests.zoo.hugging_face import text, transformers
from tests.zoo.network import Network, Shape

PACKAGES = ("torch", "executorch", "torchvision", "timm", "transformers")
OURS, BY_TIME, INDUCTOR, STOCK = "xnnpack", "xnnpack:time", "inductor", "executorch"
TARGETS = (OURS, BY_TIME, INDUCTOR)
OTHERS = ("onnxruntime", "openvino", "litert-torch", "compile-frozen")  # the best is what our best is held to
AGAINST = (STOCK, "eager-channels-last", *OTHERS)

MOST, SURELY = 1.02, 1.05  # of ExecuTorch's milliseconds on any network, and the upper end of the interval
LEAST = {"vit_tiny": 0.48, "convnext_tiny": 0.52, "shufflenet_v2_x1_0": 0.68}  # where its conversions cost
MEANS = {  # geometric means
    "ExecuTorch's milliseconds": 0.70,
    "the best of the others' milliseconds, by its best target": 0.95,
    "the machine's limit": 1.6,
}
OF_MEMORY = OF_FILE = 1.05  # of ExecuTorch's, on any network
_KERNELS = 3  # that a line names
BETTER_BY_TIME = 5  # networks on which the plan by time is faster than the one by bytes, by more than chance

_OF_224 = (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "squeezenet1_1"),
    *("shufflenet_v2_x1_0", "densenet121", "googlenet", "efficientnet_b0", "regnet_y_400mf", "mnasnet1_0"),
    *("deeplabv3_mobilenet_v3_large", "convnext_tiny", "vit_b_16", "swin_t", "fastvit_t8", "repvgg_a0"),
    *("efficientvit_b0", "mixer_s32_224", "poolformer_s12", "ghostnet_100", "hrnet_w18_small"),
)
_OTHER_SIZES: Mapping[str, Shape] = {
    "inception_v3": (1, 3, 299, 299),
    "mobilevit_xxs": (1, 3, 256, 256),
    "unet": (1, 3, 256, 256),
    "yolo": (1, 3, 256, 256),
    "wav2vec2": (1, 16000),
    "tcn": (1, 6, 2000),
    "conv_tasnet": (1, 1, 16000),
}
_TIMM = {"vit_tiny": "vit_tiny_patch16_224", "resmlp_12_224": "resmlp_12_224"}
_SMALL = {  # BERT-small
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}
NETWORKS: Mapping[str, Network] = {
    each.name: each
    for each in (
        *(replace(zoo.network(name), shape=zoo.SQUARE_224) for name in _OF_224),
        *(Network(name, zoo.timm(path), zoo.SQUARE_224, frozenset()) for name, path in _TIMM.items()),
        *(replace(zoo.network(name), shape=shape) for name, shape in _OTHER_SIZES.items()),
        Network("bert", transformers("BertModel", "BertConfig", **_SMALL), (), frozenset(), text(128)),
    )
}


def timed(name: str, targets: Sequence[str], against: Sequence[str], rounds: int) -> Row:
    """One row: what `dimorder bench --json` writes of the network, under its name in the zoo."""
    network = NETWORKS[name]
    try:
        found = measure(
            network.build(),
            *network.call(),
            targets=targets,
            against=against,
            rounds=rounds,
            limit=True,
        ).to_dict()
    except Exception as error:  # whatever is raised is what is recorded of it
        return {"network": name, **failed(error)}
    del found["environment"]
    return {**found, "network": name}


# -- what is made of it


def _cell(row: Row, name: str) -> Row:
    return next((each for each in row.get("runtimes", ()) if each["name"] == name), {})


def share(row: Row, name: str) -> tuple[float, float, float] | None:
    """Our milliseconds over a runtime's, with the interval; None where one of the two failed."""
    found = _cell(row, name).get("ratio")
    return (found[0], found[1], found[2]) if found else None


def by_time(row: Row) -> tuple[float, float, float] | None:
    """Milliseconds of the plan by time over those of the plan by bytes, with the interval; None where the two
    plans are one."""
    found = share(row, BY_TIME)
    told = [_cell(row, name).get("foretold_ms") for name in (BY_TIME, OURS)]
    return (1 / found[0], 1 / found[2], 1 / found[1]) if found and told[0] != told[1] else None


def foretold(row: Row, name: str = OURS) -> float | None:
    """Return the milliseconds that the table of times predicts for a plan, over the measured ones."""
    cell = _cell(row, name)
    return cell["foretold_ms"] / cell["median_ms"] if cell.get("foretold_ms") and cell["median_ms"] else None


def converting(row: Row) -> float | None:
    """Return the predicted milliseconds of our conversions, over the measured ones of our program. It is the
    most that another plan could save."""
    ours = _cell(row, OURS)
    if not ours.get("kernels") or not ours.get("median_ms"):
        return None
    moved = [each["ms"] for each in ours["kernels"] if each["name"].startswith("transpose")]
    return sum(moved) / ours["median_ms"]


def _misordered(row: Row) -> bool:
    """Whether the plan that the table says is the faster one is the slower one, by more than chance."""
    first, second = (_cell(row, name).get("foretold_ms") for name in (BY_TIME, OURS))
    took = by_time(row)
    if not (first and second and took):
        return False
    return (first < second and took[1] > 1) or (first > second and took[2] < 1)


def best(row: Row, names: Sequence[str] = OTHERS) -> tuple[str, float] | None:
    """The fastest of some runtimes, by default of the others, and its milliseconds."""
    found = {name: ms for name in names if (ms := _cell(row, name).get("median_ms"))}
    return min(found.items(), key=lambda item: item[1]) if found else None


def of_best(row: Row) -> float | None:
    """The milliseconds of our fastest target over those of the fastest of the others."""
    ours, theirs = best(row, TARGETS), best(row)
    return ours[1] / theirs[1] if ours and theirs else None


def above_limit(row: Row) -> float | None:
    ours, limit = _cell(row, OURS).get("median_ms"), row.get("limit_ms")
    return ours / limit if ours and limit else None


def of_stock(row: Row, what: str) -> float | None:
    """Our bytes over ExecuTorch's: of the file, or of memory."""
    ours, theirs = (_cell(row, each).get(what) for each in (OURS, STOCK))
    return ours / theirs if ours and theirs else None


def means(rows: Sequence[Row]) -> dict[str, float]:
    """The geometric means that have a bound."""
    found = (
        [each[0] for row in rows if (each := share(row, STOCK))],
        [each for each in map(of_best, rows) if each],
        [each for each in map(above_limit, rows) if each],
    )
    return dict(zip(MEANS, map(geometric_mean, found), strict=True))


def missed(rows: Sequence[Row]) -> list[str]:
    """The bounds that do not hold."""
    found = []
    for row in rows:
        name = row["network"]
        errors = (row.get("error"), *(_cell(row, way).get("error") for way in TARGETS))
        found += [f"{name}: ours fails: {error}" for error in errors if error]
        took, most = share(row, STOCK), LEAST.get(row["network"], MOST)
        if took and (took[0] > most or took[2] > max(most, SURELY)):
            found.append(f"{name}: {_told(took)} of ExecuTorch's milliseconds, not {most}")
        timed_ = by_time(row)
        if timed_ and timed_[1] > 1:
            found.append(f"{name}: the plan by time takes {_told(timed_)} of the one by bytes")
        if _misordered(row):
            found.append(f"{name}: of the plans by time and by bytes the table foretells the slower one")
        for what, bound in (("peak_bytes", OF_MEMORY), ("file_bytes", OF_FILE)):
            size = of_stock(row, what)
            if size and size > bound:
                found.append(f"{name}: {size:.2f} of ExecuTorch's {what.replace('_', ' ')}, not {bound}")
    better = [row["network"] for row in rows if (by_time(row) or (1, 1, 1))[2] < 1]
    if len(better) < BETTER_BY_TIME:
        found.append(f"plans by time are better on {len(better)} networks, not on {BETTER_BY_TIME}")
    for what, mean in means(rows).items():
        if not mean <= MEANS[what]:
            found.append(f"ours takes {mean:.3f} of {what}, not {MEANS[what]}")
    return found


def explained(rows: Sequence[Row]) -> list[str]:
    """Return a line for each network on which ExecuTorch or the best of the others is faster. It names our
    kernels that take the time, and how many times their least they take."""
    lines = []
    for row in rows:
        fastest, stock = best(row), share(row, STOCK)
        faster = [fastest[0]] if fastest and (of_best(row) or 0) > 1 else []
        faster += [STOCK] if stock and stock[0] > MOST else []
        if faster:
            ours = _cell(row, OURS)
            shown = [*faster, *(name for name in (INDUCTOR,) if _cell(row, name).get("median_ms"))]
            took = ", ".join(f"{_title(name)} {_cell(row, name)['median_ms']:.2f} ms" for name in shown)
            limit = f", the machine's limit {row['limit_ms']:.2f} ms" if row.get("limit_ms") else ""
            kernels = ours.get("kernels") or ()
            most = (
                f"{each['count']} x {each['name']} {each['ms']:.2f} ms ({each['ms'] / each['least_ms']:.1f} "
                "times the least)"
                for each in kernels[:_KERNELS]
            )
            by = f"; by the table of times {', '.join(most)}" if kernels else ""
            lines.append(f"- {row['network']}: {took}, ours {ours['median_ms']:.2f} ms{limit}{by}.")
    return lines


def _title(name: str) -> str:
    return runtime(name).title


def _told(found: tuple[float, float, float] | None) -> str:
    return "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)


def table(record: Mapping[str, Any]) -> str:
    rows: list[Row] = record["rows"]
    titles = {name: _title(name) for name in AGAINST}
    head = (
        *("network", "input", "ours, ms", "of the limit", *titles.values(), "inductor", "best"),
        *("by time", "conversions", "foretold", "memory", "file"),
    )
    lines = [
        "# Latency of float32 programs",
        "",
        "Milliseconds of ours for XNNPACK, medians; how many times the machine's limit that is; ours over "
        "each of the others (95 % interval), and over target inductor; our fastest target over the fastest "
        "of the others; the plan by time over ours, which is by bytes, where it is another; the share that "
        "conversions have of ours by the table of times, which is the most that any other plan could save; "
        "what that table foretells of ours over what it takes; peak memory and file over ExecuTorch's.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- | --- |{' ---: |' * (len(head) - 2)}",
        *map(_line, rows),
        "",
        *(f"Geometric mean of ours over {what}: {mean:.3f}.\n" for what, mean in means(rows).items()),
        "Where others are faster, the kernels of XNNPACK that take the time of ours, and how many times what "
        "they would take at the rate of the table's fastest:",
        "",
        *explained(rows),
        "",
    ]
    for row in rows:
        for each in [row, *row.get("runtimes", ())]:
            if each.get("error"):
                lines += [f"{row['network']}, {each.get('title', 'all')}: `{each['error'][:200]}`", ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    ours, mine, fastest = _cell(row, OURS).get("median_ms"), best(row, TARGETS), best(row)
    sizes = [of_stock(row, what) for what in ("peak_bytes", "file_bytes")]
    cells = [
        row["network"],
        ", ".join("x".join(map(str, shape)) for shape in row.get("inputs", ())),
        "fails" if ours is None else f"{ours:.2f}",
        "" if above_limit(row) is None else f"{above_limit(row):.2f}",
        *(_told(share(row, name)) or ("fails" if _cell(row, name) else "") for name in (*AGAINST, INDUCTOR)),
        f"{of_best(row):.2f} ({mine[0]}, {_title(fastest[0])})" if mine and fastest else "",
        _told(by_time(row)),
        "" if converting(row) is None else f"{100 * converting(row):.1f} %",
        "" if foretold(row) is None else f"{foretold(row):.2f}",
        *("" if size is None else f"{size:.2f}" for size in sizes),
    ]
    return f"| {' | '.join(cells)} |"


_COLOURS = {
    STOCK: "#c53030",
    "eager-channels-last": "#a0aec0",
    "onnxruntime": "#2b6cb0",
    "openvino": "#6b46c1",
    "litert-torch": "#2f855a",
    "compile-frozen": "#b7791f",
}


def chart(rows: Sequence[Row]) -> bytes:
    """The others' milliseconds over ours, by network: right of the line ours is faster."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.2 + 0.26 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = [row["network"] for row in reversed(rows)]
    for name in AGAINST:
        shares = [share(row, name) for row in reversed(rows)]
        points = [(1 / each[0], y) for y, each in enumerate(shares) if each]
        if points:
            axes.scatter(*zip(*points, strict=True), s=22, color=_COLOURS[name], label=PEERS[name].title)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("milliseconds over ours")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def main() -> int:
    parser = command_line("latency", __doc__, NETWORKS)
    parser.add_argument("--targets", nargs="+", metavar="NAME", choices=TARGETS, default=TARGETS)
    parser.add_argument("--against", nargs="+", metavar="NAME", choices=AGAINST, default=AGAINST)
    options = parser.parse_args()
    against = [name for name in options.against if not PEERS[name].missing]

    def measure_row(name: str) -> Row:
        return timed(name, options.targets, against, options.rounds)

    found = measured("latency", options, NETWORKS, PACKAGES, measure_row, table, _line)
    write_whole(options.results / "latency.png", chart(found))
    for fault in missed(found):
        print(fault, file=sys.stderr)
    return int(bool(missed(found)))


if __name__ == "__main__":
    sys.exit(main())
