"""
``python -m tests.orchestrator.service.watch.page.pictures``: the pictures in docs/images, taken
again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stepspec.service.watch.page import html

from ....browser import browsing, find
from .made import long_run

TRACES = Path(__file__).parent / "traces"
IMAGES = Path(__file__).parents[5] / "docs" / "images"
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5}
CUT = ("page-long",)  # after one screen
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "page-light": ("specreason", {**DESK, "color_scheme": "light"}),
    "page-long": ("long", {**DESK, "color_scheme": "light", "device_scale_factor": 1.2}),
}


async def main(documents: dict[str, str]) -> None:
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    IMAGES.mkdir(exist_ok=True)
    async with browsing(executable) as browser:
        for name, (trace, options) in PICTURES.items():
            page = await browser.new_page(**options, reduced_motion="reduce")
            await page.set_content(documents[trace])
            await page.locator("#answer .final-answer > :last-child").wait_for()
            await page.locator("body").evaluate(
                "() => { document.activeElement.blur(); scrollTo(0, 0); }"
            )
            await page.screenshot(path=IMAGES / f"{name}.png", full_page=name not in CUT)
            await page.close()
            print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    traces = {path.stem: path.read_bytes() for path in TRACES.glob("*.jsonl")} | {
        "long": long_run()
    }
    asyncio.run(main({name: html(trace) for name, trace in traces.items()}))
