"""
``python -m tests.evals.report.pictures RUN``: the pictures of the report in docs/images, taken again.

RUN is the folder of a run of the miniature pair; docs/evals.md has the command that measures it.
"""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, Page

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.prices import load_prices
from stepspec.evals.report.run_folder import Run, merge_folders, read_folder
from stepspec.evals.report.section import build_section

from ...browser import browsing, find

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
DOCS = Path(__file__).parents[3] / "docs"
IMAGES = DOCS / "images"
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 1090}, "device_scale_factor": 2}
SCREENS = 2  # of the phone, side by side
REMARK = (
    "Made for the documentation on a machine that was busy with other work: this shows the look of a report, and no "
    "measurement of the methods."
)


def remarked(run: Run) -> Run:
    """Return *run* with the remark in its first session, where `stepspec eval` keeps its own."""
    first, *others = run.folders
    session, *later = first.record["sessions"]
    sessions = [{**session, "remarks": [*session.get("remarks", ()), REMARK]}, *later]
    return replace(run, folders=(replace(first, record={**first.record, "sessions": sessions}), *others))


async def open_page(browser: Browser, document: str, options: dict[str, Any], scheme: Scheme) -> Page:
    page = await browser.new_page(**options, color_scheme=scheme, reduced_motion="reduce")
    await page.set_content(document)
    return page


async def take_desk(browser: Browser, document: str, scheme: Scheme) -> Path:
    """Take the page up to the first plots below the summary."""
    page = await open_page(browser, document, DESK, scheme)
    box = await page.locator(".block .columns").first.bounding_box()
    assert box is not None
    path = IMAGES / f"report-{scheme}.png"
    size = {"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + 24}
    await page.screenshot(path=path, full_page=True, clip=size)  # type: ignore[arg-type]
    await page.close()
    return path


async def take_phone(browser: Browser, document: str) -> Path:
    """Take the first screens of a phone, side by side."""
    page = await open_page(browser, document, PHONE, "light")
    width, height = PHONE["viewport"]["width"], PHONE["viewport"]["height"]
    screens = [
        await page.screenshot(full_page=True, clip={"x": 0, "y": height * at, "width": width, "height": height})
        for at in range(SCREENS)
    ]
    images = "".join(f'<img width="{width}" src="data:image/png;base64,{b64encode(one).decode()}">' for one in screens)
    style = "body{margin:0;display:flex;gap:24px;background:#fff}"
    await page.close()
    side_by_side = {"width": SCREENS * width + 24 * (SCREENS - 1), "height": height}
    page = await open_page(browser, f"<style>{style}</style>{images}", {**PHONE, "viewport": side_by_side}, "light")
    path = IMAGES / "report-phone.png"
    await page.screenshot(path=path)
    await page.close()
    return path


async def main(folder: Path) -> None:
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    (run,) = merge_folders([read_folder(folder)])
    section = build_section(remarked(run), load_prices(DOCS / "prices.toml"))
    document = to_html([(section, {})], "Made for docs/evals.md")
    async with browsing(executable) as browser:
        for scheme in SCHEMES:
            print(await take_desk(browser, document, scheme))
        print(await take_phone(browser, document))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
