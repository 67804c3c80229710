"""Makes docs/demo.png, the picture in the README: `make picture`.

A real demo, a real browser; what is on the picture happened.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("demo.png")
WIDTH = 1180


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("install chromium first", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "leasekeeper.cli", "demo", "--web", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        try:
            told = (json.loads(line) for line in demo.stdout)
            address = next(event["address"] for event in told if event["event"] == "page")
            next(event for event in told if event["event"] == "leads")
            take(chromium, address)
        finally:
            demo.send_signal(signal.SIGINT)
    print(f"{PICTURE} ({PICTURE.stat().st_size // 1024} KiB)")
    return 0


def take(chromium: str, address: str) -> None:
    """Some history first; then a node has just lost its memory while somebody leads."""
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        size = {"width": WIDTH, "height": 900}
        page = browser.new_page(viewport=size, color_scheme="dark")  # type: ignore[arg-type]
        page.goto(address)
        for key, pause in (("k", 9), ("c", 8), ("h", 3), ("s", 4), ("f", 7), ("t", 3)):
            page.keyboard.press(key)
            time.sleep(pause)
        page.get_by_role("button", name="Kill node 3").click()
        page.get_by_text("node 3 restarted empty").first.wait_for()
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(0, 0)
        time.sleep(0.3)
        bottom = page.locator("#history").bounding_box()
        assert bottom is not None
        area = {"x": 0, "y": 0, "width": WIDTH, "height": bottom["y"] + bottom["height"] + 16}
        page.screenshot(path=PICTURE, clip=area, full_page=True)  # type: ignore[arg-type]
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
