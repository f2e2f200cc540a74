"""``python -m tests.orchestrator.service.watch.page.render_time``: a browser showing a run of 300 steps."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from playwright.async_api import CDPSession, Page

from stepspec.orchestrator.service.watch.page import html

from .....browser import browsing, find
from .made import long_run

STEPS = 300
TIMES = 5


@dataclass(frozen=True, slots=True)
class Work:
    """The *layouts* and *elements* of a page, the seconds of its *script*, and the *seconds* since it was opened."""

    layouts: int
    elements: int
    script: float
    seconds: float


async def work(page: Page, url: str | None, act: Callable[[], Awaitable[None]] | None = None) -> Work:
    """Open *url*, or *act* on the page that is open; return what that took until the next frame was drawn."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable")  # pyright: ignore[reportUnknownMemberType]
    before = await _metrics(session) if act else {}
    if act:
        await act()
    elif url:
        await page.goto(url)
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    after = await _metrics(session)
    spent = {name: value - before.get(name, 0.0) for name, value in after.items()}
    elements: int = await page.evaluate("document.querySelectorAll('*').length")
    drawn: float = await page.evaluate("performance.now()")
    await session.detach()
    return Work(round(spent["LayoutCount"]), elements, spent["ScriptDuration"], drawn / 1000)


async def _metrics(session: CDPSession) -> dict[str, float]:
    answer = cast("dict[str, Any]", await session.send("Performance.getMetrics"))  # pyright: ignore[reportUnknownMemberType]
    return {one["name"]: one["value"] for one in answer["metrics"]}


async def main(document: str) -> None:
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.html"
        path.write_text(document, encoding="utf-8")
        async with browsing(executable) as browser:
            runs: list[Work] = []
            for _ in range(TIMES):
                page = await browser.new_page(viewport={"width": 1280, "height": 800})
                runs.append(await work(page, path.as_uri()))
                await page.close()
    print(f"{STEPS} steps: {runs[0].elements} elements, {runs[0].layouts} layouts of the page")
    for name, seconds in (("scripts", [one.script for one in runs]), ("until drawn", [one.seconds for one in runs])):
        print(f"{name}: {median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f} s, {TIMES} times)")


if __name__ == "__main__":
    asyncio.run(main(html(long_run(STEPS))))
