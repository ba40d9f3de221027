"""Decides what reaches the user: results on stdout, errors and progress on stderr, and nothing else.

torch, torchao and ExecuTorch's native code warn on both streams; with `--debug` they do so unhindered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import IO, TextIO

PATIENCE_S = 2.0  # a command that takes longer says what it is doing


class Console:
    """The user's own streams, whatever happens to descriptors 1 and 2 in the meantime."""

    def __init__(self, out: TextIO, err: TextIO, log: IO[bytes] | None = None) -> None:
        self.out, self.err = out, err
        self.interrupted = False
        self._log = log

    def print(self, text: object) -> None:
        print(text, file=self.out, flush=True)

    def warn(self, text: object) -> None:
        print(text, file=self.err, flush=True)

    def check_interrupt(self) -> None:
        """Raises KeyboardInterrupt again where a library has swallowed it."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def progress(self) -> Iterator[ProgressLine]:
        """Tells of steps, on stderr, for as long as the block runs."""
        progress = ProgressLine(self)
        try:
            yield progress
        finally:
            progress.close()

    def runtime_errors(self) -> list[str]:
        """What ExecuTorch has logged as errors: it says the cause there, and a number in its exception."""
        if self._log is None:
            return []
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith("E ") and "executorch" in line]


class ProgressLine:
    """Called with each step, and after two seconds tells it: in one line of a terminal, else line by line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._step = self._shown = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __call__(self, step: str) -> None:
        self._console.check_interrupt()
        self._step = step

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        if self._shown and self._console.err.isatty():
            self._write("\r\x1b[2K")

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            passed, step = time.monotonic() - self._start, self._step
            if passed < PATIENCE_S or not step:
                continue
            if self._console.err.isatty():
                self._write(f"\r\x1b[2Kdimorder: {step} ({passed:.0f} s)")
            elif step != self._shown:
                self._write(f"dimorder: {step} ({passed:.0f} s)\n")
            self._shown = step

    def _write(self, text: str) -> None:
        # A terminal that has gone away must not end the work.
        with contextlib.suppress(OSError, ValueError):
            self._console.err.write(text)
            self._console.err.flush()


@contextlib.contextmanager
def open_console(debug: bool) -> Iterator[Console]:
    """The console of one command. Ctrl-C raises KeyboardInterrupt, and is remembered should that get lost."""
    with contextlib.ExitStack() as stack:
        if debug:
            console = Console(sys.stdout, sys.stderr)
        else:
            log = stack.enter_context(tempfile.TemporaryFile())
            out, err = (stack.enter_context(_kept(descriptor, log)) for descriptor in (1, 2))
            console = Console(out, err, log)
            text = stack.enter_context(open(log.fileno(), "w", errors="replace", closefd=False))
            stack.enter_context(contextlib.redirect_stdout(text))
            stack.enter_context(contextlib.redirect_stderr(text))
        stack.enter_context(_interrupts(console))
        yield console


@contextlib.contextmanager
def _kept(descriptor: int, log: IO[bytes]) -> Iterator[TextIO]:
    """A stream to where a descriptor leads; the descriptor itself leads to the log meanwhile."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    if stream is not None:
        stream.flush()
    try:
        kept = os.dup(descriptor)
    except OSError:  # closed by the process that started us
        kept = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log.fileno(), descriptor)
    text = open(kept, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    try:
        yield text
    finally:
        with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
            text.close()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _interrupts(console: Console) -> Iterator[None]:
    # Elsewhere than in the main thread, or where SIGINT is ignored (nohup), it stays as it is.
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        console.interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
