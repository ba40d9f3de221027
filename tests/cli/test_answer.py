"""Test that a path which may not be written is refused before the work begins."""

from __future__ import annotations

from argparse import Namespace

import pytest

from dimorder.cli.answer import Answer, check_outputs, write_files
from dimorder.errors import UsageError
from tests.cli.commands import HERE, refused


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".", "a folder or a device"),
        ("/dev/null", "a folder or a device"),
        ("missing/net.pte", "cannot be written: No such file or directory"),
        (300 * "a", "cannot be written: File name too long"),
        (f"{300 * 'a'}/net.pte", "cannot be written: File name too long"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(path, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=found) as caught:
        check_outputs({"-o": path}, [])
    assert caught.value.where == f"-o {path}"


def test_a_path_that_may_not_be_looked_at_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    with pytest.raises(UsageError, match="cannot be written: Permission denied"):
        check_outputs({"-o": str(tmp_path / "net.pte")}, [])


def test_two_files_need_two_names(tmp_path):
    path = str(tmp_path / "net")
    with pytest.raises(UsageError, match="given for two files"):
        check_outputs({"-o": path, "--json": path}, [])
    assert not list(tmp_path.iterdir())


def test_the_files_of_an_answer_are_written_together_or_not_at_all(tmp_path):
    (tmp_path / "a.json").write_text("old")
    (tmp_path / "b").mkdir()
    files = [(str(tmp_path / name), b"new", {".json": b"{}"}) for name in ("a", "b")]
    with pytest.raises(UsageError, match="cannot be written: Is a directory"):
        write_files(Answer("", files=files), Namespace())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "b"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_file_that_is_replaced_keeps_its_permissions_and_its_links(tmp_path):
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "net.pte", tmp_path / "net.pte"
    file.write_bytes(b"old")
    file.chmod(0o600)
    link.symlink_to(file)
    check_outputs({"-o": str(link)}, [])
    write_files(Answer("", files=[(str(link), b"new")]), Namespace())
    assert link.is_symlink() and file.read_bytes() == b"new" and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="given for two files"):
        check_outputs({"-o": str(link), "--json": str(file)}, [])


def test_a_file_of_an_answer_is_not_the_json_too(tmp_path):
    path = str(tmp_path / "net.tosa")
    with pytest.raises(UsageError, match="given for two files"):
        write_files(Answer("", {}, [(path, b"", {".json": b""})]), Namespace(json=f"{path}.json"))
    assert not list(tmp_path.iterdir())


NET = f"{HERE}:Tiny"
BY_SIZE = f"lower {HERE}:fails --input 1x3xHx7 --range H=8..16:8 --target tosa -o net.tosa"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check --json a.pte b.pte", "--json a.pte\n  found: no .json file\n  fix: write --json FILE.json"),
        ("run --json a.pte --input x.npy b.pte", "--json a.pte"),
        (f"lower --json nets.py {NET} --input 2x3x5x7", "--json nets.py"),
        (f"plan --json {NET}", f"--json {NET}\n  found: no .json file"),
        (
            f"plan {NET} --report a.pte",
            "--report a.pte\n  found: no .html file\n  fix: write --report FILE.html",
        ),
        (f"plan {NET} --dot a.pte", "no .dot file"),
        (f"plan {NET} --explorer a.pte", "no .json file"),
        (f"bench {NET} --chart a.pte", "no .png file"),
        ("bench convert -o a.pte", "no .json file"),
        (f"lower {NET} --input 2x3x5x7 --target torch -o nets.py", "no .pt2"),
        ("run a.pte --input x.npy -o nets.py", "no .npy or .npz"),
        # the suffix is right, but the command reads the file
        ("run a.pte --input x.npy -o x.npy", "-o x.npy\n  found: a file that the command reads"),
        ("run a.pte --input image=x.npy -o ./x.npy", "a file that the command reads"),
        ("lower a.pt2 --target torch -o b.pt2", "a file that the command reads"),  # a link to a.pt2
        (f"lower {NET} --quantize int8 --calibrate x.json --json x.json", "a file that the command reads"),
        ("check x.json --json x.json", "a file that the command reads"),
        ("check b.pte x.json --json x.json", "a file that the command reads"),
        ("check a.tosa --json a.tosa.json", "a file that the command reads"),
        (f"{BY_SIZE} --json net-8.tosa.json", "net-8.tosa.json\n  found: given for two files"),
        (f"{BY_SIZE} --calibrate net-16.tosa", "-o of size 16 net-16.tosa\n  found: a file that the command"),
        ("run a.tosa --input x.npy --json a.tosa.json", "a file that the command reads"),
    ],
)
def test_no_output_takes_the_place_of_a_source(command, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in (
        "a.pte",
        "b.pte",
        "a.pt2",
        "nets.py",
        "x.npy",
        "x.json",
        "a.tosa",
        "a.tosa.json",
        "net-16.tosa",
    ):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "a.tosa").write_bytes(bytes(4) + b"TOSA")
    (tmp_path / "b.pt2").symlink_to("a.pt2")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert words in refused(capfd, command.split(), 2)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
