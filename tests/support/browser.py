"""A headless Chromium as a test drives it: by its DevTools protocol, over one websocket.

Every console message, exception and request of a page is kept, so that a test can say that there was none it does not
know. `python -m tests.support.browser` looks for the browser, and installs it on Debian as root.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "tests of the console's pages need Chromium: install it (Debian: chromium)"
TRIES = 3
WAIT_SECONDS = 60.0
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "ArrowDown": (40, ""),
    "ArrowUp": (38, ""),
    "Tab": (9, ""),
    "End": (35, ""),
    "Home": (36, ""),
}


def find() -> str:
    """The browser's path; empty if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), "")


class PageError(AssertionError):
    """An error that a page's script raised."""


class Browser:
    """One browser with one page. A context manager."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lakestore-browser-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                find(),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        """Errors that the page has logged or raised since the last `open`."""
        self.requests: list[str] = []
        """Addresses that it has asked for."""
        self._open = ExitStack()
        self._open.callback(self._end)
        try:
            self._socket: ClientConnection = self._open.enter_context(
                connect(self._address(), max_size=64 << 20, proxy=None, open_timeout=60)
            )
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
            self.size(1280, 860)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._open.close()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._folder.cleanup()

    def _address(self) -> str:
        """The websocket of the one page."""
        import httpx

        file, ends = Path(self._folder.name, "DevToolsActivePort"), time.monotonic() + 60
        while not file.exists() or not file.read_text().strip():
            assert self._process.poll() is None, "the browser did not start"
            if time.monotonic() > ends:
                raise TimeoutError("the browser took too long to start")
            time.sleep(0.02)
        port = file.read_text().split()[0]
        while time.monotonic() < ends:
            answer = httpx.get(f"http://127.0.0.1:{port}/json", timeout=60)
            pages = [each for each in answer.json() if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
            time.sleep(0.02)
        raise AssertionError("the browser has no page")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            found = json.loads(self._socket.recv(timeout=60))
            if found.get("id") == number:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result
            self._noted(found)

    def _noted(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            said = params["exceptionDetails"]
            self.errors.append(str(said.get("exception", {}).get("description") or said["text"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def size(self, width: int, height: int) -> None:
        """The window, in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme: str) -> None:
        """The system's colours: light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """A page in place of the one that was there, with nothing kept of it."""
        self.send("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.errors.clear()
        self.requests.clear()
        self.send("Storage.clearDataForOrigin", origin=_origin(url), storageTypes="all")
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page, or `PageError`."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            said = found["exceptionDetails"]
            raise PageError(said.get("exception", {}).get("description") or said["text"])
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = WAIT_SECONDS) -> Any:
        """The value of an expression once it is true."""
        ends = time.monotonic() + seconds
        while True:
            try:
                found = self.js(expression)
            except (PageError, AssertionError):
                found = None  # between two pages there is nothing to ask
            if found:
                return found
            if time.monotonic() > ends:
                text = self.js("document.body.innerText")
                raise AssertionError(f"not so after {seconds:g} s: {expression}\n{text[:2000]}\n{self.errors}")
            time.sleep(0.03)

    def text(self) -> str:
        """The text that a reader sees."""
        return str(self.js("document.body.innerText"))

    def press(self, key: str, modifiers: int = 0) -> None:
        """A key down and up."""
        code, text = _KEYS.get(key, (ord(key[0].upper()), key))
        named: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        """Text into the field that has the focus."""
        self.send("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """A click on the first match."""
        self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def shot(self, file: Path) -> None:
        """The window as a PNG."""
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def foreign(self, url: str) -> list[str]:
        """Requests that went elsewhere."""
        own = (_origin(url), "about:", "data:", "chrome")
        return [each for each in self.requests if not each.startswith(own)]


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def main() -> None:
    """Install the browser where it is missing and that can be; else say so in a line, for its tests will fail."""
    for _ in range(TRIES):
        if find() or os.geteuid() != 0 or not Path("/etc/debian_version").exists():
            break
        print("installing Chromium (apt-get)", file=sys.stderr)
        for words in (["update"], ["install", "-y", "chromium"]):
            subprocess.run(
                ["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
    if not find():
        print(MISSING, file=sys.stderr)


if __name__ == "__main__":
    main()
