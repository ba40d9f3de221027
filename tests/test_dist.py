"""Build the packages, install them into empty environments of several Pythons, and run the README there."""

from __future__ import annotations

import re
import shlex
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.commands import find_python, run_command
from tests.documents.blocks import blocks, matches

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-q")
# torchvision's wheel may be built for another torch than the one of this machine.
LOAD_TORCHVISION = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.zoo import load_torchvision
library = load_torchvision()
"""
OTHER_TARGETS = """
import dimorder, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
x = torch.randn(1, 3, 17, 19)
for target, name in ("litert", "net.tflite"), ("torch", "net.pt2"):
    dimorder.lower(model, (x,), target=target, input_orders="NHWC").save(name)
    assert torch.allclose(dimorder.load(name)(x), model(x), atol=1e-5), target
"""
WAYS = "from dimorder.eager.transposition import ways; print(sorted(ways()))"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The packages, built from a copy of what an sdist has."""
    folder = tmp_path_factory.mktemp("dist")
    run_command("make", "dist", f"DIST={folder}", folder=ROOT)
    return folder


@pytest.fixture(scope="module")
def compiled(dist) -> Path:
    (wheel,) = dist.glob("*manylinux*.whl")
    return wheel


@pytest.fixture(scope="module")
def plain(dist) -> Path:
    (wheel,) = dist.glob("*none-any.whl")
    return wheel


def package_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if re.match(r"dimorder/.*[^/]$", name)}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_the_packages_are_an_sdist_a_manylinux_wheel_and_one_without_compiled_code(dist, compiled, plain):
    (sdist,) = dist.glob("dimorder-*.tar.gz")
    assert {path.name for path in dist.iterdir()} == {sdist.name, compiled.name, plain.name}
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".so")
    package = {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}
    assert package_files(plain) == package
    assert package_files(compiled) == package | {"dimorder/eager/transpose.so"}
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/src/")[2] for member in archive if member.isfile()}
    assert names - {""} == package


def test_the_version_is_the_newest_of_the_changelog(plain):
    version = metadata(plain)["Version"]
    assert re.search(r"^## ([\d.]+), ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version


@pytest.mark.parametrize("version", PYTHONS)
def test_all_extras_resolve_together(version, plain, tmp_path):
    python = find_python(version)
    extras = ",".join(metadata(plain).get_all("Provides-Extra"))
    run_command(python, *PIP, "--dry-run", "--ignore-installed", f"{plain}[{extras}]", folder=tmp_path)


@pytest.mark.parametrize("version", [PYTHONS[0], "3.11", PYTHONS[-1]])
def test_the_readme_runs_in_an_empty_environment(version, compiled, plain, tmp_path):
    run_command(find_python(version), "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, *PIP, "--no-compile")
    _, install, code, output = blocks(ROOT / "README.md")
    _, _, project, *others = shlex.split(install.code, comments=True)  # pip install '.[executorch]' …
    run_command(*pip, f"{compiled}{project.removeprefix('.')}", *others, folder=tmp_path)
    run_command(*pip, f"{compiled}[litert,demo]", folder=tmp_path)
    run_command(*pip, "--no-deps", "facenet-pytorch==2.6.0", folder=tmp_path)
    (tmp_path / "readme.py").write_text(LOAD_TORCHVISION + code.code)
    assert matches(output.code, run_command(python, "readme.py", folder=tmp_path))
    assert "Done in" in run_command(tmp_path / "env" / "bin" / "dimorder", "demo", folder=tmp_path)
    (tmp_path / "targets.py").write_text(OTHER_TARGETS)
    run_command(python, "targets.py", folder=tmp_path)
    assert "tiles" in run_command(python, "-c", WAYS, folder=tmp_path)
    run_command(*pip, "--no-deps", "--force-reinstall", plain, folder=tmp_path)
    assert "tiles" not in run_command(python, "-c", WAYS, folder=tmp_path)
    run_command(python, "targets.py", folder=tmp_path)
