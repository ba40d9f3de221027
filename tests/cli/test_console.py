"""Test what a user's terminal sees: interrupts, closed pipes, the output of libraries, and the help."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from dimorder import cli
from tests.cli.commands import HERE, INPUT
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("at_root")

# A process of its own


def start(
    *argv: str,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    variables=MappingProxyType({}),
    largest_bytes: int = resource.RLIM_INFINITY,  # of a file
    **options,
) -> subprocess.Popen[str]:
    def prepare():
        # A shell's background jobs ignore SIGINT, and their children with them.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_bytes, largest_bytes))

    return subprocess.Popen(
        [sys.executable, "-m", "dimorder", *argv],
        stdout=stdout,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), **variables},
        preexec_fn=prepare,
        **options,
    )


@pytest.mark.parametrize("factory", ["sleeps", "swallows_interrupts"])
def test_ctrl_c_ends_with_130_and_leaves_no_file(factory, tmp_path):
    terminal, end = os.openpty()
    argv = ["lower", f"{HERE}:{factory}", *INPUT, "-o", "net.pte", "--json", "plan.json"]
    run = start(*argv, stderr=end, cwd=tmp_path)
    os.close(end)
    seen = b""
    while b"tests.cli.networks" not in seen:  # the step, which a terminal shows after two seconds
        seen += os.read(terminal, 1024)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    with contextlib.suppress(OSError):  # the end of what it wrote
        while more := os.read(terminal, 1024):
            seen += more
    os.close(terminal)
    assert seen.decode().splitlines()[-1].endswith("\x1b[2Kdimorder: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_gets_no_traceback(tmp_path):
    run = start("lower", "tests.zoo:se_linear", "--input", "1x16x5x7", "-o", "net.pt2", cwd=tmp_path)
    assert run.stdout is not None and run.stderr is not None
    run.stdout.close()
    err = run.stderr.read()
    assert run.wait(timeout=300) == 0, err
    assert err == ""
    assert [file.name for file in tmp_path.iterdir()] == ["net.pt2"]


PRINTS = [[], ["--help"], ["--version"], ["ops", "--runtime", "executorch"]]


@pytest.mark.parametrize("argv", [*PRINTS, [*PRINTS[-1], "--debug"]], ids=" ".join)
def test_a_full_disk_behind_stdout_is_an_error_of_three_lines(argv):
    with open("/dev/full", "w") as full:
        run = start(*argv, stdout=full)
    _, err = run.communicate(timeout=60)
    lines = [line for line in err.splitlines() if "--debug" not in argv or line[:3] in ("std", "  f")]
    assert run.returncode == 2 and lines[-3:-1] == [
        "stdout",
        "  found: cannot be written: No space left on device",
    ]
    assert len(lines) == 3 or "--debug" in argv, err


@pytest.mark.parametrize("largest_bytes", [0, 100])
def test_a_full_disk_for_temporary_files_is_an_error_of_three_lines(largest_bytes, tmp_path):
    argv = ["lower", "tests.zoo:se_linear", "--input", "1x16x5x7", "-o", "net.pte"]
    out, err = (run := start(*argv, cwd=tmp_path, largest_bytes=largest_bytes)).communicate(timeout=300)
    where, _, fix = err.splitlines()
    assert (run.returncode, out, list(tmp_path.iterdir())) == (2, "", [])
    assert where == "a temporary file" and fix == "  fix: set TMPDIR to a folder on a disk with space"


@pytest.mark.parametrize("argv", PRINTS, ids=" ".join)
@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}], ids=str)
def test_a_reader_that_has_gone_is_no_error(argv, variables):
    reader, writer = os.pipe()
    os.close(reader)
    run = start(*argv, stdout=writer, variables=variables)
    os.close(writer)
    assert (run.communicate(timeout=60)[1], run.returncode) == ("", 0)


def test_the_help_is_printed_in_an_encoding_that_lacks_its_letters():
    out, err = (run := start("lower", "--help", variables={"PYTHONIOENCODING": "latin-1"})).communicate()
    assert (run.returncode, err) == (0, "") and "\\u2026" in out


def test_lowering_torchvision_shows_nothing_of_what_libraries_print(tmp_path):
    # Also where torchvision's compiled part is missing, and from a folder that is not the repository.
    argv = ["torchvision.models:squeezenet1_1", "--arg", "num_classes=7", "--input", "1x3x32x40"]
    out, err = (run := start("lower", *argv, "-o", "net.pte", cwd=tmp_path)).communicate(timeout=300)
    assert run.returncode == 0, err
    assert err == ""
    assert out.splitlines()[-1].startswith("written      net.pte, ")
    assert [file.name for file in tmp_path.iterdir()] == ["net.pte"]


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom dimorder.cli import main\n"
        "try:\n    main(['lower', '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "examples:" in run.stdout


EXAMPLES = {
    "dimorder": cli.EXAMPLES,
    "": cli.WELCOME,
    **{command.name: command.examples for command in cli.COMMANDS},
}


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_example_in_the_help_is_one(command):
    lines = [line for line in EXAMPLES[command].splitlines() if line.startswith("  dimorder ")]
    assert len(lines) >= 2
    for line in lines:
        cli.parser().parse_args(shlex.split(line.split(" > ")[0])[1:])


def test_without_a_command_three_are_shown(capfd):
    assert cli.main([]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == (f"{cli.WELCOME}\n", "") and out.count("\n  dimorder ") == 3


def test_each_command_has_a_file_of_its_own():
    folder = Path(cli.__file__).parent
    for command in cli.COMMANDS:
        file = command.name.replace("-", "_") + ".py"
        assert sys.modules[command.run.__module__].__file__ == str(folder / file)
