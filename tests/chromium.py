"""A real Chromium without a screen, for tests of pages; it is given no network to use."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def why_not() -> str | None:
    """Why there is no browser to test with; None where there is one."""
    if not any(shutil.which(name) for name in BROWSERS):
        return "no Chromium on the PATH (Debian: apt-get install chromium chromium-driver)"
    if shutil.which("chromedriver") is None:
        return "no chromedriver on the PATH (Debian: apt-get install chromium-driver)"
    return None


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(found for name in BROWSERS if (found := shutil.which(name)))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # With its path given, selenium looks for no driver of its own.
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What the tests ask of a page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file at a window size and in a colour scheme."""
        self.scheme(dark)
        self._tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        self.driver.get_log("browser")
        self.driver.get(page.as_uri())

    def scheme(self, dark: bool) -> None:
        """Prefer light or dark, also on an open page."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[feature])

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        return self.driver.execute_script(f"return {script}")

    def complaints(self) -> list[str]:
        """What the console said: errors, refused loads, warnings."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def pdf(self) -> bytes:
        """The page as printed on A4."""
        printed = self._tell("Page.printToPDF", printBackground=True, preferCSSPageSize=True,
                             paperWidth=8.27, paperHeight=11.69)  # fmt: skip
        return base64.b64decode(printed["data"])

    def screenshot(self, target: Path) -> None:
        """The whole page, also what is below the window."""
        picture = self._tell("Page.captureScreenshot", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(picture["data"]))

    def _tell(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)
