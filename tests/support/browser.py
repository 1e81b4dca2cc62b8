"""A headless Chromium over its debugging pipe (Chrome DevTools Protocol), with the standard library alone.

A pipe and not a port, so that nothing listens on the network and several tests may run at once.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)


class Browser:
    """One page of one browser; `complaints` are what the page logged as errors or threw."""

    def __init__(self, profile: Path) -> None:
        from_us, to_us = os.pipe(), os.pipe()
        self._write, self._read = from_us[1], to_us[0]

        def wire() -> None:
            # The browser reads from descriptor 3 and writes to 4.
            os.dup2(from_us[0], 253)
            os.dup2(to_us[1], 254)
            os.dup2(253, 3)
            os.dup2(254, 4)

        words = [str(CHROMIUM), *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            words, preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(from_us[0])
        os.close(to_us[1])
        self._number, self._rest, self._session = 0, b"", ""
        self.complaints: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *problem: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that come before it are looked through."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def open(self, url: str) -> None:
        """Load a page to its end."""
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + ANSWER_S
        while self.value("document.readyState") != "complete" or self.value("location.href") == "about:blank":
            assert time.monotonic() < deadline, f"{url} does not load"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page; the page's own policy against scripts does not bind us."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def width(self, pixels: int, dark: bool = False) -> None:
        """Show the page in a window of this width."""
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], ANSWER_S)
            piece = os.read(self._read, 1 << 20) if ready else b""
            assert piece, "the browser does not answer"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message = dict(json.loads(line))
        self._hear(message)
        return message

    def _hear(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"].get("text")))
        if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(str(parameters["entry"]["text"]))
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
