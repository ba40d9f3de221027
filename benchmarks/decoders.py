"""Compare decoders on XNNPACK with ExecuTorch's own lowerings of the same networks: tokens per second.

    python -m benchmarks.decoders [--networks NAME ...] [--rounds 30] [--small] [--files FOLDER] [--lower]

Each network has random weights, a prompt, and a static cache; its linears are float32, or quantised by
torchao. All programs run in turn: a call with the whole prompt, and calls of one token. Their logits are
compared with eager's first. Results are kept in benchmarks/results/decoders.json after every network; the
.md beside it is the table. `--small` measures tiny networks, to see that all runs. ExecuTorch takes minutes
to lower one network: `--files` keeps the files of each way in a folder and uses those that are there, and
`--lower` writes them and measures nothing. Ends with 1 if a bound does not hold.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.command import Row, command_line, measured, verdict
from benchmarks.decoder_ways import FLOAT, OURS, WAYS, WEIGHTS, Decoder, Files, Opened, Way
from benchmarks.record import failed, record_lines
from dimorder.latency.peak import peak_bytes
from dimorder.latency.timing import Invocation, interleaved, ratio
from dimorder.verification.relative_error import relative_error

PACKAGES = ("torch", "executorch", "transformers", "torchao")
MOST = 1.0  # of the time of the fastest of the others
OF_FILE = 1.05  # of the smallest file of the others: weights are stored once
# Of the largest logit. Rows that are quantised dynamically round at other points than eager's do.
TOLERANCE = {FLOAT: 1e-3, **dict.fromkeys(WEIGHTS[1:], 0.1)}

_SMOLLM = {  # SmolLM-135M
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
_GPT2 = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
_TINY = {"hidden_size": 288, "intermediate_size": 320, "num_hidden_layers": 2, "vocab_size": 192}
_LLAMA, _GPT = ("LlamaForCausalLM", "LlamaConfig"), ("GPT2LMHeadModel", "GPT2Config")
_KINDS = {
    "llama-135m": Decoder(*_LLAMA, _SMOLLM),
    "gpt2-small": Decoder(*_GPT, _GPT2),
}
_TINY_KINDS = {
    "tiny-llama": Decoder(*_LLAMA, {**_SMOLLM, **_TINY}, prompt=12, steps=4, cache=24),
    "tiny-gpt2": Decoder(*_GPT, {**_GPT2, "vocab_size": 192, "n_layer": 2}, prompt=12, steps=4, cache=24),
}


def _named(kinds: Mapping[str, Decoder]) -> dict[str, tuple[Decoder, str]]:
    return {f"{name}/{weights}": (each, weights) for name, each in kinds.items() for weights in WEIGHTS}


_DONE = "seconds.txt"  # written last, into the folder of the files that one way wrote
PROMPT, STEPS = "prompt_ms", "steps_ms"
_COUNTS = {PROMPT: "prompt", STEPS: "steps"}  # of tokens, in a row
NETWORKS, SMALL = _named(_KINDS), _named(_TINY_KINDS)


def timed(name: str, rounds: int, folder: Path) -> Row:
    """One row: for each way its seconds to lower, files, memory, numbers, and milliseconds of every round.

    Args:
        name: The network.
        rounds: How often each call is timed.
        folder: Where the files of each way lie; what is missing is lowered.
    """
    decoder, weights = {**NETWORKS, **SMALL}[name]
    lowered = files_of(name, folder)
    eager = partial(_eager, decoder.build(weights), decoder)
    wanted = _generated(decoder, eager, eager)
    del eager
    ways: dict[str, Row] = {}
    calls = {}
    for way, found in lowered.items():
        try:
            if isinstance(found, Exception):
                raise found
            ways[way], opened = _opened(WAYS[way], decoder, found, wanted)
        except Exception as error:  # whatever is raised is what is recorded of it
            ways[way] = failed(error)
            continue
        if not ways[way]["max_rel_error"] <= TOLERANCE[weights]:
            ways[way]["error"] = f"wrong by {ways[way]['max_rel_error']:.1e} of the largest logit"
            continue
        calls |= {f"{way} {part}": call for part, call in _parts(decoder, *opened).items()}
    for key, times in interleaved(calls, rounds).items():
        way, part = key.split()
        ways[way][part] = [round(ms, 4) for ms in times]
    sizes = {key: getattr(decoder, key) for key in ("prompt", "steps", "cache")}
    return {"network": name, **sizes, "ways": ways}


def files_of(name: str, folder: Path) -> dict[str, Files | Exception]:
    """Return the files of each way, or why it has none; lower the network for those that are missing."""
    decoder, weights = {**NETWORKS, **SMALL}[name]
    files: dict[str, Files | Exception] = {}
    for way, each in WAYS.items():
        if not each.fits(decoder, weights):
            continue
        own = folder / name.replace("/", "-") / way
        try:
            if not (own / _DONE).exists():
                own.mkdir(parents=True, exist_ok=True)
                start = time.perf_counter()
                each.lower(decoder, decoder.build(weights), own)  # lowering may change the network
                (own / _DONE).write_text(f"{time.perf_counter() - start:.1f}")
            files[way] = Files.within(own)
        except Exception as error:  # whatever is raised is what is recorded of it
            files[way] = error
    return files


def _opened(
    way: Way, decoder: Decoder, files: Files, wanted: Sequence[Tensor]
) -> tuple[Row, tuple[Opened | None, Opened]]:
    """Return the facts about a way's programs before timing, and the opened programs."""
    row: Row = {"seconds": float((files.step.parent / _DONE).read_text())}
    row["file_bytes"] = sum(path.stat().st_size for path in files.each)
    row["peak_bytes"] = sum(_peak(way, decoder, files, path) for path in files.each)
    if files.prompt is not None:
        start = time.perf_counter()
        prompt = way.opened(decoder, files.prompt)
        prompt(0, decoder.prompt)
        row["first_token_ms"] = 1e3 * (time.perf_counter() - start)
        step = prompt if files.prompt == files.step else way.opened(decoder, files.step)
    else:
        prompt, step = None, way.opened(decoder, files.step)
    row["max_rel_error"] = max(map(relative_error, _generated(decoder, prompt, step), wanted))
    return row, (prompt, step)


def _peak(way: Way, decoder: Decoder, files: Files, path: Path) -> int:
    inputs = path.with_suffix(".inputs")
    torch.save(way.inputs(decoder.call(0, decoder.prompt if path == files.prompt else 1)), inputs)
    return peak_bytes(way.runtime, path, inputs, torch.get_num_threads(), way.modules)


def _eager(network: nn.Module, decoder: Decoder, first: int, count: int) -> Tensor:
    with torch.no_grad():
        logits: Tensor = network(**decoder.call(first, count))
    return logits.flatten()


def _generated(decoder: Decoder, prompt: Opened | None, step: Opened) -> list[Tensor]:
    """Return the logits after the prompt and after each further token.

    A program for one token alone has its own cache, and reads the prompt token by token.
    """
    if prompt is step:
        logits = [step(0, decoder.prompt)]
    else:
        alone = [step(first, 1) for first in range(decoder.prompt)]
        logits = [alone[-1] if prompt is None else prompt(0, decoder.prompt)]
    return [*logits, *(step(first, 1) for first in _steps(decoder))]


def _steps(decoder: Decoder) -> range:
    return range(decoder.prompt, decoder.prompt + decoder.steps)


def _parts(decoder: Decoder, prompt: Opened | None, step: Opened) -> dict[str, Invocation]:
    """Return what is timed."""
    parts: dict[str, Invocation] = {STEPS: lambda: [step(first, 1) for first in _steps(decoder)]}
    if prompt is not None:
        parts[PROMPT] = partial(prompt, 0, decoder.prompt)
    return parts


# -- what is made of it


def tokens_per_second(row: Row, way: str, part: str) -> float | None:
    times = row["ways"].get(way, {}).get(part)
    count = row[_COUNTS[part]]
    return 1e3 * count / statistics.median(times) if times else None


def share(row: Row, way: str, part: str) -> tuple[float, float, float] | None:
    """Return our time over that of a way, with the interval of 95 %; None if one was not timed."""
    ours, theirs = (row["ways"].get(each, {}).get(part) for each in (OURS, way))
    return ratio(ours, theirs) if ours and theirs and way != OURS else None


def missed(rows: Sequence[Row]) -> list[str]:
    """Return the bounds that do not hold."""
    found = []
    for row in rows:
        name, ours = row["network"], row["ways"][OURS]
        found += [f"{name}: ours fails: {ours['error']}"] if "error" in ours else []
        found += [f"{name}: ours gets one token a call"] if STEPS in ours and PROMPT not in ours else []
        for part, what in _COUNTS.items():
            shares = [each for way in WAYS if (each := share(row, way, part)) is not None]
            slowest = max(shares, default=None)
            if slowest is not None and slowest[1] > MOST:
                found.append(f"{name}: {what} in {_format(slowest)} of the time of the fastest, not {MOST}")
        others = [
            each["file_bytes"] for way, each in row["ways"].items() if way != OURS and "error" not in each
        ]
        if others and "error" not in ours and ours["file_bytes"] > OF_FILE * min(others):
            size = ours["file_bytes"] / min(others)
            found.append(f"{name}: {size:.2f} of the smallest file of the others, not {OF_FILE}")
    return found


def _format(found: tuple[float, float, float] | None) -> str:
    return "" if found is None else "{:.2f} ({:.2f} to {:.2f})".format(*found)


def table(record: Mapping[str, Any]) -> str:
    head = (
        *("network", "lowered by", "prompt, tokens/s", "ours / this", "then, tokens/s", "ours / this"),
        *("first token, ms", "memory, MB", "file, MB", "lowered in, s", "error"),
    )
    lines = [
        "# Decoders",
        "",
        "Tokens per second of the prompt in one call, and of the tokens after it in one call each; our time "
        "over that of each way (95 % interval); milliseconds from opening the file to the logits of the "
        "prompt; peak memory, files, and seconds to lower; the largest error of a logit.",
        "",
        *record_lines(record),
        f"| {' | '.join(head)} |",
        f"| --- | --- |{' ---: |' * (len(head) - 2)}",
        *(_line(row, way) for row in record["rows"] for way in row["ways"]),
        "",
    ]
    for row in record["rows"]:
        for way, each in row["ways"].items():
            if "error" in each:
                lines += [f"{row['network']}, {WAYS[way].title}: `{each['error']}`", ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row, way: str) -> str:
    found = row["ways"][way]

    def number(key: str, form: str, scale: float = 1.0) -> str:
        return form.format(found[key] * scale) if key in found else ""

    cells = [row["network"], WAYS[way].title]
    for part in (PROMPT, STEPS):
        speed = tokens_per_second(row, way, part)
        cells += ["" if speed is None else f"{speed:.1f}", _format(share(row, way, part))]
    cells += [
        number("first_token_ms", "{:.0f}"),
        number("peak_bytes", "{:.0f}", 1e-6),
        number("file_bytes", "{:.1f}", 1e-6),
        number("seconds", "{:.0f}"),
        number("max_rel_error", "{:.0e}"),
    ]
    return f"| {' | '.join(cells)} |"


def _told(row: Row) -> str:
    return "\n".join(_line(row, way) for way in row["ways"])


def main() -> int:
    parser = command_line("decoders", __doc__, {**NETWORKS, **SMALL})
    parser.add_argument("--small", action="store_true", help="tiny networks, kept in build/")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="keep and use lowered files")
    parser.add_argument("--lower", action="store_true", help="write the files alone (with --files)")
    options = parser.parse_args()
    if options.lower and options.files is None:
        parser.error("--lower writes the files of --files: give --files FOLDER too")
    if options.small:
        options.results = Path("build")
    networks = SMALL if options.small else NETWORKS
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.files or Path(temporary)
        if options.lower:
            for name in options.networks or networks:
                files_of(name, folder)
            return 0

        def measure(name: str) -> Row:
            return timed(name, options.rounds, folder)

        return verdict(missed(measured("decoders", options, networks, PACKAGES, measure, table, _told)))


if __name__ == "__main__":
    sys.exit(main())
