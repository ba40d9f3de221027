"""Complete commands, options, targets and what these offer in a shell. Needs argcomplete."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator

from dimorder import targets
from dimorder.cli.options import CommandParser
from dimorder.errors import install_of, installed

_REQUESTED = "_ARGCOMPLETE"  # set by the shell's function, which runs `dimorder` for the words


def is_requested() -> bool:
    """Return whether a shell asks for the words that may come next."""
    return _REQUESTED in os.environ


def complete(parser: CommandParser) -> None:
    """Answer the shell, and end the process."""
    with installed("completion in a shell", install_of("completion")):
        import argcomplete

    for command in _commands(parser):
        words = {option: _choices(kind) for option, kind in command.offers}
        words["--target"] = lambda **asked: targets.names()
        for action in command._actions:
            for option in words.keys() & set(action.option_strings):
                action.completer = words[option]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _commands(parser: CommandParser) -> Iterator[CommandParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _choices(kind: str) -> Callable[..., list[str]]:
    return lambda **asked: [name for name, *_ in targets.choices(kind)]
