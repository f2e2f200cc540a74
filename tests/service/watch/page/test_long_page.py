"""A run of 300 steps in a real browser: folded, filtered, and gone through with keys."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from playwright.async_api import Locator, Page, expect

from stepspec.service.watch.page import html

from .conftest import Open, wide
from .made import long_run, made

pytestmark = pytest.mark.asyncio(loop_scope="package")

REJECTED = 26


async def focused(page: Page) -> str:
    """What the row that has the focus shows first: the number of its step, or what it folds."""
    text: str = await page.evaluate(
        "document.activeElement.querySelector('.place, .fold-what')?.textContent ??"
        " document.activeElement.id"
    )
    return text


async def selected(bars: Locator) -> set[str]:
    return {await bar.get_attribute("data-draft") or "" for bar in await bars.all()}


async def test_accepted_steps_are_folded_and_rejected_ones_filtered(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(long_run())))
    steps = page.locator(".step")
    folds = page.locator(".fold")
    before = await steps.count()
    assert before < 60
    fold = folds.first.get_by_role("button")
    await expect(fold).to_contain_text("7 accepted steps, 1.8 s")
    await expect(fold).to_have_attribute("aria-expanded", "false")
    await fold.click()
    await expect(steps).to_have_count(before + 7)
    await expect(folds.first.get_by_role("button")).to_have_attribute("aria-expanded", "true")
    await page.get_by_role("button", name="Unfold all").click()
    await expect(steps).to_have_count(300)
    await page.get_by_role("button", name="Fold all").click()
    await expect(steps).to_have_count(before)
    await expect(page.locator("#rejected-count")).to_have_text(f"{REJECTED} of 300")
    await page.get_by_label("Rejected only").check()
    await expect(page.locator(".row")).to_have_count(REJECTED)
    await expect(page.locator(".step:not([data-fate='rejected'])")).to_have_count(0)
    await page.get_by_label("Rejected only").uncheck()
    await expect(page.locator(".fold").first).to_be_visible()


async def test_steps_and_bars_lead_to_each_other(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(made())))
    await page.locator(".row").first.focus()
    for key in ("ArrowDown", "Enter"):
        await page.keyboard.press(key)
    requests = page.locator(".step").nth(1).locator(".requests li")
    await expect(requests).to_have_count(3)
    await expect(requests.nth(0)).to_contain_text("small writes: draft of step 2, rejected")
    await expect(requests.nth(2)).to_contain_text("large writes: repair of step 2")
    await page.locator(".requests-button").nth(1).click()
    await expect(requests).to_have_count(0)
    await page.get_by_label("Rejected only").check()
    await page.locator(".span[data-draft='0']").first.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Rejected only")).not_to_be_checked()
    assert await focused(page) == "1"


async def test_the_keys_and_the_pointer_go_through_a_long_chain(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(long_run())))
    bars = page.locator(".span[data-selected]")
    await page.locator(".row").first.focus()
    for key, expected in (
        *(
            ("ArrowUp", "7 accepted steps, 1.8 s"),
            ("ArrowDown", "8"),
            ("ArrowUp", "7 accepted steps, 1.8 s"),
        ),
        *(
            ("Enter", "7 accepted steps, 1.8 s"),
            ("ArrowDown", "1"),
            ("ArrowUp", "7 accepted steps, 1.8 s"),
        ),
        *(("Enter", "7 accepted steps, 1.8 s"), ("ArrowDown", "8")),
    ):
        await page.keyboard.press(key)
        assert await focused(page) == expected, key
    assert await selected(bars) == {"7"}
    await expect(page.locator(".commit[data-selected]")).to_have_count(1)
    bar = page.locator(".span[data-draft='3'][data-author='small']")
    await bar.hover()
    await expect(page.locator(".fold[data-selected]")).to_contain_text("7 accepted steps")
    assert await selected(bars) == {"3"}
    await bar.click()
    await expect(page.locator(".fold-button[aria-expanded='true']")).to_have_count(1)
    assert await focused(page) == "4"
    await expect(page.locator(".step[data-selected] .place")).to_have_text("4")


async def test_the_time_line_zooms_and_follows_the_keys(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(long_run())), viewport={"width": 1280, "height": 800})
    edges = "(all) => all.map((one) => one.getBBox()).map(({ x, width }) => [x, x + width])"
    boxes = await page.locator(".commit text").evaluate_all(edges)
    assert len(boxes) > 10
    assert all(one[1] < other[0] for one, other in pairwise(boxes))
    plot = page.locator("#timeline-plot")
    width = await plot.evaluate("plot => plot.scrollWidth")
    await expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()
    for _ in range(3):
        await page.get_by_role("button", name="Zoom in").click()
    assert await plot.evaluate("plot => plot.scrollWidth") == pytest.approx(8 * width, abs=2)
    await page.locator(".row").nth(1).focus()
    await page.keyboard.press("ArrowDown")
    bar = page.locator(".span[data-selected]").first
    shown = await bar.bounding_box()
    room = await plot.bounding_box()
    assert shown
    assert room
    assert room["x"] <= shown["x"] <= shown["x"] + shown["width"] <= room["x"] + room["width"]
    assert not await wide(page)
