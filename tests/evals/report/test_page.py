"""The report in a real browser: legible in light and dark, on a phone and on paper, alone, and careful with text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import expect

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.prices import Prices, load_prices
from stepspec.evals.report.run_folder import merge_folders, read_folder
from stepspec.evals.report.section import build_section

from ...orchestrator.service.watch.page.conftest import Open, violations, wide
from .made import RECORDED, crowd, make_section

pytestmark = pytest.mark.asyncio(loop_scope="package")

HOSTILE = '</title></script><script>document.title = "owned"</script><img src=x onerror="document.title=1">{{style}}'
PRICES = Path(__file__).parents[3] / "docs" / "prices.toml"
(RUN,) = merge_folders([read_folder(RECORDED)])
LINKS = {(case.number, case.arm): "traces/one.html" for case in build_section(RUN, Prices()).cases.slowest}
DOCUMENT = to_html([(build_section(RUN, load_prices(PRICES)), LINKS)], "Made for a test")
ARMS, DONE = crowd(10)
CROWD_TEXTS = [f"What is {n} + 1?" for n in range(20)]
Scheme = Literal["light", "dark"]
EACH = """
elements => elements.map((element) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
    const [r, g, b] = parts.map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const card = getComputedStyle(element.closest(".card")).backgroundColor;
  const [low, high] = [light(getComputedStyle(element).fill), light(card)].sort((one, other) => one - other);
  return (high + 0.05) / (low + 0.05);
})
"""


@pytest.fixture
def crowded(tmp_path: Path) -> str:
    """The report of ten arms with long names, several of them at the same place."""
    section = make_section(tmp_path / "crowd", done=DONE, arms=ARMS, texts=CROWD_TEXTS)
    return to_html([(section, {})], "Made for a test")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
async def test_the_report_is_accessible(width: int, scheme: Scheme, opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(DOCUMENT), color_scheme=scheme, viewport={"width": width, "height": 800})
    await expect(page.get_by_role("heading", name="arithmetic")).to_be_visible()
    assert await violations(page) == []
    assert not await wide(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_ten_arms_are_accessible(
    width: int, scheme: Scheme, crowded: str, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(crowded), color_scheme=scheme, viewport={"width": width, "height": 800})
    assert await violations(page) == []
    assert not await wide(page)
    shown = page.locator(f".summary .drawing.{'narrow' if width < 700 else 'wide'} .label")
    assert await shown.count() == len(ARMS)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
async def test_the_verdict_and_the_chart_of_ten_arms_are_on_the_first_screen(
    width: int, height: int, crowded: str, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(crowded), viewport={"width": width, "height": height})
    verdict = await page.locator(".headline").bounding_box()
    chart = await page.locator(f".summary .drawing.{'narrow' if width < 700 else 'wide'}").bounding_box()
    assert verdict is not None
    assert chart is not None
    assert 0 < verdict["y"] < chart["y"]
    assert chart["y"] + chart["height"] <= height


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_plots_are_legible(scheme: Scheme, opened: Open, saved: Callable[[str], str]) -> None:
    """Axe leaves text in SVG alone."""
    page = await opened(saved(DOCUMENT), color_scheme=scheme, viewport={"width": 1280, "height": 800})
    texts = await page.locator(".drawing.wide text, .side-by-side text").evaluate_all(EACH)
    assert len(texts) > 50
    assert min(texts) >= 4.5
    marks = (".mark use:not([fill*='card'])", ".part path[fill^='var(']:not([fill*='card'])")
    chosen = ", ".join(f"{place} {mark}" for place in (".drawing.wide", ".side-by-side") for mark in marks)
    filled = await page.locator(chosen).evaluate_all(EACH)
    assert len(filled) > 10
    assert min(filled) >= 3


@pytest.mark.parametrize(("width", "shown"), [(375, "narrow"), (1280, "wide")])
async def test_a_phone_gets_drawings_of_its_own(
    width: int, shown: str, opened: Open, saved: Callable[[str], str]
) -> None:
    page = await opened(saved(DOCUMENT), viewport={"width": width, "height": 800})
    for name in ("wide", "narrow"):
        for drawing in await page.locator(f".drawing.{name}").all():
            await expect(drawing).to_be_visible(visible=name == shown)
    sizes = await page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(one => one.checkVisibility())"
        ".map(one => one.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 10  # pixels on the screen, after whatever scaling


async def test_the_theme_button_cycles(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(DOCUMENT), color_scheme="light")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await page.evaluate(ground)
    button = page.get_by_role("button", name="Theme")
    await button.click()
    await expect(button).to_have_text("Theme: light")
    await button.click()
    await expect(button).to_have_text("Theme: dark")
    assert await page.evaluate(ground) != light


async def test_a_table_is_reached_and_scrolled_with_the_keyboard(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(DOCUMENT), viewport={"width": 375, "height": 800})
    region = page.get_by_role("region", name="Tokens of a problem, by model and fate")
    await region.focus()
    await page.keyboard.press("ArrowRight")
    await page.wait_for_function("element => element.scrollLeft > 0", arg=await region.element_handle())
    first = await region.locator("tbody th").first.bounding_box()
    assert first is not None
    assert first["x"] >= 0  # the name of the row stays


async def test_paper_is_light_and_shows_every_column(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(DOCUMENT), color_scheme="dark", viewport={"width": 718, "height": 1000})
    await page.emulate_media(media="print", color_scheme="dark")
    assert await page.evaluate("getComputedStyle(document.documentElement).color") == "rgb(30, 28, 25)"
    await expect(page.get_by_role("button", name="Theme")).to_be_hidden()
    cut = await page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1)"
        ".map(one => one.ariaLabel)"
    )
    assert cut == []


async def test_contents_and_links_lead_somewhere(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(DOCUMENT))
    for link in await page.locator(".contents a").all():
        target = await link.get_attribute("href")
        assert await page.locator(str(target)).count() == 1
    assert await page.get_by_role("link", name="look").count() >= len(LINKS)


async def test_nothing_in_a_run_becomes_part_of_the_page(
    opened: Open, saved: Callable[[str], str], tmp_path: Path
) -> None:
    models = {"small": HOSTILE, "large": "huge"}
    document = to_html([(make_section(tmp_path / "run", texts=[HOSTILE] * 4, models=models), {})], HOSTILE)
    page = await opened(saved(document))
    await expect(page.locator(".generated")).to_have_text(HOSTILE)
    await expect(page.locator("td.long").first).to_contain_text(HOSTILE[:40])
    assert await page.title() == "stepspec report: sums"
    assert await page.locator("img").count() == 0
    assert await page.locator("script").count() == 1
