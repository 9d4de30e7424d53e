"""A headless Chromium, driven by Selenium.

The browser resolves no name and reaches nothing but this machine, and keeps its profile in a folder of the test's.
``python -m tests.support.browser`` tells whether the browser and its driver are there, for `make browser`.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

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


class BrowserNotFound(RuntimeError):
    """Chromium or its driver is not installed: run `make browser`."""


def programs() -> tuple[Path, Path]:
    """The browser and its driver. Raises BrowserNotFound naming what is missing."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which(_DRIVER)
    if browser is None or driver is None:
        missing = [*([] if browser else ["chromium"]), *([] if driver else ["chromium-driver"])]
        packages = " ".join(missing)
        raise BrowserNotFound(f"not in PATH: {packages}; as root: apt-get install --no-install-recommends {packages}")
    return Path(browser), Path(driver)


def clicked(element: WebElement) -> bool:
    """Click ``element``; False if the page still moves, so that it was replaced or another element would be hit."""
    try:
        element.click()
    except (ElementClickInterceptedException, StaleElementReferenceException):
        return False
    return True


class Browser(Chrome):
    """A browser with one window; ends with its ``with`` block. Logs and the profile lie below ``folder``."""

    def __init__(self, folder: Path, *, size: tuple[int, int] = (1280, 900)) -> None:
        """Start driver and browser. ``size`` is the window's, in CSS pixels."""
        browser, driver = programs()
        folder.mkdir(parents=True, exist_ok=True)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to run as root
        options = ChromeOptions()
        options.binary_location = str(browser)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        width, height = size
        for argument in (*_ARGUMENTS, *sandbox, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(argument)
        options.add_argument(f"--window-size={width},{height}")
        super().__init__(options, ChromeService(str(driver), log_output=str(folder / "chromedriver.log")))

    def all(self, css: str) -> list[WebElement]:
        """The elements that a CSS selector finds now."""
        return self.find_elements(By.CSS_SELECTOR, css)

    def first(self, css: str, *, text: str = "") -> WebElement:
        """The first element of a CSS selector whose rendered text has ``text``, once there is one."""
        found: list[WebElement] = []

        def probe() -> bool:
            try:
                found[:] = [one for one in self.all(css) if not text or text in one.text]
            except StaleElementReferenceException:
                return False  # the page was drawn again between the two commands
            return bool(found)

        self.wait(probe, what=f"{css} with {text!r} at {self.current_url}")
        return found[0]

    def click(self, css: str, *, text: str = "") -> None:
        """Click the element that :meth:`first` finds, as soon as nothing covers it."""
        self.wait(lambda: clicked(self.first(css, text=text)), what=f"{css} with {text!r} to be clicked")

    def wait(self, condition: Callable[[], bool], *, what: str) -> None:
        """Wait for anything else. What the page replaces while ``condition`` reads it is read again."""

        def settled() -> bool:
            try:
                return condition()
            except StaleElementReferenceException:
                return False

        wait_until(settled, what=what)

    def press(self, *keys: str) -> None:
        """Press keys one after the other wherever the focus is: of Selenium's ``Keys``, or characters."""
        for key in keys:
            ActionChains(self).send_keys(key).perform()

    def set_cookie(self, url: str, name: str, value: str) -> None:
        """Set a cookie of a site that need not be open."""
        self.devtools("Network.setCookie", url=url, name=name, value=value)

    def clear_cookies(self) -> None:
        """Forget the cookies of all sites."""
        self.devtools("Network.clearBrowserCookies")

    def prefer(self, **features: str) -> None:
        """CSS media features from here on, such as ``prefers_color_scheme="dark"``."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def set_width(self, width: int) -> None:
        """Lay the page out for a window of that width, which may be less than Chromium's least."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path, *, whole: bool = False) -> None:
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
        entries: list[dict[str, Any]] = self.get_log("browser")  # type: ignore[no-untyped-call]
        return [f"{one['level']}: {one['message']}" for one in entries if one["level"] in {"SEVERE", "WARNING"}]

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a function body returns in the page; promises are waited for."""
        return self.execute_script(script, *arguments)

    def devtools(self, method: str, **parameters: object) -> Any:
        """A command of Chromium's DevTools protocol, for what WebDriver lacks."""
        return self.execute_cdp_cmd(method, parameters)


if __name__ == "__main__":
    try:
        sys.stdout.write("\n".join(str(one) for one in programs()) + "\n")
    except BrowserNotFound as error:
        sys.exit(str(error))
