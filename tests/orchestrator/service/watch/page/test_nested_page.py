"""A nested pair on the page, in a real browser: who wrote which piece, what fell within, and a lane for each model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from stepspec.orchestrator.service.watch.page import html

from .conftest import Open
from .made import PROBLEM, SLIP, STEPS
from .made_nested import DOUBTED, KEPT, WRONG, drawn_nested, nested
from .replay import Replay
from .test_accessible import Scheme, schemes, violations
from .test_page import wide

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Made here, for a loop of their own cannot run in a test that has one.
TRACE = nested()
DEEP = drawn_nested("specreason", "bild", "keeping", seed=5, ahead=3)
PARTLY = drawn_nested("keeping", "bild", seed=30, ahead=0)
REAL = (Path(__file__).parent / "traces" / "nested.jsonl").read_bytes()


async def looks(page: Page) -> list[dict[str, str]]:
    """How the pieces of the chain look: the letters and the outline of their marks, and the colour of their texts."""
    look = """(all) => all.map((one) => {
      const mark = one.querySelector(".badge");
      const [shape, ink] = [getComputedStyle(mark).borderRadius, getComputedStyle(one).color];
      return { letters: mark.textContent, shape, ink };
    })"""
    found: list[dict[str, str]] = await page.locator(".attempt[data-fate='kept'] .piece").evaluate_all(look)
    return found


async def test_every_piece_tells_who_wrote_it(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    steps = page.locator(".step")
    await expect(steps).to_have_count(4)
    text = steps.nth(1).locator(".attempt").first.locator(".text").first
    await expect(text).to_have_text(f"SSsmall.small: {KEPT} SLsmall.large: {SLIP.removeprefix(KEPT).strip()}")
    await expect(text.locator(".badge")).to_have_count(2)
    await expect(steps.nth(1).locator("del .piece").first).to_have_text("SLsmall.large: 18")
    await expect(steps.nth(1).locator(".attempt").nth(1)).to_contain_text(STEPS[1].strip())
    await expect(steps.nth(1).locator(".attempt").nth(1).locator(".piece")).to_have_count(0)
    await expect(page.locator("#models")).to_contain_text("SSsmall.small: tiny")
    tiny, middle, last = await looks(page)
    assert (tiny["letters"], middle["letters"], last) == ("SS", "SL", tiny)
    assert tiny["shape"] != middle["shape"]
    assert tiny["ink"] != middle["ink"]


async def test_what_fell_within_is_unfolded_with_the_keyboard(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    folded = page.locator("details.rejected-drafts")
    await expect(folded).to_have_count(2)
    await expect(page.get_by_text(DOUBTED.strip())).to_be_hidden()
    await folded.nth(1).locator("summary").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text(DOUBTED.strip())).to_be_visible()
    await expect(folded.nth(1)).to_contain_text("1 draft fell within")
    await expect(folded.nth(1).locator("li .meta")).to_have_text("SSsmall.smallrejectedscore 3.00rollback")
    await folded.nth(0).locator("summary").click()
    await expect(folded.nth(0).locator("li .meta")).to_contain_text("kept in part")
    await expect(folded.nth(0).locator("li del")).to_have_text(WRONG.removeprefix(KEPT).strip())
    await expect(folded.nth(0).locator("li .text")).to_have_text(WRONG.strip())


async def test_a_draft_that_was_kept_in_part_is_cut_between_its_pieces(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(PARTLY)))
    partly = page.locator(".step[data-fate='rejected'] .attempt").first
    await expect(partly.locator(".kept-text .piece")).to_have_text(
        ["SSsmall.small: So 0 is", "SLsmall.large:  63", "SSsmall.small: , as", "SLsmall.large:  1"]
    )
    await expect(partly.locator(".cut")).to_have_text("rejected from here:")
    again = page.locator(".step[data-fate='rejected']").nth(1)
    await expect(again.locator(".kept-text")).to_have_text("SSsmall.small: So 3 is 68,")
    await expect(again.locator(".text > del .piece")).to_have_text(["SLsmall.large: 1"])
    await expect(again.locator("ins")).to_have_text("2")
    await expect(again.locator(".attempt").nth(1).locator(".text")).to_have_text("continues: … as 2 one says.")
    await expect(partly.locator(".meta").first).to_contain_text("kept in part")


async def test_every_model_has_its_lane_and_its_bars(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    await expect(page.locator(".lane")).to_have_text(["small.small tiny", "small.large middle", "large huge"])
    for model, bars in (("small.small", 8), ("small.large", 8), ("large", 6)):
        await expect(page.locator(f".span[data-author='{model}']")).to_have_count(bars)
    thrown = page.locator(".span[data-author='small.small'][data-wasted]").first
    assert await thrown.evaluate("(bar) => getComputedStyle(bar).fill") == 'url("#hatch-small.small")'
    assert await page.locator("[id='hatch-small.small']").count() == 1
    await page.locator(".span[tabindex='0']").focus()
    await expect(page.locator("#details")).to_contain_text("small.small writes: draft of step 1 · 0.00 to 0.06 s")
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("#details")).to_contain_text("small.large reads to judge: verdict on step 1")
    await page.locator(".step").nth(2).hover()
    selected = page.locator(".span[data-selected]")
    assert [await bar.get_attribute("data-author") for bar in await selected.all()] == [
        "small.small",
        "small.large",
        "small.large",
        "large",
    ]


async def test_every_model_has_its_account(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    whole, within = page.locator("#ledger-figures table").first, page.locator("#ledger-figures table").nth(1)
    await expect(whole.locator("thead th")).to_have_text(["S small", "L large"])
    await expect(within.locator("caption")).to_have_text("Of these, within the pair")
    await expect(within.locator("thead th")).to_have_text(["SS small.small", "SL small.large"])
    await expect(within.locator("tbody tr").first).to_have_text("drafting0.31 s\N{EN DASH}")
    await page.get_by_role("radio", name="Tokens").check()
    await expect(within.locator("tbody tr").first).to_have_text("tokens kept2210")
    await expect(page.locator("#ledger-figures .figures")).to_contain_text("accepted within small50% of 4")
    await expect(page.locator("#ledger-figures .legend")).to_contain_text("kept 42repaired 13")


async def test_a_live_run_of_a_pair_shows_the_same(opened: Open, saved: Callable[[str], str]) -> None:
    async with Replay(TRACE).serving() as service:
        live = await opened(service.url)
        await live.get_by_label("Problem", exact=True).fill(PROBLEM)
        await live.keyboard.press("Control+Enter")
        await expect(live.locator("#status")).to_have_text("Finished in 1.30 s")
        filed = await opened(saved(html(TRACE)))
        for part in ("#steps", "#models", "#ledger-figures", "#answer"):
            await expect(live.locator(part)).to_have_text(await filed.locator(part).inner_text(), use_inner_text=True)
        assert await looks(live) == await looks(filed)
        await live.close()


@schemes
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("trace", [TRACE, DEEP, REAL], ids=["made", "deep", "real"])
async def test_nothing_about_a_pair_keeps_anybody_out(
    trace: bytes, scheme: Scheme, width: int, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(trace)), color_scheme=scheme, viewport={"width": width, "height": 800})
    for folded in await page.locator(".rejected-drafts > summary").all():
        await folded.press("Enter")
    await expect(page.locator(".rejected-drafts[open]").first).to_be_visible()
    assert await violations(page) == []
    assert not await wide(page)
