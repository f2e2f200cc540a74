"""The page on the real service: every method it offers can be chosen, and a run is watched to its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from playwright.async_api import expect
from pydantic import SecretStr

from stepspec import policies
from stepspec.orchestrator.service.settings import ServiceSettings

from .....browser import browsing
from ....endpoints.server import Refuse
from ...served import ANSWER, serving
from .conftest import Open

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = "What is 1 + 1?"


async def test_a_run_on_the_service_is_watched_to_its_end(opened: Open) -> None:
    async with serving() as served:
        served.large.gate = served.small.gate = asyncio.Semaphore(0)
        page = await opened(served.base)
        await expect(page.locator("#method option")).to_have_text(["auto (specreason)", *policies.METHODS])
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        async with page.expect_event("requestfinished", lambda request: request.method == "POST"):
            await page.get_by_role("button", name="Run").click()
            await expect(page.locator("#models")).to_contain_text("small: tiny")
            await expect(page.locator("#status")).to_contain_text("Running")
            for _ in range(1000):
                served.small.gate.release()
        await expect(page.locator(".step")).to_have_count(3)
        await expect(page.locator("#answer .final-answer > :last-child")).to_have_text("2")
        await expect(page.locator("#answer")).to_contain_text(ANSWER)
        await expect(page.locator("#status")).to_contain_text("Finished in")
        await expect(page.locator(".step[data-fate='kept']")).to_have_count(3)
        await expect(page.locator("#ledger-figures .figures")).to_contain_text("100% of 3")


async def test_options_reach_the_method(opened: Open) -> None:
    async with serving() as served:
        page = await opened(served.base)
        await page.get_by_label("Method", exact=True).select_option("random")
        await page.get_by_text("Options of the method").click()
        await page.get_by_label("p", exact=True).fill("0")
        await page.get_by_label("Ahead").fill("0")
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#status")).to_contain_text("Finished in")
        await expect(page.locator(".step[data-fate='rejected'] .attempt + .attempt")).to_have_count(3)


async def test_no_other_page_may_frame_it(opened: Open, saved: Callable[[str], str]) -> None:
    async with serving() as served:
        page = await opened(saved(f'<iframe src="{served.base}/"></iframe>'), console=False)
        await expect(page.locator("iframe")).to_be_visible()
        assert await page.frames[1].locator("#problem").count() == 0
        await page.goto(served.base)
        await expect(page.locator("#problem")).to_be_visible()


async def test_the_page_of_another_site_can_run_nothing(opened: Open, saved: Callable[[str], str]) -> None:
    """Without a key: it may send such a request, and only may not read the answer, so the service has to refuse."""
    async with serving() as served:
        page = await opened(saved("<p>elsewhere</p>"), console=False)
        body = {"model": "auto", "messages": [{"role": "user", "content": PROBLEM}]}
        send = "([url, body]) => fetch(url, {method: 'POST', mode: 'no-cors', body}).then(reply => reply.type)"
        sent = await page.evaluate(send, [f"{served.base}/v1/chat/completions", json.dumps(body)])
        assert sent == "opaque"
        assert [(request.method, request.status) for request in served.recorded.requests] == [("POST", 403)]
        assert served.small.heads == served.large.heads == []


async def test_a_site_whose_name_is_made_to_point_to_this_machine_gets_nothing(executable: str) -> None:
    rebound = "--host-resolver-rules=MAP rebound.example 127.0.0.1"
    async with serving() as served, browsing(executable, rebound) as browser:
        page = await browser.new_page()
        url = served.base.replace("127.0.0.1", "rebound.example")
        assert url != served.base
        for path in ("/", "/v1/models", "/metrics"):
            response = await page.goto(url + path)
            assert response
            assert (response.status, "host_not_allowed" in await response.text()) == (403, True)
        response = await page.goto(served.base)
        assert response
        assert response.status == 200


async def test_stopping_ends_the_run_on_the_servers(opened: Open) -> None:
    async with serving() as served:
        served.small.gate = asyncio.Semaphore(2)
        page = await opened(served.base)
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#status")).to_contain_text("Running")
        await page.get_by_role("button", name="Stop").click()
        async with asyncio.timeout(10):
            await served.small.left.wait()


async def test_the_services_key_and_its_errors_are_understood(opened: Open) -> None:
    settings = ServiceSettings(port=0, keys=(SecretStr("sesame"),))
    async with serving(settings, policy="large") as served:
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 9)
        page = await opened(served.base, console=False)
        await page.get_by_label("API key").fill("sesame")
        await page.keyboard.press("Enter")
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.get_by_label("Ahead").fill("0")
        await page.keyboard.press("Control+Enter")
        await expect(page.get_by_role("alert")).to_contain_text("the large model")
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("alert")).to_contain_text("try again")
