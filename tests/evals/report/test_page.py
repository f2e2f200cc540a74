"""
The report in a real browser: legible in light and dark, on a phone and on paper, alone, and careful
with text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import expect

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import Section, build_section

from ...service.watch.page.conftest import Open, keeps_nobody_out
from .made import RECORDED, crowd, make_section

pytestmark = pytest.mark.asyncio(loop_scope="package")

HOSTILE = (
    '</title></script><script>document.title = "owned"</script><img src=x'
    ' onerror="document.title=1">{{style}}'
)
CROWD_TEXTS = [f"What is {n} + 1?" for n in range(20)]
EACH = """
elements => elements.map((element) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
    const linear = (each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts.map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const card = getComputedStyle(element.closest(".card")).backgroundColor;
  const lights = [light(getComputedStyle(element).fill), light(card)];
  const [low, high] = lights.sort((one, other) => one - other);
  return (high + 0.05) / (low + 0.05);
})
"""


@pytest.fixture(scope="module")
def section() -> Section:
    run = read_folder(RECORDED)
    return build_section(run)


@pytest.fixture(scope="module")
def document(section: Section) -> str:
    links = {(case.number, case.sample.arm): "traces/one.html" for case in section.cases["slowest"]}
    return to_html([(section, links)], "Made for a test")


async def test_the_report_is_accessible_on_a_desk_on_a_phone_and_on_paper(
    opened: Open, saved: Callable[[str], str], section: Section, document: str
) -> None:
    page = await opened(saved(document))
    await expect(page.get_by_role("heading", name="arithmetic")).to_be_visible()
    await keeps_nobody_out(page)  # and is left as wide as a phone
    region = page.get_by_role("region", name="Tokens of a problem, by model and fate")
    await region.focus()
    await page.keyboard.press("ArrowRight")
    await page.wait_for_function(
        "element => element.scrollLeft > 0", arg=await region.element_handle()
    )
    first = await region.locator("tbody th").first.bounding_box()
    assert first is not None
    assert first["x"] >= 0  # the name of the row stays
    sizes = await page.evaluate(
        "[...document.querySelectorAll('svg text')].map(one => one.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 10  # pixels on the screen, after whatever scaling
    for link in await page.locator(".contents a").all():
        assert await page.locator(str(await link.get_attribute("href"))).count() == 1
    assert await page.get_by_role("link", name="look").count() >= len(section.cases["slowest"])
    await page.set_viewport_size({"width": 718, "height": 1000})
    await page.emulate_media(media="print", color_scheme="dark")
    assert (
        await page.evaluate("getComputedStyle(document.documentElement).color") == "rgb(30, 28, 25)"
    )
    await expect(page.get_by_role("button", name="Theme")).to_be_hidden()
    cut = await page.evaluate(
        "[...document.querySelectorAll('.scroll, .drawing')].filter(one => one.scrollWidth >"
        " one.clientWidth + 1).map(one => one.ariaLabel)"
    )
    assert cut == []


async def test_ten_arms_fit_and_their_verdict_and_chart_are_on_the_first_screen(
    opened: Open, saved: Callable[[str], str], tmp_path: Path
) -> None:
    arms, done = crowd(10)
    section = make_section(tmp_path / "crowd", done=done, arms=arms, texts=CROWD_TEXTS)
    page = await opened(saved(to_html([(section, {})], "Made for a test")))
    await keeps_nobody_out(page)
    assert await page.locator(".summary .drawing .label").count() == len(arms)
    for width, height in ((1280, 800), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        chart = await page.locator(".summary .drawing").bounding_box()
        assert chart is not None
        assert chart["y"] + chart["height"] <= height
        verdict = await page.locator(".verdicts li").first.bounding_box()
        assert verdict is not None
        assert 0 < verdict["y"] < height


async def test_plots_are_legible_in_light_and_dark(
    opened: Open, saved: Callable[[str], str], document: str
) -> None:
    """Axe leaves text in SVG alone."""
    page = await opened(saved(document), viewport={"width": 1280, "height": 800})
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    grounds = set[str]()
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        await page.emulate_media(color_scheme=scheme)
        grounds.add(await page.evaluate(ground))
        texts = await page.locator(".drawing text").evaluate_all(EACH)
        assert len(texts) >= 12
        assert min(texts) >= 4.5
        marks = ".drawing .mark:not(.bound)"
        filled = await page.locator(marks).evaluate_all(EACH)
        assert len(filled) >= 10
        assert min(filled) >= 3
    assert len(grounds) == 2


async def test_nothing_in_a_run_becomes_part_of_the_page(
    opened: Open, saved: Callable[[str], str], tmp_path: Path
) -> None:
    models = {"small": HOSTILE, "large": "huge"}
    document = to_html(
        [(make_section(tmp_path / "run", texts=[HOSTILE] * 4, models=models), {})], HOSTILE
    )
    page = await opened(saved(document))
    await expect(page.locator(".generated")).to_have_text(HOSTILE)
    await expect(page.locator("td.long").first).to_contain_text(HOSTILE[:40])
    assert await page.title() == "stepspec report: sums"
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 0
