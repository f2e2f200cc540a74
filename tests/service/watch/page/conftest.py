"""A browser for the tests of the page; one page to each, which may not complain of anything."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from ....browser import CURE, browsing, find

# milliseconds, of every wait: a browser beside four test workers may stand still for long
DEADLINE = 60_000
expect.set_options(timeout=DEADLINE)
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# Of what passes, a large page has thousands of elements, each of which axe describes.
VIOLATIONS = "axe.run({ resultTypes: ['violations'] }).then((found) => found.violations)"
Open = Callable[..., Awaitable[Page]]
LOOKS: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 1280), ("dark", 390))
"""Schemes with widths: every rule depends on one of them only."""


@pytest.fixture(scope="session")
def executable() -> str:
    """The browser's; without one the tests are skipped, but not where they are meant to be run."""
    found = find()
    if found is None and os.environ.get("CI"):
        pytest.fail(f"no browser: {CURE}")
    if found is None:
        pytest.skip(f"no browser: {CURE}")
    return found


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser(executable: str) -> AsyncGenerator[Browser]:
    async with browsing(executable) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="package")
async def opened(browser: Browser) -> AsyncGenerator[Open]:
    """
    Open an address, in a context of its own; an error in the console, as of the page's policy,
    fails the test.
    """
    pages: list[Page] = []
    complaints: list[str] = []

    async def start(url: str, *, console: bool = True, **options: Any) -> Page:
        page = await browser.new_page(**options)
        pages.append(page)
        page.set_default_timeout(DEADLINE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text) if console and message.type == "error" else None
            ),
        )
        await page.goto(url)
        return page

    yield start
    for page in pages:
        await page.close()
    assert complaints == []


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], str]:
    """Write a document to a file; return its address."""

    def write(document: str) -> str:
        path = tmp_path / "page.html"
        path.write_text(document, encoding="utf-8")
        return path.as_uri()

    return write


async def violations(page: Page) -> list[Any]:
    """What axe finds on *page*."""
    # A redrawn time line cancels the transitions of its old bars: they are over then, too.
    await page.evaluate("Promise.allSettled(document.getAnimations().map((one) => one.finished))")
    await page.evaluate(AXE)
    found: list[Any] = await page.evaluate(VIOLATIONS)
    return [
        (one["id"], [(node["target"], node["failureSummary"]) for node in one["nodes"]])
        for one in found
    ]


async def wide(page: Page) -> bool:
    """Whether *page* has to be scrolled sideways."""
    return bool(
        await page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
    )


async def keeps_nobody_out(page: Page) -> None:
    """Assert that axe finds nothing on *page* as it is now, and that it fits, in every look."""
    for scheme, width in LOOKS:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 800})
        assert await violations(page) == [], (scheme, width)
        assert not await wide(page), (scheme, width)
