"""Test that a file is refused whose tables contradict each other, or which calls kernels that are wrong."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch

pytest.importorskip("executorch")

from executorch.exir._serialize._program import deserialize_pte_binary, serialize_pte_binary

from dimorder.errors import ContractError, UnsupportedError
from dimorder.executorch import check_file
from dimorder.executorch.file_graph import graph_of_file
from dimorder.executorch.lowering_paths import stock
from dimorder.executorch.pte import load

DAMAGES = {
    "an operator that is not there": lambda plan: plan.operators.clear(),
    "an input that is not there": lambda plan: plan.inputs.__setitem__(0, 77),
    "an operand that is not there": lambda plan: plan.chains[0].instructions[0].instr_args.args.append(77),
    "an order with one dim twice": lambda plan: plan.values[plan.outputs[0]].val.dim_order.__setitem__(0, 2),
}


@pytest.fixture(scope="module")
def data() -> bytes:
    return stock("portable")(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3, 5),)))


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, data: bytes, tmp_path: Path) -> Path:
    file = deserialize_pte_binary(data)
    DAMAGES[request.param](file.program.execution_plan[0])
    path = tmp_path / "damaged.pte"
    path.write_bytes(bytes(serialize_pte_binary(file)))
    return path


@pytest.mark.parametrize("read", [check_file, load, graph_of_file])
def test_tables_that_contradict_each_other_are_refused(read, damaged):
    with pytest.raises(ContractError, match="tables that contradict each other"):
        read(str(damaged))


class Joined(torch.nn.Module):
    """Wrong on the portable kernels of ExecuTorch 1.5.1 if its inputs are channels-last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], 1)


def test_a_build_with_a_suffix_has_the_kernels_of_its_version(tmp_path, monkeypatch):
    x = torch.ones(2, 3, 5, 7).to(memory_format=torch.channels_last)
    path = tmp_path / "joined.pte"
    path.write_bytes(stock("portable")(torch.export.export(Joined(), (x,))))
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version(name) + "+cpu" * (name == "executorch"))
    assert [row.verdict for row in check_file(path).rows] == ["wrong"]
    with pytest.raises(UnsupportedError, match="that kernel returns wrong numbers, silently"):
        load(path)
