"""A headless Chromium for tests that look at a page. scripts/beds/chromium installs it; tests/conftest.py starts one.

Screenshots stay in .cache/screenshots, or where TOOLKIT_SCREENSHOTS says, so that CI can keep them.
"""

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BED = Path(os.environ.get("TOOLKIT_BEDS", ROOT / ".beds")).absolute() / "chromium"
SCREENSHOTS = Path(os.environ.get("TOOLKIT_SCREENSHOTS", ROOT / ".cache/screenshots"))
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BED / ".ready").exists(), reason=f"{BED} is not ready: run scripts/beds/chromium"),
]
WIDE, PHONE = 1280, 390
_QUIET = ("background-networking", "component-update", "default-apps", "sync", "extensions", "gpu", "dev-shm-usage")


class Browser:
    """One Chromium with one tab."""

    def __init__(self, folder: Path) -> None:
        from selenium.webdriver import Chrome
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = "/usr/bin/chromium"
        switches = ["headless=new", "no-sandbox", "no-first-run", "hide-scrollbars", f"user-data-dir={folder}/profile"]
        for switch in [*switches, *(f"disable-{name}" for name in _QUIET), f"window-size={WIDE},900"]:
            options.add_argument(f"--{switch}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        self.driver = Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        self.driver.set_script_timeout(60)
        self.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def cdp(self, command: str, **arguments: Any) -> Any:
        """Give Chromium's debugger *command*."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def js(self, script: str, *arguments: Any) -> Any:
        """Run *script* in the page; what it returns, or its promise gives."""
        return self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            f"(async (...given) => {{ {script} }})(...[...arguments].slice(0, -1))"
            ".then((value) => done({ value }), (error) => done({ error: String(error.stack) }));",
            *arguments,
        )

    def value(self, script: str, *arguments: Any) -> Any:
        """As `js`, where an exception in the page fails the test."""
        answer = self.js(script, *arguments)
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def open(self, address: str | Path) -> None:
        """Open *address*, the page of a report, and wait until its charts are drawn."""
        self.logs()
        self.driver.get(address.as_uri() if isinstance(address, Path) else address)
        self.until("return document.documentElement.dataset.shownMs !== undefined", "the charts are drawn")

    def until(self, script: str, meaning: str, *arguments: Any, deadline_s: float = 60) -> None:
        """Wait until *script* returns something true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, deadline_s, poll_frequency=0.05).until(
            lambda _driver: self.value(script, *arguments), f"not so after {deadline_s} s: {meaning}"
        )

    @contextmanager
    def as_if(self, *, width: int = WIDE, dark: bool = False) -> Iterator[None]:
        """Show the page on a screen of *width*, to somebody who likes it *dark*."""
        self._emulate(width, "dark" if dark else "light")
        yield
        self._emulate(WIDE, "light")

    def _emulate(self, width: int, scheme: str) -> None:
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.cdp("Emulation.setEmulatedMedia", features=media)
        phone = width < 500
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.value("await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));")

    def screenshot(self, name: str) -> Path:
        """Keep a picture of the whole page as NAME.png."""
        width, height = self.value("const e = document.documentElement; return [innerWidth, e.scrollHeight];")
        clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 1}
        data = self.cdp("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        path.write_bytes(base64.b64decode(data))
        return path

    def logs(self) -> tuple[list[str], list[str]]:
        """Return (the console's lines, the addresses that were asked for) since the last call."""
        driver: Any = self.driver
        console = [entry["message"] for entry in driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
        requests = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return console, requests

    def close(self) -> None:
        """End Chromium and its driver."""
        self.driver.quit()
