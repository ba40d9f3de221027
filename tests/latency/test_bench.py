"""Test what `dimorder bench MODEL` measures, prints and refuses."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dimorder
from dimorder import targets
from dimorder.cli import main
from dimorder.cpu import family
from dimorder.errors import UnsupportedError, UsageError, installed
from dimorder.latency import bench, limit, profile, runtimes
from dimorder.targets.xnnpack import passes
from dimorder.targets.xnnpack.emit import emit
from dimorder.targets.xnnpack.kernels import KernelRun
from dimorder.targets.xnnpack.times import Times
from tests.targets.quantised import by_xnnpack

pytestmark = pytest.mark.usefixtures("at_root")

TINY = ["tests.cli.networks:Tiny", "--input", "2x3x5x7"]


def network() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), (torch.randn(2, 3, 9, 11),)


def test_ours_and_executorchs_programs_are_checked_timed_and_weighed():
    found = bench.measure(*network(), against=("executorch", "eager-channels-last"), rounds=5)
    ours, stock, eager = found.rows
    assert [row.name for row in found.rows] == ["xnnpack", "executorch", "eager-channels-last"]
    assert all(len(row.ms) == 5 and min(row.ms) > 0 and row.error is None for row in found.rows)
    assert all(row.max_rel_error is not None and row.max_rel_error < 1e-5 for row in found.rows)
    assert ours.file_bytes and stock.file_bytes and eager.file_bytes is None and eager.peak_bytes is None
    assert ours.peak_bytes and 0 < ours.peak_bytes < 200e6
    low, high = found.ratio(stock)[1:]
    assert found.ratio(ours) is None and low <= found.ratio(stock)[0] <= high


class Sum(nn.Module):
    """The sum of all inputs so far, which is state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(2 * x)
        return self.total


class Chosen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.relu() * 2, lambda x: x.sigmoid() + 1, (x,))


def test_each_program_starts_from_the_state_of_the_given_network():
    network, x = Sum().eval(), torch.randn(2, 3, 5)
    found = bench.measure(
        network, (x,), targets=("torch",), against=("eager", "eager-channels-last"), rounds=5
    )
    assert [row.error for row in found.rows] == [None] * 3
    assert max(row.max_rel_error for row in found.rows) == 0


def test_the_profile_of_branches_is_refused():
    physical = dimorder.lower(Chosen(), (torch.randn(2, 3, 5),), target="torch").physical
    with pytest.raises(UnsupportedError, match=r"found: a network with torch\.cond"):
        profile.profile(physical, limit.Limit(1, 1e9, ((100, 1e9),)))


def test_wrong_numbers_and_failures_have_no_times(monkeypatch):
    def wrong(given, path):
        call = runtimes.PEERS["eager"].open(given, path)
        return lambda: [y + 0.01 for y in call()]

    def flat(given, path):
        call = runtimes.PEERS["eager"].open(given, path)
        return lambda: [y.flatten() for y in call()]

    def failing(given, path):
        raise RuntimeError("no such kernel")

    peers = {"eager": runtimes.PEERS["eager"]}
    peers |= {
        name: replace(peers["eager"], name=name, open=o)
        for name, o in (("wrong", wrong), ("flat", flat), ("no", failing))
    }
    monkeypatch.setattr("dimorder.latency.bench.PEERS", peers)
    found = bench.measure(*network(), targets=("torch",), rounds=5)
    told = {row.name: row for row in found.rows}
    assert told["eager"].ms and told["torch"].ms
    assert not told["wrong"].ms and "wrong by" in told["wrong"].error
    assert not told["flat"].ms and told["flat"].max_rel_error is None
    assert told["flat"].error == "other shapes or types than PyTorch's, or other NaN and infinities"
    json.dumps(found.to_dict(), allow_nan=False)
    assert not told["no"].ms and told["no"].error == "RuntimeError: no such kernel"
    assert found.ratio(told["no"]) is None and "PyTorch: RuntimeError: no such kernel" in str(found)


def test_what_the_table_of_times_foretells_stands_beside_what_was_measured(monkeypatch):
    told = Times(family(), 1, 2.0, 8.0, 100.0, ((KernelRun("Abs", (64,), 0, 512), 200.0),))
    monkeypatch.setattr(runtimes, "measured_times", lambda: {family(): told})
    model, args = network()
    found = bench.measure(model, args, against=("eager",), rounds=5, threads=1)
    ours, eager = found.rows
    assert [(each.name, each.count) for each in ours.kernels[:2]] == [("convolution", 1), ("transpose", 2)]
    products = 2 * 7 * 9 * 8 * 27
    assert ours.kernels[0].ms == pytest.approx((100 + products) / 1e6) == ours.kernels[0].least_ms
    assert ours.predicted_ms == sum(each.ms for each in ours.kernels) and eager.predicted_ms is None
    assert f"of the {ours.predicted_ms:,.3f} ms that the table of times predicts, of which 1 x conv" in str(
        found
    )
    written = found.to_dict()["runtimes"]
    assert written[0]["kernels"][1]["name"] == "transpose" and written[1]["kernels"] is None


@pytest.mark.slow
def test_the_table_of_times_foretells_nothing_for_other_threads_than_its_own(monkeypatch):
    told = Times(family(), 1, 2.0, 8.0, 100.0, ((KernelRun("Abs", (64,), 0, 512), 200.0),))
    monkeypatch.setattr(runtimes, "measured_times", lambda: {family(): told})
    assert bench.measure(*network(), against=(), rounds=5, threads=2).rows[0].kernels is None


def test_wrong_use_is_told():
    model, args = network()
    for options, text in (
        ({"rounds": 4}, "4 rounds"),
        ({"threads": 0}, "0 threads"),
        ({"targets": ()}, "the targets"),
        ({"targets": ("none",)}, "no target 'none'"),
        ({"targets": ("torch", "xnnpack:foo")}, "objective 'foo'\n  found: no objective of target xnnpack"),
        ({"targets": ("torch:time",)}, "of target torch, but of xnnpack\n  fix: choose bytes or count"),
        ({"targets": ("torch", "tosa")}, "target tosa\n  found: a reference model runs its files"),
        ({"targets": ("ethos-u85-256",)}, "its files do not run on this CPU"),
        ({"against": ("none",)}, "no runtime 'none'"),
    ):
        with pytest.raises(UsageError, match=text):
            bench.measure(model, args, **options)


def test_a_litert_target_is_timed():
    pytest.importorskip("ai_edge_litert")
    (row,) = bench.measure(*network(), targets=("litert",), against=(), rounds=5).rows
    assert row.error is None and len(row.ms) == 5 and row.kernels is None


@pytest.mark.slow
def test_torch_has_as_many_threads_afterwards_as_before():
    threads = torch.get_num_threads()
    found = bench.measure(*network(), targets=("torch",), against=(), rounds=5, threads=threads + 1)
    assert found.threads == threads + 1 == found.environment["threads"]
    assert torch.get_num_threads() == threads


def test_a_runtime_that_is_not_installed_says_what_installs_it(monkeypatch):
    lacking = replace(runtimes.PEERS["openvino"], needs=("no_such_package",))
    monkeypatch.setattr("dimorder.latency.bench.PEERS", {"openvino": lacking})
    with pytest.raises(
        UnsupportedError, match=r"no_such_package\n  fix: in dimorder's folder: pip install '\.\[peers\]'"
    ):
        bench.measure(*network(), against=("openvino",))


def test_a_target_that_is_not_installed_says_what_installs_it(monkeypatch):
    def lower(given, path):
        with installed("target xnnpack", "pip install it"):
            import no_such_module  # noqa: F401

    lacking = replace(runtimes.ours("torch"), write=lower)
    monkeypatch.setattr(bench, "ours", lambda target: lacking)
    with pytest.raises(
        UnsupportedError, match=r"^target xnnpack\n.*no_such_module.*\n  fix: pip install it$"
    ):
        bench.measure(*network(), targets=("torch",), against=())


def test_the_command_writes_json_and_prints_a_table(tmp_path, capfd):
    file = tmp_path / "tiny.json"
    options = ["--target", "torch", "--against", "eager", "--rounds", "5", "--json", str(file)]
    assert main(["bench", *TINY, *options]) == 0
    out = capfd.readouterr().out
    assert out.startswith("Tiny  2x3x5x7  5 rounds in turn") and "dimorder, torch" in out
    told = json.loads(file.read_text())
    assert set(told) == {"network", "inputs", "threads", "environment", "limit_ms", "operators", "runtimes"}
    assert [each["name"] for each in told["runtimes"]] == ["torch", "eager"]
    assert len(told["runtimes"][1]["ratio"]) == 3 and len(told["runtimes"][0]["ms"]) == 5


def test_the_command_refuses_what_it_cannot_write(capfd):
    assert main(["bench", *TINY, "-o", "table.json"]) == 2
    assert "give --json FILE" in capfd.readouterr().err
    assert main(["bench", *TINY, "--chart", "chart.svg"]) == 2
    assert "no .png" in capfd.readouterr().err
    assert main(["bench", "net.pt2"]) == 2


def test_the_limit_counts_products_windows_and_norms_alone():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.LayerNorm(7), nn.Linear(7, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(torch.relu(self.conv(x)).permute(0, 2, 3, 1)[..., :7].float()))

    program = torch.export.export(Net(), (torch.randn(2, 3, 9, 11),))
    found = {name.split(".")[1]: (flops, moved) for name, flops, moved in limit.work(program)}
    pixels = 2 * 7 * 9
    assert found["convolution"] == (2 * pixels * 8 * 27, 4 * (2 * 3 * 9 * 11 + 8 * 27 + 8 + pixels * 8))
    assert found["native_layer_norm"] == (0, 4 * (2 * pixels * 7 + 2 * 7))
    assert found["addmm"][0] == 2 * pixels * 7 * 5
    assert len(found) == 3
    told = limit.Limit(2, 1e9, ((1, 1e9),))
    assert told.seconds(program) == pytest.approx(sum(max(f, m) for f, m in found.values()) / 1e9)


def _told(network: nn.Module, *inputs: torch.Tensor) -> list[profile.OperatorTime]:
    lowered = dimorder.lower(network, inputs, target="xnnpack")
    return profile.profile(lowered.physical, limit.Limit(1, 1e12, ((1, 1e12),)), rounds=5)


def test_a_profile_has_each_operator_once_with_its_place_and_limit():
    torch.manual_seed(0)
    same = nn.Conv2d(8, 8, 3, padding=1)
    body = [nn.Conv2d(3, 8, 3), nn.ReLU(), same, nn.ReLU6(), same, nn.Sigmoid(), nn.MaxPool2d(2, 2)]
    found = _told(nn.Sequential(*body), torch.randn(2, 3, 9, 11))
    names = [each.place.operator for each in found]
    assert Counter(names) == {
        "aten.clone": 2,
        "aten.sigmoid": 1,
        "dimorder.conv2d_nhwc": 3,  # each clamps otherwise
        "dimorder.max_pool2d_nhwc": 1,
    }
    pixels = 2 * 7 * 9
    first, same = (2 * pixels * 8 * taps for taps in (27, 72))
    limits = {each.place.operator: each.limit_ms for each in found}
    assert limits["aten.sigmoid"] == limits["aten.clone"] == 0
    convolutions = sorted(each.limit_ms for each in found if each.place.operator == "dimorder.conv2d_nhwc")
    assert convolutions == pytest.approx([each / 1e9 for each in (first, same, same)])
    assert [each.above_ms for each in found] == sorted((each.above_ms for each in found), reverse=True)


def test_each_time_is_a_node_of_its_own_in_the_file(monkeypatch):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardswish()).eval()
    physical = dimorder.lower(network, (torch.randn(2, 3, 9, 11),), target="xnnpack").physical
    counted, finish = [], passes.finish

    def counting(graph):
        islands = finish(graph)
        counted.append([type(each.xnode_union).__name__ for each in graph.nodes])
        return islands

    monkeypatch.setattr(passes, "finish", counting)
    told = {}
    for each in profile._single_operators(physical):
        emit(each.exported(times=4))
        told[each.place.operator] = counted[-1]
    assert told == {
        "aten.clone": ["XNNStaticTranspose"] * 4,
        "dimorder.conv2d_nhwc": ["XNNConv2d"] * 4,
        "aten.hardswish": ["XNNHardswish"] * 4,
    }


def test_operators_alike_are_timed_once():
    torch.manual_seed(0)
    found = _told(nn.Sequential(*(nn.Linear(7, 7) for _ in range(3)), nn.Tanh()), torch.randn(2, 5, 7))
    assert {each.place.operator: each.count for each in found} == {"aten.linear": 3, "aten.tanh": 1}


@pytest.mark.slow
def test_what_has_several_results_and_what_runs_outside_has_a_time():
    class Net(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, places = (x * 2).topk(3)
            return values + 1, places, F.embedding(i, x)

    found = _told(Net(), torch.randn(4, 7), torch.tensor([[1, 3, 0]]))
    assert {"aten.topk", "aten.embedding"} <= {each.place.operator for each in found}


def test_what_has_no_profile_is_told():
    quantised = by_xnnpack(nn.Linear(5, 3).eval(), torch.randn(2, 5))
    with pytest.raises(UnsupportedError, match="a quantised network"):
        _told(quantised, torch.randn(2, 5))


@pytest.mark.slow
def test_the_command_profiles(capfd):
    assert main(["bench", *TINY, "--against", "eager", "--rounds", "5", "--profile"]) == 0
    out = capfd.readouterr().out
    assert "operators one by one" in out and "dimorder.conv2d_nhwc (networks.py:" in out


@pytest.mark.slow
def test_no_program_is_faster_than_the_limit():
    found = bench.measure(*network(), against=(), rounds=5, limit=True)
    assert found.limit_ms and found.rows[0].median > found.limit_ms


def test_a_chart_has_a_bar_for_each_runtime():
    pytest.importorskip("matplotlib")
    found = bench.measure(*network(), targets=("torch",), against=("eager",), rounds=5)
    assert bench.png(found).startswith(b"\x89PNG")


def test_the_runtimes_that_help_names_are_those_there_are():
    from dimorder.cli.bench import _RUNTIMES

    assert tuple(runtimes.PEERS) == _RUNTIMES


def test_no_runtime_has_the_name_of_a_target():
    assert not set(runtimes.PEERS) & {name for name, _ in targets.infos()}
