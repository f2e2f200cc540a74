"""
``python -m tests.evals.report.pictures``: the picture of the report in docs/images, taken again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from stepspec.evals.report.formats import to_html
from stepspec.evals.report.run_folder import read_folder
from stepspec.evals.report.section import build_section

from ...browser import browsing, find

FOLDER = Path(__file__).parent / "run"  # of the miniature pair
PICTURE = Path(__file__).parents[3] / "docs" / "images" / "report-light.png"


async def main() -> None:
    """Take the page up to the first plots below the summary."""
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    run = read_folder(FOLDER)
    async with browsing(executable) as browser:
        page = await browser.new_page(
            viewport={"width": 1280, "height": 800}, device_scale_factor=1.5, color_scheme="light"
        )
        await page.set_content(to_html([(build_section(run), {})], "Made for docs/evals.md"))
        box = await page.locator(".block .columns").first.bounding_box()
        assert box is not None
        size = {"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + 24}
        await page.screenshot(path=PICTURE, full_page=True, clip=size)  # type: ignore[arg-type]
    print(PICTURE)


if __name__ == "__main__":
    asyncio.run(main())
