"""A run of 300 steps in a real browser: folded, filtered, gone through with keys, and drawn without waste."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median

import pytest
from playwright.async_api import Locator, Page, expect

from stepspec.orchestrator.service.watch.page import html

from .conftest import Open
from .made import made
from .made_long import long_run
from .render_time import work
from .test_accessible import Scheme, schemes, violations
from .test_page import wide

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Made here, for a loop of their own cannot run in a test that has one.
TRACE, SHORT = html(long_run()), html(made())
BEGUN = html(b"".join(made().splitlines(keepends=True)[:6]))  # one step is committed, and none is repaired
REJECTED = 26


async def focused(page: Page) -> str:
    """What the row that has the focus shows first: the number of its step, or what it folds."""
    text: str = await page.evaluate(
        "document.activeElement.querySelector('.place, .fold-what')?.textContent ?? document.activeElement.id"
    )
    return text


async def selected(bars: Locator) -> set[str]:
    return {await bar.get_attribute("data-draft") or "" for bar in await bars.all()}


async def test_runs_of_accepted_steps_are_folded_and_unfold(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE))
    steps, folds = page.locator(".step"), page.locator(".fold")
    before = await steps.count()
    assert before < 60
    fold = folds.first.get_by_role("button")
    await expect(fold).to_contain_text("7 accepted steps, 1.4 s")
    await expect(fold).to_have_attribute("aria-expanded", "false")
    await fold.click()
    await expect(steps).to_have_count(before + 7)
    await expect(folds.first.get_by_role("button")).to_have_attribute("aria-expanded", "true")
    await page.get_by_role("button", name="Unfold all").click()
    await expect(steps).to_have_count(300)
    await page.get_by_role("button", name="Fold all").click()
    await expect(steps).to_have_count(before)


async def test_only_rejected_drafts_are_left_by_the_filter(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE))
    await expect(page.locator("#rejected-count")).to_have_text(f"{REJECTED} of 300")
    await page.get_by_label("Rejected only").check()
    await expect(page.locator(".row")).to_have_count(REJECTED)
    await expect(page.locator(".step:not([data-fate='rejected'])")).to_have_count(0)
    await page.get_by_label("Rejected only").uncheck()
    await expect(page.locator(".fold").first).to_be_visible()
    page = await opened(saved(BEGUN))
    await page.get_by_label("Rejected only").check()
    await expect(page.get_by_text("No draft was rejected.")).to_be_visible()


async def test_keys_go_through_the_chain(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE))
    await page.keyboard.press("j")
    assert await focused(page) == "7 accepted steps, 1.4 s"
    await page.keyboard.press("j")
    assert await focused(page) == "8"
    await page.keyboard.press("ArrowUp")
    assert await focused(page) == "7 accepted steps, 1.4 s"
    await page.keyboard.press("Enter")
    assert await focused(page) == "7 accepted steps, 1.4 s"
    await page.keyboard.press("ArrowDown")
    assert await focused(page) == "1"
    await page.keyboard.press("n")
    assert await focused(page) == "8"
    await page.keyboard.press("n")
    assert await focused(page) == "10"
    await page.keyboard.press("p")
    assert await focused(page) == "8"
    await page.keyboard.press("k")
    assert await focused(page) == "7"
    await page.keyboard.press("f")
    await expect(page.locator(".row")).to_have_count(REJECTED)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    assert await violations(page) == []


async def test_keys_of_one_character_can_be_turned_off(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT))
    await page.get_by_role("button", name="Keys").click()
    await page.get_by_label("Keys of a single character work").uncheck()
    await page.get_by_role("button", name="Close").click()
    await page.keyboard.press("j")
    assert await focused(page) == "help"
    await page.reload()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


async def test_a_step_opens_its_requests(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT))
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    requests = page.locator(".step").nth(1).locator(".requests li")
    await expect(requests).to_have_count(3)
    await expect(requests.nth(0)).to_contain_text("small writes: draft of step 2, rejected")
    await expect(requests.nth(2)).to_contain_text("large writes: repair of step 2")
    await page.locator(".requests-button").nth(1).click()
    await expect(requests).to_have_count(0)


async def test_a_step_stands_out_in_the_time_line_and_a_bar_in_the_chain(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(TRACE))
    bars = page.locator(".span[data-selected]")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
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


async def test_a_bar_leads_to_a_step_that_is_filtered_out(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT))
    await page.get_by_label("Rejected only").check()
    await page.locator(".span[data-draft='0']").first.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Rejected only")).not_to_be_checked()
    assert await focused(page) == "1"


async def test_bars_and_ticks_have_the_numbers_of_steps(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT), viewport={"width": 1280, "height": 800})
    await expect(page.locator(".commit text")).to_have_text(["1", "2", "3", "4"])
    numbers = await page.locator(".inside text").all_text_contents()
    assert numbers.count("2") == 3  # draft, verdict and repair
    assert "answer" in numbers
    page = await opened(saved(TRACE))
    edges = "(all) => all.map((one) => one.getBBox()).map(({ x, width }) => [x, x + width])"
    boxes = await page.locator(".commit text").evaluate_all(edges)
    assert len(boxes) > 10
    assert all(one[1] < other[0] for one, other in pairwise(boxes))


async def test_the_time_line_zooms_and_follows_the_keys(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE), viewport={"width": 1280, "height": 800})
    plot = page.locator("#timeline-plot")
    width = await plot.evaluate("plot => plot.scrollWidth")
    await expect(page.get_by_role("button", name="Zoom out")).to_be_disabled()
    for _ in range(3):
        await page.get_by_role("button", name="Zoom in").click()
    assert await plot.evaluate("plot => plot.scrollWidth") == pytest.approx(8 * width, abs=2)
    await page.keyboard.press("n")
    bar = page.locator(".span[data-selected]").first
    shown, room = await bar.bounding_box(), await plot.bounding_box()
    assert shown
    assert room
    assert room["x"] <= shown["x"] <= shown["x"] + shown["width"] <= room["x"] + room["width"]
    assert not await wide(page)


async def test_the_speed_is_estimated_and_explained(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT))
    await expect(page.locator("#speed p").first).to_have_text(
        "1.4\N{MULTIPLICATION SIGN} as fast as the large model alone, estimated"
    )
    await page.get_by_text("How this is estimated").click()
    await expect(page.locator("#factor-how")).to_contain_text("34.3 ms a token, measured on 21")
    await expect(page.locator("#factor-how")).to_contain_text("the run took 1.32 s")
    page = await opened(saved(BEGUN))
    await expect(page.locator("#factor")).to_have_text("Unknown")
    await expect(page.locator("#factor-how")).to_contain_text("16 are needed")


async def test_the_ledger_shows_seconds_and_with_a_key_tokens(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(SHORT))
    rows = page.locator("#ledger-figures tbody tr")
    await expect(rows.first).to_have_text("drafting0.50 s\N{EN DASH}")
    await expect(page.locator("#ledger-figures .legend")).to_contain_text("repaired 0.44 s")
    await page.get_by_role("radio", name="Seconds").focus()
    await page.keyboard.press("ArrowRight")
    await expect(rows.first).to_contain_text("tokens kept")
    await expect(page.locator("#ledger-figures .legend")).to_contain_text("repaired 13")


async def test_the_threshold_of_the_run_is_on_the_axis(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE))
    plot = page.get_by_role("img", name="300 scores from 0.00 to 9.00: 274 accepted, 26 rejected")
    await expect(plot.locator(".time")).to_have_text([*map(str, range(10))])
    await expect(plot.locator(".threshold text")).to_have_text("threshold 7.00")
    await page.get_by_role("slider").press("ArrowRight")
    await expect(plot.locator(".threshold text")).to_have_text(["own", "7.05"])
    await page.get_by_role("slider").press("End")
    await expect(page.locator(".fold .flip").first).to_have_text("3 would change")
    old = html(made().replace(b'"threshold":["threshold",7.0]', b'"threshold":null'))
    page = await opened(saved(old))
    await expect(page.locator(".threshold")).to_have_count(0)
    await expect(page.locator("#threshold")).to_contain_text("does not contain the run's own threshold")
    await page.get_by_role("slider").press("End")
    await expect(page.locator(".threshold text")).to_have_text("9.00")


async def test_a_long_run_takes_little_work(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened("about:blank")
    done = await work(page, saved(TRACE))
    assert done.elements < 5000
    assert done.layouts <= 6
    unfolding = await work(page, None, page.get_by_role("button", name="Unfold all").click)
    assert unfolding.layouts <= 6


@pytest.mark.alone
async def test_a_run_of_300_steps_is_drawn_within_a_second(opened: Open, saved: Callable[[str], str]) -> None:
    page, url = await opened("about:blank"), saved(TRACE)
    assert median([(await work(page, url)).seconds for _ in range(5)]) < 1


@pytest.mark.parametrize("width", [390, 1280])
async def test_the_first_committed_step_has_its_number_below_the_name_of_the_row(
    width: int, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(SHORT), viewport={"width": width, "height": 800})
    number, name = page.locator(".commit text").first, page.locator(".steps-name")
    await expect(number).to_have_text("1")
    above, below = await name.bounding_box(), await number.bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"] + 4  # the boxes of text are taller than its letters


@schemes
@pytest.mark.parametrize("width", [390, 1280])
async def test_nobody_is_kept_out_of_a_long_run(
    scheme: Scheme, width: int, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(TRACE), color_scheme=scheme, viewport={"width": width, "height": 800})
    await page.get_by_text("How this is estimated").click()
    await page.locator(".fold-button").first.click()
    await page.locator(".requests-button").first.click()
    await page.get_by_role("radio", name="Tokens").check()
    assert await violations(page) == []
    assert not await wide(page)


async def test_paper_has_no_buttons_and_room_for_everything(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(TRACE), color_scheme="dark", viewport={"width": 794, "height": 1123})
    await page.emulate_media(media="print", color_scheme="dark")
    await expect(page.get_by_role("button", name="Open trace")).to_be_hidden()
    await expect(page.get_by_label("Rejected only")).to_be_hidden()
    assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert not await wide(page)
