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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, TextIO

from dimorder.clock import StepPart
from dimorder.errors import writable

PATIENCE_S = 2.0  # a command that takes longer shows its step
_EVERY_S = 0.2
TEMPORARY_FIX = "set TMPDIR to a folder on a disk with space"
_BAR, _COLUMNS = 20, 80  # characters; the columns of a terminal that does not say how many it has
_CLEAR = "\r\x1b[2K"  # the terminal's line


class Console:
    """The user's own streams, even while descriptors 1 and 2 are redirected."""

    def __init__(self, out: TextIO, err: TextIO, log: IO[bytes] | None = None) -> None:
        self.out, self.err = out, err
        self.shows_progress = err.isatty()
        self.interrupted = False
        self._log = log

    def print(self, text: object) -> None:
        with flushing(self.out):
            print(text, file=self.out)

    def warn(self, text: object) -> None:
        with contextlib.suppress(OSError):  # nobody can read that stderr cannot be written
            print(text, file=self.err, flush=True)

    def check_interrupt(self) -> None:
        """Raise KeyboardInterrupt again if a library has swallowed it."""
        if self.interrupted:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def progress(self, quiet: bool = False) -> Iterator[ProgressLine]:
        """Show the steps on stderr for as long as the block runs, if that is a terminal."""
        self.shows_progress &= not quiet
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


@contextlib.contextmanager
def flushing(stream: TextIO | None) -> Iterator[None]:
    """Flush a stream at the end of the block; if that fails, the stream leads nowhere from then on.

    Else Python would try again when it ends, and print a traceback.

    Raises:
        BrokenPipeError: if its reader has closed it.
        UsageError: if it cannot be written, such as on a full disk.
    """
    try:
        try:
            yield
        finally:
            if stream is not None:
                stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), (stream or nowhere).fileno())
        if isinstance(error, BrokenPipeError):
            raise
        with writable("stdout", "write it to a file on a disk with space"):
            raise


class ProgressLine:
    """One line in a terminal about the running step, once a command has run for two seconds.

    It shows how far the step is if that is known, its seconds, and the time left.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self._clock = clock
        self._start = self._begun = self._reported = clock()
        self._part, self._is_shown = StepPart(""), False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if console.shows_progress:
            self._thread.start()

    def __call__(self, step: str) -> None:
        """Show a step from now on; a part of the running step leaves its seconds as they are."""
        self.console.check_interrupt()
        part, now = step if isinstance(step, StepPart) else StepPart(step), self._clock()
        if part.name != self._part.name:
            self._begun = now
        self._part, self._reported = part, now

    def print(self, text: object) -> None:
        """Print a part of the result while the work goes on."""
        self._clear()
        self.console.print(text)

    def close(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._clear()

    def line(self) -> str:
        """Return what is shown now; empty in the first seconds of a command."""
        now = self._clock()
        if now - self._start < PATIENCE_S or not self._part:
            return ""
        return step_line(self._part, now - self._begun, now - self._reported)

    def _clear(self) -> None:
        if self._is_shown:
            self._write(_CLEAR)

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            if line := self.line():
                self._write(f"{_CLEAR}{line[: self._columns() - 1]}")
                self._is_shown = True

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self.console.err.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS

    def _write(self, text: str) -> None:
        # A terminal that has gone away must not end the work.
        with contextlib.suppress(OSError, ValueError):
            self.console.err.write(text)
            self.console.err.flush()


def step_line(part: StepPart, passed_s: float, since_s: float) -> str:
    """Return the line of a step that began `passed_s` ago, and `since_s` ago reported how far it is.

    >>> step_line(StepPart("emit"), 14, 14)
    'dimorder: emit, 14 s'
    >>> step_line(StepPart("calibrating", 12, 40), 32, 2)
    'dimorder: calibrating [######..............] 12 of 40, 32 s, about 1 min 8 s left'
    >>> step_line(StepPart("solve", limit_s=60), 15, 15)
    'dimorder: solve [#####...............] 15 s, at most 1 min 0 s'
    """
    if part.limit_s and passed_s < part.limit_s:
        bar = _bar(passed_s / part.limit_s)
        return f"dimorder: {part.name} {bar} {_time(passed_s)}, at most {_time(part.limit_s)}"
    if part.done is None or not part.total:
        return f"dimorder: {part}, {_time(passed_s)}"
    left_s = (passed_s - since_s) / part.done * (part.total - part.done) - since_s if part.done else 0.0
    left = f", about {_time(left_s)} left" if left_s >= 1 else ""
    bar = _bar(part.done / part.total)
    return f"dimorder: {part.name} {bar} {part.done} of {part.total}, {_time(passed_s)}{left}"


def _bar(share: float) -> str:
    filled = int(share * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextlib.contextmanager
def open_console(debug: bool) -> Iterator[Console]:
    """Open the console of one command; Ctrl-C is remembered if a library swallows its exception."""
    with contextlib.ExitStack() as stack:
        if debug:
            console = Console(sys.stdout, sys.stderr)
        else:
            with writable("a temporary file", TEMPORARY_FIX):
                log = stack.enter_context(tempfile.TemporaryFile())
            out, err = (stack.enter_context(_redirected(descriptor, log)) for descriptor in (1, 2))
            console = Console(out, err, log)
            text = stack.enter_context(_text_to(log.fileno(), "replace"))
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
    try:
        with _text_to(kept, "backslashreplace") as text:
            yield text
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _text_to(descriptor: int, errors: str) -> Iterator[TextIO]:
    """Yield a stream to a descriptor, which stays open. The last write may fail."""
    text = open(descriptor, "w", errors=errors, closefd=False)  # noqa: SIM115
    try:
        yield text
    finally:
        with contextlib.suppress(OSError):  # the reader has closed it, or its disk is full
            text.close()


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
