"""A browser for the tests of the page; one page to each, which may not complain of anything."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from .....browser import CURE, browsing, find

DEADLINE = 60_000  # milliseconds, of every wait: a browser beside four test workers may stand still for long
expect.set_options(timeout=DEADLINE)
Open = Callable[..., Awaitable[Page]]


@pytest.fixture(scope="session")
def executable() -> str:
    """The browser's; without one the tests are skipped, but not where they are meant to be run."""
    found = find()
    if found is None and os.environ.get("CI"):
        pytest.fail(f"no browser: {CURE}")
    if found is None:
        pytest.skip(f"no browser: {CURE}")
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(executable: str) -> AsyncGenerator[Browser]:
    async with browsing(executable) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def opened(browser: Browser) -> AsyncGenerator[Open]:
    """Open an address, in a context of its own; an error in the console, as of the page's policy, fails the test."""
    pages: list[Page] = []
    complaints: list[str] = []

    async def start(url: str, *, console: bool = True, **options: Any) -> Page:
        page = await browser.new_page(**options)
        pages.append(page)
        page.set_default_timeout(DEADLINE)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda message: complaints.append(message.text) if console and message.type == "error" else None
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
