"""A real Chromium for a test, headless, without any of its own traffic."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.e2e.tools import tool

FLAGS = (
    "--headless",
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

PHONE = (390, 844)
DESKTOP = (1280, 1200)


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own under `folder`, and its console log kept."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(tool("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(tool("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def emulate(driver: webdriver.Chrome, size: tuple[int, int], *, dark: bool = False) -> None:
    """A screen of `size` in CSS pixels, light or dark."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def screenshot(driver: webdriver.Chrome, path: Path) -> Path:
    """The whole page, also what is below the fold."""
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(base64.b64decode(shot["data"]))
    return path
