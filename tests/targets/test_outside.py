"""Test that a target of another package is used like ours: `outside/` is built, installed and lowered for.

No line of dimorder names it. If it is broken, clashes or lacks its extra, the error says whose it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import dimorder
from dimorder import targets
from dimorder.cli import main
from dimorder.errors import UnsupportedError, UsageError
from dimorder.targets.ethos_u import ACCELERATORS
from tests.cli.commands import HERE, INPUT, SHAPE, refused, tiny
from tests.conftest import ROOT

OUTSIDE = Path(__file__).parent / "outside"
EXTRA = OUTSIDE / "extra"  # what `pip install 'dimorder-toy[format]'` would install
LOWER = ["lower", f"{HERE}:Tiny", "--arg", "width=4", *INPUT, "--target", "toy"]
TOLD = "  toy  .toy  a list of calls on NHWC arrays, for a toy"

pytestmark = pytest.mark.usefixtures("at_root")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed: its wheel, built by its own build backend, unpacked."""
    pytest.importorskip("hatchling")
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, check=True, cwd=OUTSIDE, capture_output=True)
    (wheel,) = wheels.iterdir()
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def without_extra(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in [name for name in sys.modules if name.startswith(("dimorder_toy", "toy_format"))]:
        del sys.modules[name]


@pytest.fixture
def toy(without_extra: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXTRA))


Declare = Callable[[str, str, str], None]


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Installs a package, as far as its metadata goes, that declares one target."""

    def install(package: str, name: str, value: str) -> None:
        folder = tmp_path / "site" / f"{package.replace('-', '_')}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{targets.GROUP}]\n{name} = {value}\n")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return install


# -- as it should be -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("toy")
def test_it_is_found_beside_ours() -> None:
    assert targets.names() == ["inductor", "torch", "litert", "tosa", "xnnpack", *ACCELERATORS, "toy"]
    assert targets.find("toy").suffix == ".toy"


@pytest.mark.parametrize("argv", [[], ["lower"], ["plan"], ["explain"]], ids=" ".join)
def test_help_tells_of_it_and_imports_neither_it_nor_torch(site: Path, argv: list[str]) -> None:
    script = (
        "import sys\nfrom dimorder.cli import main\n"
        f"try:\n    main({[*argv, '--help']})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'dimorder_toy.target'} & set(sys.modules)"
    )
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].split() == TOLD.split()


@pytest.mark.usefixtures("toy")
def test_the_commands_lower_run_and_check_for_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, x, y = (str(tmp_path / name) for name in ("net.toy", "x.npy", "y.npy"))
    np.save(x, np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))

    assert main([*LOWER, "-o", file]) == 0
    out, _ = capfd.readouterr()
    assert "target  toy" in out and "program and file" in out

    assert main(["run", file, "--input", x, "-o", y]) == 0
    wanted = tiny()(torch.from_numpy(np.load(x))).detach()
    assert np.allclose(np.load(y), wanted, rtol=1e-4, atol=1e-6)
    capfd.readouterr()

    assert main(["check", file]) == 0
    assert "   1  conv2d" in capfd.readouterr().out.splitlines()
    renamed = Path(file).rename(tmp_path / "net.bin")  # it is known by what it begins with
    assert main(["check", str(renamed), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["format"] == "toy" and found["operators"]["relu"] == 1


@pytest.mark.usefixtures("toy")
def test_lower_and_load_take_its_name_or_its_value(tmp_path: Path) -> None:
    x, target = torch.randn(SHAPE), targets.find("toy")
    named, given = (dimorder.lower(tiny(), (x,), target=which) for which in ("toy", target))
    assert dimorder.plan(tiny(), (x,), target=target).target == named.plan.target == "toy"
    file = named.save(tmp_path / "net.toy")
    other = given.save(tmp_path / "other.toy").rename(tmp_path / "net.bin")
    loaded = dimorder.load(file), dimorder.load(other, target="toy"), dimorder.load(other, target=target)
    for program in loaded:
        assert torch.allclose(program(x), tiny()(x), atol=1e-5)
    with pytest.raises(UsageError, match=r"no \.toy, which is what target toy writes"):
        given.save(tmp_path / "net.pte")


@pytest.mark.usefixtures("toy")
def test_its_own_errors_come_through(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.toy"
    assert "No such file" in refused(capfd, ["run", file], 2)
    file.write_bytes(b"TOYTOYS and cut off")
    assert "19 bytes that do not begin as a .toy file does" in refused(capfd, ["run", file], 1)
    assert refused(capfd, ["check", file], 1).startswith(f"check {file}\n  found: 19 bytes")
    file.write_bytes(b"else")
    text = refused(capfd, ["check", file], 1)
    assert "begin as a .tflite file or a .tosa graph or a .pte program or a .toy file does" in text


# -- as it should not be -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_extra")
def test_where_its_extra_is_missing_each_command_says_what_to_install(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "net.toy"
    file.write_bytes(b"TOYTOYS {}\n")
    for argv in ([*LOWER, "-o", file], ["run", file], ["check", file]):
        lines = refused(capfd, argv, 1).splitlines()
        assert lines[0] == "target toy"
        assert lines[1].endswith("not all that it needs is installed: No module named 'toy_format'")
        assert lines[2] == "  fix: pip install 'dimorder-toy[format]'"
    assert file.read_bytes() == b"TOYTOYS {}\n"


def test_a_module_that_is_missing_only_when_it_emits_is_told_too() -> None:
    from dataclasses import replace

    def emit(program: object, contract: object) -> object:
        import no_such_compiler

        return no_such_compiler

    late = replace(targets.info("torch"), install="pip install late")
    target = replace(targets.find("torch"), name="late", info=late, emit=emit)
    with pytest.raises(UnsupportedError) as error:
        dimorder.lower(tiny(), (torch.randn(SHAPE),), target=target)
    assert (error.value.where, error.value.fix) == ("target late", "pip install late")


def test_a_name_of_ours_is_refused_to_others(declare: Declare, capfd: pytest.CaptureFixture[str]) -> None:
    declare("somebodys-tosa", "tosa", "somebody:INFO")
    text = refused(capfd, ["plan", f"{HERE}:Tiny", *INPUT, "--target", "tosa"], 2)
    assert text.splitlines() == [
        "target tosa",
        "  found: declared by dimorder and by somebodys-tosa 1.0",
        "  fix: uninstall or rename that of somebodys-tosa 1.0",
    ]
    assert targets.find("torch").name == "torch"
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    lines = [line.split(maxsplit=1) for line in capfd.readouterr().out.splitlines()]
    assert ["tosa", "declared by dimorder and by somebodys-tosa 1.0"] in lines


def test_two_others_cannot_share_a_name(declare: Declare) -> None:
    declare("first", "npu", "first:INFO")
    declare("second", "npu", "second:INFO")
    with pytest.raises(UsageError, match=r"declared by first 1\.0 and by second 1\.0"):
        targets.find("npu")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("no_such_module:INFO", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("dimorder.targets:NOTHING", "AttributeError"),
        ("dimorder.targets.torch.target:TARGET", "a Target"),
    ],
)
def test_a_listing_that_is_none_is_refused_and_ours_still_load(
    value: str, words: str, declare: Declare
) -> None:
    declare("broken", "npu", value)
    with pytest.raises(UsageError) as error:
        targets.find("npu")
    assert f"broken 1.0 declares {value}" in error.value.found and words in error.value.found
    for suffix in (".pt2", ".tosa", ".pte"):
        assert targets.target_for_file(Path("net" + suffix)).suffix == suffix


def test_a_target_that_is_not_what_its_listing_says_is_refused(
    declare: Declare,
) -> None:
    declare("renamed", "mine", "dimorder.targets.torch:INFO")
    with pytest.raises(UsageError, match="has name 'torch', where its info promises 'mine'"):
        targets.find("mine")
