"""Drive a headless Chromium over a pipe: open a page at a width, run JavaScript in it, take a picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE, DESKTOP = 390, 1280  # widths in pixels
# What tells of a fault of the page, or of something that it asks of the network.
_FAULTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """A browser with one page. `events` are those since the page was opened."""

    def __init__(self, sent: int, received: int) -> None:
        self._sent, self._received, self._rest = sent, received, b""
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> Any:
        """Return the result of a command of the DevTools protocol."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._sent, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            piece = os.read(self._received, 1 << 20)
            assert piece, "the browser ended"
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, width: int = DESKTOP, height: int = 900, dark: bool = False) -> None:
        """Open a page and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,  # else a page that is too wide makes the window wider
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events = []
        loader = self.call("Page.navigate", url=path.as_uri())["loaderId"]
        loaded = {"name": "load", "loaderId": loader}
        while not any(loaded.items() <= event.get("params", {}).items() for event in self.events):
            self.events.append(self._next())

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self) -> bytes:
        """Return what the window shows, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    @property
    def faults(self) -> list[Any]:
        """The errors and messages on the console."""
        return [event["params"] for event in self.events if event.get("method") in _FAULTS]

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for; the first is the page's own."""
        sent = [
            event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"
        ]
        return [each["request"]["url"] for each in sent]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser that keeps its files in `profile`, and end it after the block."""
    assert CHROMIUM is not None
    (to_browser, sent), (received, from_browser) = os.pipe(), os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]

    # The protocol wants the browser's ends of the pipes as files 3 and 4.
    shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", CHROMIUM, *options, f"--user-data-dir={profile}"],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(sent, received)
    finally:
        process.kill()
        process.wait()
        os.close(sent)
        os.close(received)
