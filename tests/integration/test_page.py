"""
The page in a real browser, on the service in front of the real pair: a run from its first draft to
its answer.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest
from playwright.async_api import expect

from stepspec.evals.benchmarks.miniature import generate

from ..browser import CURE, browsing, find
from ..worked import sentences
from .clients.conftest import KEY, serving_pair
from .conftest import Pair

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

WAIT = 60_000  # milliseconds


async def test_a_problem_is_solved_before_ones_eyes(pair: Pair, tmp_path: Path) -> None:
    executable = find()
    if executable is None:
        assert not os.environ.get("CI"), CURE
        pytest.skip(CURE)
    (problem,) = islice(generate(7), 1)
    with serving_pair(pair, tmp_path / "service.log") as service:
        async with browsing(executable) as browser:
            page = await browser.new_page()
            page.set_default_timeout(WAIT)
            await page.goto(service.base_url.removesuffix("/v1"))
            await page.get_by_label("API key").fill(KEY)
            await page.keyboard.press("Enter")
            await page.get_by_label("Problem", exact=True).fill(problem.text)
            await page.keyboard.press("Control+Enter")
            answer = page.locator("#answer .final-answer > :last-child")
            await expect(answer).to_have_text(str(problem.answer), timeout=WAIT)
            assert await page.locator("#steps > li").count() > len(sentences(problem.text))
            await expect(page.locator("#status")).to_contain_text("Finished in")
