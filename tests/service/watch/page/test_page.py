"""
The page in a real browser, about a trace: what is seen, what can be done with it, and what must not
happen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import expect

from stepspec.service.watch.page import html

from .conftest import Open, keeps_nobody_out, wide
from .made import (
    ANSWER,
    PROBLEM,
    SLIP,
    STEPS,
    drawn,
    long_run,
    made,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

HOSTILE = (
    '</script><script>document.title = "owned"</script><img src=x'
    ' onerror="document.title=1"><!--<script>'
)
ODD = (
    f"{HOSTILE}\n\n",
    "عربي 🦊 \u2028 \u2029 \u0000 {{script}}\n\n",
    "unbroken" * 4000 + "\n\n",
    "done\n</think>",
)

# Made here, for a loop of their own cannot run in a test that has one.
TRACE = made()
OTHER = drawn("bild", 3, 2)
LONG = long_run(60)
HOSTILE_TRACE = made(HOSTILE, ODD, HOSTILE + " again\n\n", HOSTILE)


async def test_a_trace_is_shown_whole(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)), viewport={"width": 1280, "height": 800})
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
    await expect(page.locator("#status")).to_have_text("Finished in 1.38 s")
    await expect(page.locator("#ledger-figures .figures")).to_contain_text("75% of 4")
    await expect(page.locator(".span")).to_have_count(11)
    await expect(page.locator("#composer")).to_be_hidden()
    await expect(page.locator("#so-far")).to_be_hidden()
    await expect(page.locator("#speed p").first).to_have_text(
        "1.4\N{MULTIPLICATION SIGN} as fast as the large model alone, estimated"
    )
    await page.get_by_text("How this is estimated").click()
    await expect(page.locator("#factor-how")).to_contain_text("34.3 ms a token, measured on 21")
    await expect(page.locator("#factor-how")).to_contain_text("the run took 1.38 s")
    rows = page.locator("#ledger-figures tbody tr")
    await expect(rows.first).to_have_text("drafting0.50 s\N{EN DASH}")
    await expect(page.locator("#ledger-figures .legend")).to_contain_text("repaired 0.44 s")
    await page.get_by_role("radio", name="Seconds").focus()
    await page.keyboard.press("ArrowRight")
    await expect(rows.first).to_contain_text("tokens kept")
    await expect(page.locator("#ledger-figures .legend")).to_contain_text("repaired 13")
    # Bars and ticks have the numbers of steps, those of the ticks below the name of their row.
    await expect(page.locator(".commit text")).to_have_text(["1", "2", "3", "4"])
    numbers = await page.locator(".inside text").all_text_contents()
    assert numbers.count("2") == 3  # draft, verdict and repair
    assert "answer" in numbers
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        # In one call, because the time line is redrawn when its width has changed, some time after
        # the window's.
        above, below = await page.evaluate(
            "['.steps-name', '.commit text'].map((name) =>"
            " document.querySelector(name).getBoundingClientRect())"
        )
        assert above["bottom"] <= below["top"] + 4  # the boxes of text are taller than its letters


async def test_a_run_that_was_cut_short_is_shown_so_far(
    opened: Open, saved: Callable[[str], str]
) -> None:
    lines = TRACE.splitlines(keepends=True)
    page = await opened(saved(html(b"".join(lines[:12]))))
    await expect(page.locator("#status")).to_have_text("Unfinished")
    await expect(page.locator("#so-far")).to_be_visible()
    await expect(page.locator("#answering")).to_be_hidden()
    # one step is committed, and none is repaired
    page = await opened(saved(html(b"".join(lines[:6]))))
    await expect(page.locator("#factor")).to_have_text("Unknown")
    await expect(page.locator("#factor-how")).to_contain_text("16 are needed")
    none = page.get_by_text("No draft was rejected.")
    await expect(none).to_be_hidden()
    await page.get_by_label("Rejected only").check()
    await expect(none).to_be_visible()


async def test_the_time_line_is_read_with_keyboard_and_mouse(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(TRACE)))
    stops = page.locator(".span[tabindex='0']")
    selected = page.locator(".span[data-selected]")
    await expect(stops).to_have_count(1)
    await stops.focus()
    details = page.locator("#details")
    await expect(details).to_contain_text("small writes: draft of step 1 · 0.00 to 0.12 s")
    await page.keyboard.press("ArrowRight")
    await expect(details).to_contain_text("small writes: draft of step 2, rejected")
    await expect(page.locator(".step[data-selected]")).to_contain_text(SLIP.strip())
    await expect(selected).to_have_count(3)
    await page.keyboard.press("ArrowDown")
    await expect(details).to_contain_text("large is asked to judge: verdict on step")
    await expect(stops).to_have_count(1)
    await page.reload()
    await page.locator(".step").nth(1).hover()
    await expect(selected).to_have_count(3)
    await page.mouse.move(1, 1)  # in the margin; the page need not scroll for it
    await expect(selected).to_have_count(0)


async def test_motion_and_what_only_a_screen_can_use_are_left_out(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(TRACE)), reduced_motion="reduce")
    moving = "getComputedStyle(document.querySelector('.step')).animationName"
    assert await page.evaluate(moving) == "none"
    await page.emulate_media(reduced_motion="no-preference")
    assert await page.evaluate(moving) == "appear"
    await page.emulate_media(media="print", color_scheme="dark")
    await expect(page.get_by_role("button", name="Open trace")).to_be_hidden()
    await expect(page.get_by_label("Rejected only")).to_be_hidden()
    ground = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert not await wide(page)


DROP = """([name, text]) => {
  const files = new DataTransfer();
  files.items.add(new File([text], name));
  const drag = (type) => new DragEvent(type, { dataTransfer: files, cancelable: true });
  for (const type of ["dragover", "drop"]) document.dispatchEvent(drag(type));
}"""


async def test_another_trace_can_be_opened_saved_and_dropped(
    opened: Open, saved: Callable[[str], str], tmp_path: Path
) -> None:
    page = await opened(saved(html(OTHER)))
    (tmp_path / "other.jsonl").write_bytes(TRACE)
    await page.locator("#file").set_input_files(tmp_path / "other.jsonl")
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save trace").click()
    path = await (await download.value).path()
    assert list(map(json.loads, path.read_text().splitlines())) == list(
        map(json.loads, TRACE.splitlines())
    )
    await page.reload()
    await expect(page.locator("#conversation")).not_to_have_text(PROBLEM)
    await page.evaluate(DROP, ["made.jsonl", TRACE.decode()])
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await page.evaluate(DROP, ["notes.txt", "hello"])
    await expect(page.get_by_role("alert")).to_contain_text(
        "notes.txt is not a trace: line 1 is no event of a run."
    )
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await page.evaluate(DROP, ["made.jsonl", TRACE.decode()])
    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_nothing_in_a_trace_becomes_part_of_the_page(
    opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(html(HOSTILE_TRACE)))
    await expect(page.locator("#answer")).to_contain_text(HOSTILE)
    await expect(page.locator("#conversation")).to_have_text(HOSTILE)
    for text in (HOSTILE, HOSTILE + " again", "عربي 🦊", ODD[2].strip()):
        await expect(page.locator("#steps")).to_contain_text(text)
    assert await page.title() == "stepspec"
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 2
    for width in (320, 390, 768, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        assert not await wide(page), width


@pytest.mark.parametrize("trace", [LONG, TRACE], ids=["long", "short"])
async def test_nobody_is_kept_out(trace: bytes, opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(trace)))
    await page.get_by_text("How this is estimated").click()
    for button in (".fold-button", ".requests-button"):
        if await page.locator(button).count():
            await page.locator(button).first.click()
    await page.get_by_role("radio", name="Tokens").check()
    await page.locator(".span[tabindex='0']").focus()
    await keeps_nobody_out(page)
