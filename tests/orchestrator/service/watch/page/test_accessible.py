"""Nothing that axe finds in any state of the page, light and dark; usable without mouse and without motion."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from importlib.resources import files
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from stepspec.orchestrator.service.watch.page import html

from .conftest import Open
from .made import PROBLEM, drawn, made
from .replay import Replay

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE = made()
BETS = next(trace for seed in range(9) if b'"event":"Lost"' in (trace := drawn("specreason", seed, 3)))
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
Scheme = Literal["light", "dark"]
schemes = pytest.mark.parametrize("scheme", ["light", "dark"])


async def violations(page: Page) -> list[Any]:
    await page.evaluate("Promise.all(document.getAnimations().map((one) => one.finished))")
    await page.evaluate(AXE)
    found: list[Any] = (await page.evaluate("axe.run()"))["violations"]
    return [(one["id"], [(node["target"], node["failureSummary"]) for node in one["nodes"]]) for one in found]


@pytest_asyncio.fixture(loop_scope="module")
async def service() -> AsyncGenerator[Replay]:
    async with Replay(TRACE).serving() as started:
        yield started


@schemes
@pytest.mark.parametrize("trace", [TRACE, BETS])
@pytest.mark.parametrize("width", [390, 1280])
async def test_a_trace(trace: bytes, scheme: Scheme, width: int, opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(trace)), color_scheme=scheme, viewport={"width": width, "height": 800})
    await page.get_by_role("slider").press("End")
    await page.locator(".span[tabindex='0']").focus()
    assert await violations(page) == []


@schemes
async def test_a_run_and_its_error(scheme: Scheme, service: Replay, opened: Open) -> None:
    page = await opened(service.url, color_scheme=scheme, console=False)
    await page.get_by_text("Options of the method").click()
    assert await violations(page) == []
    await page.get_by_label("Problem", exact=True).fill(PROBLEM)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    service.breaks = 3
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    assert await violations(page) == []


@schemes
async def test_the_key_dialog(scheme: Scheme, service: Replay, opened: Open) -> None:
    service.key = "sesame"
    page = await opened(service.url, color_scheme=scheme, console=False)
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await violations(page) == []


async def test_everything_is_reached_with_the_tab_key(service: Replay, opened: Open) -> None:
    page = await opened(service.url)
    await page.get_by_label("Problem", exact=True).fill(PROBLEM)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await page.locator("body").evaluate("body => { document.activeElement.blur(); scrollTo(0, 0); }")
    reached: list[str] = []
    for _ in range(20):
        await page.keyboard.press("Tab")
        reached.append(
            await page.evaluate("document.activeElement.id || document.activeElement.getAttribute('class') || ''")
        )
    assert {"open", "save", "theme", "problem", "method", "ahead", "start", "span", "copy", "threshold-input"} <= {
        *reached
    }


async def test_motion_is_left_out_where_it_is_not_wanted(opened: Open, saved: Callable[[str], str]) -> None:
    moving = "getComputedStyle(document.querySelector('.step')).animationName"
    page = await opened(saved(html(TRACE)), reduced_motion="reduce")
    assert await page.evaluate(moving) == "none"
    page = await opened(saved(html(TRACE)), reduced_motion="no-preference")
    assert await page.evaluate(moving) == "appear"
