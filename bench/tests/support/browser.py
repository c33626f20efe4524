"""A headless Chromium without network access, for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator["Chrome"]:
    """A browser with a fresh profile; skips the test, with the reason, if there is none."""
    pytest.importorskip("selenium", reason="selenium is not installed: pip install 'assay[dev]'")
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    for name, path in programs.items():
        if path is None:
            pytest.skip(f"no {name} here: apt install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(programs["chromium"])
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = Chrome(options, Service(executable_path=programs["chromedriver"]))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: "Chrome", page: Path, width: int, scheme: str = "light") -> None:
    """Load a page in a window of this width, light or dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.get(page.as_uri())


def complaints(driver: "Chrome") -> list[Any]:
    """Errors in the console since the last call."""
    lines = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [line for line in lines if line["level"] == "SEVERE"]
