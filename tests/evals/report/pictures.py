"""``python -m tests.evals.report.pictures``: the pictures of the report in docs/images, taken again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.prices import load_prices
from stepspec.evals.report.run_folder import merge_folders, read_folder
from stepspec.evals.report.section import build_section

from ...browser import browsing, find
from .made import RECORDED

DOCS = Path(__file__).parents[3] / "docs"
IMAGES = DOCS / "images"
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 1205}, "device_scale_factor": 1.5}
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 1180}, "device_scale_factor": 2}
PICTURES: dict[str, dict[str, Any]] = {
    "report-light": {**DESK, "color_scheme": "light"},
    "report-dark": {**DESK, "color_scheme": "dark"},
    "report-phone": {**PHONE, "color_scheme": "light"},
}


async def main() -> None:
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    (run,) = merge_folders([read_folder(RECORDED)])
    document = to_html([(build_section(run, load_prices(DOCS / "prices.toml")), {})], "Made for docs/reports.md")
    async with browsing(executable) as browser:
        for name, options in PICTURES.items():
            page = await browser.new_page(**options, reduced_motion="reduce")
            await page.set_content(document)
            await page.screenshot(path=IMAGES / f"{name}.png")
            await page.close()
            print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
