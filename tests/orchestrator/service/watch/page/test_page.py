"""The page in a real browser, about a trace: what is seen, what can be done with it, and what must not happen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from stepspec.orchestrator.service.watch.page import html

from .conftest import Open
from .made import ANSWER, PROBLEM, SLIP, STEPS, drawn, made

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = '</script><script>document.title = "owned"</script><img src=x onerror="document.title=1"><!--<script>'
ODD = (
    f"{HOSTILE}\n\n",
    "عربي 🦊 \u2028 \u2029 \u0000 {{script}}\n\n",
    "unbroken" * 4000 + "\n\n",
    "done\n</think>",
)

# Made here, for a loop of their own cannot run in a test that has one.
TRACE, OTHER = made(), drawn("bild", 3, 2)
HOSTILE_TRACE = made(HOSTILE, ODD, HOSTILE + " again\n\n", HOSTILE)


async def test_a_trace_is_shown_whole(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    steps = page.locator(".step")
    await expect(steps).to_have_count(4)
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await expect(steps.nth(0)).to_contain_text(STEPS[0].strip())
    await expect(steps.nth(0).locator(".meta")).to_contain_text("smallverifiedgrade 8.75")
    await expect(steps.nth(1).locator(".attempt").first.locator(".text")).to_have_text(SLIP.strip())
    await expect(steps.nth(1).locator("del")).to_have_text("18")
    await expect(steps.nth(1).locator("ins")).to_have_text("16")
    await expect(steps.nth(1).locator(".meta").first).to_contain_text("smallrejectedgrade 2.25")
    await expect(steps.nth(1).locator(".attempt").nth(1)).to_contain_text(STEPS[1].strip())
    await expect(page.locator("#answer .final-answer > :last-child")).to_have_text("16")
    await expect(page.locator("#answer")).to_contain_text(ANSWER.strip())
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await expect(page.locator("#ledger-figures .figures")).to_contain_text("75% of 4")
    await expect(page.locator(".span")).to_have_count(11)
    await expect(page.locator("#composer")).to_be_hidden()
    await expect(page.locator("#so-far")).to_be_hidden()


async def test_a_run_that_was_cut_short_is_shown_so_far(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(b"".join(TRACE.splitlines(keepends=True)[:12]))))
    await expect(page.locator("#status")).to_have_text("Unfinished")
    await expect(page.locator("#so-far")).to_be_visible()
    await expect(page.locator("#answering")).to_be_hidden()


async def test_the_slider_says_which_verdicts_would_change(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    slider, note = page.get_by_role("slider"), page.locator("#threshold-summary")
    await expect(note).to_have_text("No verdict would change.")
    await expect(page.locator("#threshold")).to_contain_text("the later chain would have been another one")
    await slider.press("End")
    await expect(note).to_have_text("3 accepted drafts would be rejected.")
    await expect(page.locator("#threshold-value")).to_have_text("9.00")
    await expect(page.locator(".flip:not(:empty)")).to_have_text(["would be rejected"] * 3)
    await slider.press("Home")
    await expect(note).to_have_text("1 rejected draft would be accepted.")
    await expect(page.locator(".step[data-flipped] .flip:not(:empty)")).to_have_text(["would be accepted"])
    await page.get_by_role("button", name="Back to the run's own").click()
    await expect(note).to_have_text("No verdict would change.")


async def test_the_time_line_is_read_with_the_keyboard(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    stops = page.locator(".span[tabindex='0']")
    await expect(stops).to_have_count(1)
    await stops.focus()
    details = page.locator("#details")
    await expect(details).to_contain_text("small writes: draft of step 1 · 0.00 to 0.12 s")
    await page.keyboard.press("ArrowRight")
    await expect(details).to_contain_text("small writes: draft of step 2, rejected")
    await expect(page.locator(".step[data-selected]")).to_contain_text(SLIP.strip())
    await expect(page.locator(".span[data-selected]")).to_have_count(3)
    await page.keyboard.press("ArrowDown")
    await expect(details).to_contain_text("large is asked to judge: verdict on step")
    await expect(stops).to_have_count(1)


async def test_pointing_at_a_step_shows_its_spans(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    await page.locator(".step").nth(1).hover()
    kinds = page.locator(".span[data-selected]")
    await expect(kinds).to_have_count(3)
    await page.mouse.move(1, 1)  # in the margin; the page need not scroll for it
    await expect(kinds).to_have_count(0)


async def test_the_theme_can_be_chosen(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)), color_scheme="light")

    async def paper() -> str:
        return str(await page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    light, switch = await paper(), page.get_by_role("button", name="Theme")
    await switch.click()
    assert await paper() == light
    await switch.click()
    await expect(switch).to_have_text("Theme: dark")
    assert await paper() != light
    await page.reload()
    assert await paper() != light


async def test_another_trace_can_be_opened_and_saved(opened: Open, saved: Callable[[str], str], tmp_path: Path) -> None:
    page = await opened(saved(html(OTHER)))
    (tmp_path / "other.jsonl").write_bytes(TRACE)
    await page.locator("#file").set_input_files(tmp_path / "other.jsonl")
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save trace").click()
    path = await (await download.value).path()
    assert list(map(json.loads, path.read_text().splitlines())) == list(map(json.loads, TRACE.splitlines()))


DROP = """([name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name));
  const drag = (type) => new DragEvent(type, { dataTransfer: files, cancelable: true });
  for (const type of ["dragover", "drop"]) document.dispatchEvent(drag(type));
}"""


async def test_a_trace_can_be_dropped_and_what_is_none_is_refused(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(OTHER)))
    await page.evaluate(DROP, ["made.jsonl", TRACE.decode()])
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await page.evaluate(DROP, ["notes.txt", "hello"])
    await expect(page.get_by_role("alert")).to_contain_text("notes.txt is not a trace: line 1 is no event of a run.")
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await page.evaluate(DROP, ["made.jsonl", TRACE.decode()])
    await expect(page.get_by_role("alert")).to_be_hidden()


async def wide(page: Page) -> bool:
    return bool(await page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
async def test_nothing_in_a_trace_becomes_part_of_the_page(
    width: int, opened: Open, saved: Callable[[str], str]
) -> None:
    document = html(HOSTILE_TRACE)
    page = await opened(saved(document), viewport={"width": width, "height": 800})
    await expect(page.locator("#answer")).to_contain_text(HOSTILE)
    await expect(page.locator("#conversation")).to_have_text(HOSTILE)
    for text in (HOSTILE, HOSTILE + " again", "عربي 🦊", ODD[2].strip()):
        await expect(page.locator("#steps")).to_contain_text(text)
    assert await page.title() == "stepspec"
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 2
    assert not await wide(page)
