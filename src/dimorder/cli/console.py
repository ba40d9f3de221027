"""Route output to the user: results on stdout, errors and progress on stderr, and nothing else.

torch, torchao and ExecuTorch's native code write warnings to both streams. These appear only with `--debug`.
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

PATIENCE_S = 2.0  # a command that takes longer shows its step


class Console:
    """The user's own streams, even while descriptors 1 and 2 are redirected."""

    def __init__(self, out: TextIO, err: TextIO, log: IO[bytes] | None = None) -> None:
        self.out, self.err = out, err
        self.interrupted = False
        self._log = log

    def print(self, text: object) -> None:
        print(text, file=self.out, flush=True)

    def warn(self, text: object) -> None:
        print(text, file=self.err, flush=True)

    def check_interrupt(self) -> None:
        """Raise KeyboardInterrupt again if a library has swallowed it."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def progress(self) -> Iterator[ProgressLine]:
        """Show the steps on stderr for as long as the block runs."""
        progress = ProgressLine(self)
        try:
            yield progress
        finally:
            progress.close()

    def runtime_errors(self) -> list[str]:
        """Return ExecuTorch's error log, which has the cause, while its exception has only a number."""
        if self._log is None:
            return []
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.startswith("E ") and "executorch" in line]


class ProgressLine:
    """A display of the step, after two seconds: one line in a terminal, elsewhere a line for each step."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._start = time.monotonic()
        self._step = self._shown = ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __call__(self, step: str) -> None:
        self.console.check_interrupt()
        self._step = step

    def print(self, text: object) -> None:
        """Print a part of the result while the work goes on."""
        self._clear()
        self.console.print(text)

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._clear()

    def _clear(self) -> None:
        if self._shown and self.console.err.isatty():
            self._write("\r\x1b[2K")

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            passed, step = time.monotonic() - self._start, self._step
            if passed < PATIENCE_S or not step:
                continue
            if self.console.err.isatty():
                self._write(f"\r\x1b[2Kdimorder: {step} ({passed:.0f} s)")
            elif step != self._shown:
                self._write(f"dimorder: {step} ({passed:.0f} s)\n")
            self._shown = step

    def _write(self, text: str) -> None:
        # A terminal that has gone away must not end the work.
        with contextlib.suppress(OSError, ValueError):
            self.console.err.write(text)
            self.console.err.flush()


@contextlib.contextmanager
def open_console(debug: bool) -> Iterator[Console]:
    """Open the console of one command; Ctrl-C is remembered if a library swallows its exception."""
    with contextlib.ExitStack() as stack:
        if debug:
            console = Console(sys.stdout, sys.stderr)
        else:
            log = stack.enter_context(tempfile.TemporaryFile())
            out, err = (stack.enter_context(_redirected(descriptor, log)) for descriptor in (1, 2))
            console = Console(out, err, log)
            text = stack.enter_context(open(log.fileno(), "w", errors="replace", closefd=False))
            stack.enter_context(contextlib.redirect_stdout(text))
            stack.enter_context(contextlib.redirect_stderr(text))
        stack.enter_context(_interrupts(console))
        yield console


@contextlib.contextmanager
def _redirected(descriptor: int, log: IO[bytes]) -> Iterator[TextIO]:
    """Yield a stream to the target of a descriptor; meanwhile the descriptor itself leads to the log."""
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
        with contextlib.suppress(BrokenPipeError):  # the reader has closed it
            text.close()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _interrupts(console: Console) -> Iterator[None]:
    # In other threads than the main one, or if SIGINT is ignored (nohup), it stays as it is.
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
