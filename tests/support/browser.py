"""A headless Chromium, driven by ChromeDriver through the W3C WebDriver protocol.

The browser resolves no name and reaches nothing but this machine, keeps its profile in a folder of the test's, and ends
with its driver. ``python -m tests.support.browser`` tells whether both programs are there, for `make browser`.

Source of the protocol: https://www.w3.org/TR/webdriver2/
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self

from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess
from tests.support.waiting import wait_until

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRIVER = "chromedriver"
_ARGUMENTS = (
    "--headless=new",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--lang=en-GB",
    "--metrics-recording-only",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Escape": "\ue00c",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}


class BrowserNotFound(RuntimeError):
    """Chromium or its driver is not installed: run `make browser`."""


class WebDriverError(RuntimeError):
    """The driver refused a command; the message is its own."""


def programs() -> tuple[Path, Path]:
    """The browser and its driver. Raises BrowserNotFound naming what is missing."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which(_DRIVER)
    if browser is None or driver is None:
        missing = [*([] if browser else ["chromium"]), *([] if driver else ["chromium-driver"])]
        packages = " ".join(missing)
        raise BrowserNotFound(f"not in PATH: {packages}; as root: apt-get install --no-install-recommends {packages}")
    return Path(browser), Path(driver)


class Element:
    """One element of the page; stale once the page has replaced it."""

    def __init__(self, browser: Browser, reference: str) -> None:
        self._browser = browser
        self.reference = reference

    @property
    def text(self) -> str:
        """The text as rendered."""
        return str(self._browser.command("GET", f"/element/{self.reference}/text"))

    def attribute(self, name: str) -> str | None:
        """An attribute's value, None without it."""
        value = self._browser.command("GET", f"/element/{self.reference}/attribute/{name}")
        return None if value is None else str(value)

    def click(self) -> None:
        """Scroll to it and click its middle."""
        self._browser.command("POST", f"/element/{self.reference}/click", {})

    def clear(self) -> None:
        """Empty a field."""
        self._browser.command("POST", f"/element/{self.reference}/clear", {})

    def type(self, text: str) -> None:
        """Type into a field; :data:`KEYS` has the keys without a letter."""
        self._browser.command("POST", f"/element/{self.reference}/value", {"text": text})


class Browser:
    """A browser with one window, usable with ``with``; logs and the profile lie below ``folder``."""

    def __init__(self, folder: Path, *, size: tuple[int, int] = (1280, 900)) -> None:
        """Nothing is started yet. ``size`` is the window's, in CSS pixels."""
        self._folder = folder
        self._size = size
        self._port = free_port()
        self._session = ""
        self._process: ManagedProcess | None = None

    def start(self) -> Self:
        """Start driver and browser."""
        browser, driver = programs()
        self._folder.mkdir(parents=True, exist_ok=True)
        # ChromeDriver listens on this machine alone unless it is told otherwise.
        argv: list[str | Path] = [driver, f"--port={self._port}"]
        self._process = ManagedProcess("chromedriver", argv, log=self._folder / "chromedriver.log").start()
        try:
            self._process.wait_until(self._is_ready)
            self._session = self._send("POST", "/session", self._capabilities(browser))["sessionId"]
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Close the browser, then end the driver and whatever is left of its family."""
        if self._process is None:
            return
        if self._session:
            self._send("DELETE", f"/session/{self._session}")
            self._session = ""
        self._process.stop()

    def open(self, url: str) -> None:
        """Go to a page and wait until it is loaded."""
        self.command("POST", "/url", {"url": url})

    @property
    def url(self) -> str:
        """Where the window is."""
        return str(self.command("GET", "/url"))

    def find_all(self, css: str) -> list[Element]:
        """The elements that a CSS selector finds now."""
        found = self.command("POST", "/elements", {"using": "css selector", "value": css})
        return [Element(self, one[_ELEMENT]) for one in found]

    def find(self, css: str, *, text: str = "") -> Element:
        """The first element of a CSS selector whose rendered text has ``text``, once there is one."""
        found: list[Element] = []

        def probe() -> bool:
            try:
                found[:] = [one for one in self.find_all(css) if not text or text in one.text]
            except WebDriverError as error:
                if "stale element" not in str(error):
                    raise
                return False  # the page was drawn anew between the two commands
            return bool(found)

        wait_until(probe, what=f"{css} with {text!r} at {self.url}", check=self._check)
        return found[0]

    def wait(self, condition: Callable[[], bool], *, what: str) -> None:
        """Wait for anything else."""
        wait_until(condition, what=what, check=self._check)

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a function body returns in the page; promises are waited for."""
        return self.command("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Press keys one after the other wherever the focus is: names of :data:`KEYS`, or characters."""
        strokes = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.command("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie of a site that need not be open."""
        self.devtools("Network.setCookie", url=url, name=name, value=value)

    def clear_cookies(self) -> None:
        """Forget all cookies."""
        self.devtools("Network.clearBrowserCookies")

    def prefer(self, **features: str) -> None:
        """CSS media features from here on, such as ``prefers_color_scheme="dark"``."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of the window, or of the page from top to bottom."""
        if whole:
            width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
            self.devtools(
                "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
            )
        shot = self.devtools("Page.captureScreenshot", format="png")
        if whole:
            self.devtools("Emulation.clearDeviceMetricsOverride")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """The errors and warnings that pages wrote to the console since the last call, refused requests among them."""
        entries = self.command("POST", "/se/log", {"type": "browser"})
        return [f"{one['level']}: {one['message']}" for one in entries if one["level"] in {"SEVERE", "WARNING"}]

    def enter_frame(self, css: str) -> None:
        """Look into a frame from here on."""
        self.command("POST", "/frame", {"id": {_ELEMENT: self.find(css).reference}})

    def leave_frame(self) -> None:
        """Look at the whole page again."""
        self.command("POST", "/frame", {"id": None})

    def devtools(self, method: str, **parameters: object) -> Any:
        """A command of Chromium's DevTools protocol, for what WebDriver lacks."""
        return self.command("POST", "/goog/cdp/execute", {"cmd": method, "params": parameters})

    def command(self, method: str, path: str, body: object = None) -> Any:
        """A WebDriver command of this session. Raises WebDriverError."""
        return self._send(method, f"/session/{self._session}{path}", body)

    def _capabilities(self, browser: Path) -> dict[str, Any]:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to run as root
        width, height = self._size
        arguments = [*_ARGUMENTS, *sandbox, f"--user-data-dir={self._folder / 'profile'}"]
        return {
            "capabilities": {
                "alwaysMatch": {
                    "goog:loggingPrefs": {"browser": "ALL"},
                    "goog:chromeOptions": {
                        "binary": str(browser),
                        "args": [*arguments, f"--window-size={width},{height}"],
                    },
                }
            }
        }

    def _is_ready(self) -> bool:
        try:
            return bool(self._send("GET", "/status")["ready"])
        except (OSError, HTTPException):
            return False  # the driver is still starting

    def _check(self) -> None:
        if self._process is None or not self._process.running:
            raise BrowserNotFound("the browser was not started, or its driver has ended")

    def _send(self, method: str, path: str, body: object = None) -> Any:
        connection = HTTPConnection(HOST, self._port, timeout=120)
        try:
            content = json.dumps(body) if method == "POST" else None
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer and "stacktrace" in answer:
            raise WebDriverError(f"{method} {path}: {answer['error']}: {answer['message']}")
        return answer

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


if __name__ == "__main__":
    try:
        sys.stdout.write("\n".join(str(one) for one in programs()) + "\n")
    except BrowserNotFound as error:
        sys.exit(str(error))
