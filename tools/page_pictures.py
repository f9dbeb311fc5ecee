"""Take the pictures of the page for the docs: `python -m tools.page_pictures http://127.0.0.1:8675
docs`.

The server has an index of the texts of `make demo`: `runnel index notes python-reference.txt --to
library`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

QUERY = "When is the finally clause executed if a return statement is reached?"
PICTURES = {  # name -> width, height, color scheme
    "page.png": (1100, 660, "light"),
    "page-dark.png": (1100, 660, "dark"),
    "page-phone.png": (375, 660, "light"),
}
_COLORS = 128  # of the files: enough for text on few colors, at a third of the size


def main(address: str, folder: Path) -> None:
    """Write the pictures to a folder."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name in PICTURES:
            _take(browser, address, folder / name)
        browser.close()


def _take(browser: Browser, address: str, path: Path) -> None:
    width, height, scheme = PICTURES[path.name]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    tab = context.new_page()
    tab.goto(address)
    tab.locator("#query:enabled").fill(QUERY)
    tab.keyboard.press("Enter")
    tab.locator("a.sentence").first.click()
    tab.wait_for_function("() => CSS.highlights.has('current')")
    tab.mouse.move(0, 0)
    tab.wait_for_timeout(500)  # the transition of the row
    tab.screenshot(path=path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(_COLORS).save(path, optimize=True)
    context.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
