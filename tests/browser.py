"""A real browser for tests: headless Chromium over its debugging pipe, with only the standard library."""

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

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 60.0


def find_chromium() -> str | None:
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. `complaints` are errors and warnings of the page's console, and everything it tried to fetch."""

    def __init__(self, program: str, profile: Path) -> None:
        (self._read, their_write), (their_read, self._write) = os.pipe(), os.pipe()
        words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        script = f'exec 3<&{their_read} 4>&{their_write}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=(their_read, their_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_read)
        os.close(their_write)
        self._buffer, self._number, self._session = b"", 0, None
        self._events: list[dict[str, Any]] = []
        self.complaints: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        tab = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.complaints.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.send("Page.navigate", url=address)
        self.wait_for("Page.loadEventFired")
        if address != "about:blank":  # the event may come from an earlier page
            self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "PageUp": 33, "PageDown": 34, "Tab": 9}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def click(self, selector: str) -> None:
        """Click the element; click again if the page moved it in between, as a person would."""
        where, meant = f"document.querySelector({json.dumps(selector)})", f"event.target.closest({json.dumps(selector)})"
        heard = f"if ({meant}) {{ window.met = true; document.removeEventListener('click', met, true) }}"
        self.evaluate(f"window.met = false; document.addEventListener('click', function met(event) {{ {heard} }}, true)")
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate("window.met !== false"):  # after a page change there is no `met`
            assert time.monotonic() < deadline, (f"{selector} was never met", self.evaluate("document.body.innerText"))
            self._press_where(where)

    def _press_where(self, where: str) -> None:
        self.evaluate(f"{where}.scrollIntoView({{block: 'center'}})")
        x, y = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({where}.getBoundingClientRect())")
        self.hover(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path, whole: bool = True) -> None:
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def wait_for(self, event: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(e["method"] == event for e in self._events):
            self._receive(deadline)
        self._events.clear()

    def until(self, condition: str) -> None:
        """Wait until the JavaScript condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, (condition, self.evaluate("document.body.innerText"), self.complaints)
            time.sleep(0.05)

    def complaints_beyond(self, address: str) -> list[str]:
        """Complaints other than requests to the server under test."""
        return [complaint for complaint in self.complaints if not complaint.startswith(f"fetched {address}/")]

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {PATIENCE_S:.0f} s"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has gone"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if "method" in message:
            self._events.append(message)
            self._listen(message["method"], message["params"])
        return message

    def _listen(self, event: str, event_data: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(event_data["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and event_data["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(event_data["args"]))
        elif event == "Log.entryAdded" and event_data["entry"]["level"] in ("error", "warning"):
            self.complaints.append(event_data["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not event_data["request"]["url"].startswith(("file:", "data:", "about:")):
            self.complaints.append(f"fetched {event_data['request']['url']}")
