"""A pytest plugin: headless Chromium, in which everything that a page should
not do fails the test.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from helpers.children import GIVE_UP_S
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


# not longer: while it is open, no other test of the process can run an event loop
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not installed; on Debian, apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Browser) -> Iterator[Callable[..., Any]]:
    """Open an address in a tab. Errors of scripts, refusals by the policy and requests elsewhere
    fail the test at its end.

    `prompts`: what a user enters when asked; other dialogs are errors too. `before`: a script to
        run before those of the page.
    """
    tabs: list[Any] = []

    def open_tab(
        address: str,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        prompts: Sequence[str] = (),
        before: str = "",
    ) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(GIVE_UP_S * 1000)
        context.add_init_script(before)
        tab: Any = context.new_page()  # with `problems`
        tab.problems = []
        left = list(prompts)

        def answer(dialog: Dialog) -> None:
            if left:
                dialog.accept(left.pop(0))
            else:
                tab.problems.append(f"dialog: {dialog.message}")
                dialog.dismiss()

        home = (
            address.partition("#")[0]
            if address.startswith("file:")
            else "/".join(address.split("/")[:3]) + "/"
        )
        tab.on(
            "console",
            lambda message: (
                tab.problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        tab.on("pageerror", lambda error: tab.problems.append(str(error)))
        tab.on("dialog", answer)
        tab.on(
            "request",
            lambda one: (
                None if one.url.startswith(home) else tab.problems.append(f"request: {one.url}")
            ),
        )
        tab.goto(address)
        tabs.append(tab)
        return tab

    yield open_tab
    problems = [problem for tab in tabs for problem in tab.problems]
    for tab in tabs:
        tab.context.close()
    assert not problems


def marked(tab: Page, name: str) -> list[str]:
    """Return the texts of the ranges that a highlight paints, in the order of the document."""
    return tab.evaluate(
        "name => [...(CSS.highlights.get(name) ?? [])].sort((a, b) => a.compareBoundaryPoints(0,"
        " b)).map(String)",
        name,
    )


def current(tab: Page) -> list[str]:
    """Wait for the current sentence, which must be inside the pane of the text; return what is
    marked as current.
    """
    tab.wait_for_function("() => CSS.highlights.has('current')")
    settle(tab)
    assert tab.evaluate("""() => {
            const [range] = CSS.highlights.get("current");
            const box = range.getBoundingClientRect();
            const pane = document.querySelector("#text").getBoundingClientRect();
            return box.height > 0 && box.top >= pane.top && box.bottom <= pane.bottom;
        }""")
    return marked(tab, "current")


def settle(tab: Page) -> None:
    """Wait for the frames in which the page scrolls and draws."""
    tab.evaluate(
        "() => new Promise(done => setTimeout(() => requestAnimationFrame(() =>"
        " requestAnimationFrame(done)), 50))"
    )


def scrolls_sideways(tab: Page) -> bool:
    return tab.evaluate(
        "() => document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth >"
        " innerWidth"
    )
