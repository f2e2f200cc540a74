"""``python -m tests.orchestrator.service.page.pictures``: the pictures in docs/images, taken again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stepspec.orchestrator.service.page import html

from ....browser import browsing, find

TRACES = Path(__file__).parent / "traces"
IMAGES = Path(__file__).parents[4] / "docs" / "images"
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, "device_scale_factor": 1.5}
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 1180}, "device_scale_factor": 2}
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "page-light": ("specreason", {**DESK, "color_scheme": "light"}),
    "page-dark": ("specreason", {**DESK, "color_scheme": "dark"}),
    "page-phone": ("specreason", {**PHONE, "color_scheme": "light"}),
    "page-nested": ("nested", {**DESK, "color_scheme": "light", "device_scale_factor": 1.2}),
}


async def main() -> None:
    executable = find()
    if executable is None:
        raise SystemExit("no browser: run `make browser`")
    IMAGES.mkdir(exist_ok=True)
    async with browsing(executable) as browser:
        for name, (trace, options) in PICTURES.items():
            page = await browser.new_page(**options, reduced_motion="reduce")
            await page.set_content(html((TRACES / f"{trace}.jsonl").read_bytes()))
            await page.locator("#answer .final-answer > :last-child").wait_for()
            for summary in await page.locator(".rejected-drafts > summary").all():
                await summary.press("Enter")
            await page.locator("body").evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
            await page.screenshot(path=IMAGES / f"{name}.png", full_page="phone" not in name)
            await page.close()
            print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
