"""Test what the help of a command says, and which options a command offers there."""

from __future__ import annotations

import pytest

from dimorder import targets
from dimorder.cli import COMMANDS, main
from tests.cli.commands import HERE, INPUT

pytestmark = pytest.mark.usefixtures("at_root")


def help_of(command, capfd):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_begins_with_the_summary_as_it_is_written(command, capfd):
    first, rest = command.summary[0], command.summary[1:]
    assert f"{first.upper()}{rest}." in help_of(command.name, capfd)


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_a_command_that_takes_no_exported_program_offers_none(command, capfd):
    text = help_of(command, capfd).partition("targets:")[0]
    assert ".pt2" not in text and "a letter" not in text


@pytest.mark.parametrize("command", ["lower", "plan", "explain", "bench"])
def test_a_command_with_a_target_lists_every_target(command, capfd):
    listed = help_of(command, capfd).partition("targets:")[2]
    assert all(f"{name} {info.suffix}" in listed for name, info in targets.infos())


def test_only_lower_has_a_file_that_chooses_the_target(capfd):
    assert "-o's file" in help_of("lower", capfd)
    assert all("-o's file" not in help_of(command, capfd) for command in ("plan", "explain"))


def test_only_targets_with_delegates_print_a_line_about_them(tmp_path, capfd):
    for target, suffix, count in (("xnnpack", "pte", 1), ("torch", "pt2", 0)):
        pytest.importorskip("executorch")
        argv = ["lower", f"{HERE}:Tiny", *INPUT, "--target", target, "-o", str(tmp_path / f"net.{suffix}")]
        assert main(argv) == 0
        assert capfd.readouterr().out.count("\ndelegates ") == count


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--quantise", "int8"], "did you mean --quantize? see"),
        (["1x3x16x20"], "write --input 1x3x16x20; see"),
        (["--zzz"], "see dimorder lower --help"),
    ],
)
def test_a_wrong_option_names_the_one_that_was_meant(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lower", "torchvision.models:resnet18", *words, "-o", "net.pte"]) == 2
    assert f"fix: {hint}" in capsys.readouterr().err
