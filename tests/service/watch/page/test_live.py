"""
The live page in a real browser: a run to its end, everything that can keep it from that, and the
real service.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from stepspec import policies

from ...served import ANSWER, chosen, serving
from .conftest import Open, keeps_nobody_out
from .made import PROBLEM, SLIP, STEPS, made
from .replay import Replay

pytestmark = pytest.mark.asyncio(loop_scope="package")

TRACE = made()
LINES = TRACE.splitlines()
DONE = "Finished in 1.38 s"
ASKED = "What is 1 + 1?"  # of the real service
DOWN = {"message": "the large model is gone", "type": "server_error", "param": None, "code": None}
Start = Callable[..., Awaitable[Replay]]


@pytest_asyncio.fixture(loop_scope="package")
async def serve() -> AsyncGenerator[Start]:
    """Start a service that replays a trace."""
    async with AsyncExitStack() as stack:

        async def start(trace: bytes = TRACE, **settings: Any) -> Replay:
            return await stack.enter_async_context(Replay(trace, **settings).serving())

        yield start


async def run(page: Page, problem: str = PROBLEM) -> None:
    await page.get_by_label("Problem", exact=True).fill(problem)
    await page.keyboard.press("Control+Enter")


def until(kind: str, number: int = 1) -> int:
    """How many lines of the trace there are up to the event *kind*, for the so many-th time."""
    places = [place for place, line in enumerate(LINES, 1) if f'"event":"{kind}"'.encode() in line]
    return places[number - 1]


async def test_a_run_is_shown_step_by_step_to_its_end(serve: Start, opened: Open) -> None:
    gate = asyncio.Semaphore(0)
    released = 0
    service = await serve(gate=gate)
    page = await opened(service.url)

    def tell(lines: int) -> None:
        nonlocal released
        for _ in range(lines - released):
            gate.release()
        released = lines

    await run(page)
    steps = page.locator(".step")
    tell(until("Drafted"))
    await expect(steps.first).to_contain_text("draft, not yet judged")
    await expect(page.locator("#conversation")).to_have_text(PROBLEM)
    await expect(page.locator("#status")).to_have_text("Running, 0.12 s")
    grey = await colour(steps.first)
    tell(until("Committed"))
    await expect(steps.first).to_contain_text("verified")
    assert await colour(steps.first) != grey
    tell(until("Judged", 2))
    await expect(steps.nth(1).locator("del")).to_have_text(SLIP.strip())
    await expect(steps.nth(1).locator(".attempt")).to_have_count(1)
    tell(until("Committed", 2))
    await expect(steps.nth(1).locator(".attempt").nth(1)).to_contain_text(STEPS[1].strip())
    await expect(page.locator("#so-far")).to_be_visible()
    tell(until("Answering", 3))
    await expect(page.locator("#answer")).to_have_text("Maya has \\")
    await expect(page.get_by_role("button", name="Stop")).to_be_visible()
    tell(len(LINES))
    await expect(page.locator("#status")).to_have_text(DONE)
    await expect(page.locator("#answer .final-answer > :last-child")).to_have_text("16")
    await expect(page.get_by_role("button", name="Run")).to_be_visible()
    await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    await expect(page.locator("#announcements")).to_contain_text("Answer: 16")
    assert service.requests == [{"problem": PROBLEM, "model": "auto", "stepspec": {"options": {}}}]
    await page.locator("body").evaluate(
        "body => { document.activeElement.blur(); scrollTo(0, 0); }"
    )
    reached: set[str] = set()
    for _ in range(20):
        await page.keyboard.press("Tab")
        reached.add(
            await page.evaluate(
                "document.activeElement.id || document.activeElement.getAttribute('class') || ''"
            )
        )
    every = {"open", "save", "problem", "method", "ahead", "start", "span"}
    assert every <= reached


async def colour(step: Locator) -> str:
    return str(await step.locator(".text").first.evaluate("one => getComputedStyle(one).color"))


BUSY = {**DOWN, "type": "service_unavailable_error"}
WRONG = {**DOWN, "type": "invalid_request_error", "param": "ahead"}
HALF = until("Committed")
ERRORS: list[tuple[Any, int | None, str, int]] = [
    (
        (503, BUSY, {"Retry-After": "2"}),
        None,
        "gone The service or a model is not ready: try again in 2 s.",
        0,
    ),
    ((400, WRONG, {}), None, "Change “ahead”, and run again.", 0),
    ((200, DOWN, {}), HALF, "the large model is gone", 1),
    (None, HALF, "The stream ended before the run did.", 1),
]


async def test_every_error_is_shown_with_what_to_do_and_keeps_nobody_out(
    serve: Start, opened: Open
) -> None:
    service = await serve()
    page = await opened(service.url, console=False)
    await page.get_by_text("Options of the method").click()
    await keeps_nobody_out(page)
    alert = page.get_by_role("alert")
    status = page.locator("#status")
    for service.refusal, service.breaks, message, steps in ERRORS:
        await run(page)
        await expect(alert).to_contain_text(message)
        await expect(page.locator(".step")).to_have_count(steps)
        if steps and service.refusal:
            await keeps_nobody_out(page)
        service.refusal = service.breaks = None
        await page.get_by_role("button", name="Run").click()
        await expect(status).to_have_text(DONE)
        await expect(alert).to_be_hidden()
    await page.route("**/live", lambda route: route.abort())
    await run(page)
    await expect(alert).to_contain_text("Is “stepspec serve” still running?")


async def test_a_key_is_requested_and_kept_for_the_tab(serve: Start, opened: Open) -> None:
    service = await serve(key="sesame")
    page = await opened(service.url, console=False)
    dialog = page.get_by_role("dialog", name="This service asks for a key")
    await expect(dialog).to_be_visible()
    await keeps_nobody_out(page)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("alert")).to_contain_text("Give the service's key")
    await run(page)
    await expect(dialog).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("alert")).to_contain_text("this service asks for a key")
    assert service.requests == []
    await page.reload()
    await expect(page.locator("#key-wrong")).to_be_hidden()
    await page.get_by_label("API key").fill("guess")
    await page.keyboard.press("Enter")
    await expect(page.locator("#key-wrong")).to_be_visible()
    await page.get_by_label("API key").fill("sesame")
    await page.get_by_role("button", name="Use key").click()
    await expect(dialog).to_be_hidden()
    await run(page)
    await expect(page.locator("#status")).to_have_text(DONE)
    await page.reload()
    await expect(page.get_by_label("Method")).to_be_enabled()
    await expect(dialog).to_be_hidden()


# The real service.


async def test_runs_on_the_service_are_watched_to_their_end_or_stopped(opened: Open) -> None:
    # A stream without a step begins after so many seconds.
    async with serving(chosen(keep_alive=0.2)) as served:
        served.large.gate = served.small.gate = asyncio.Semaphore(0)
        page = await opened(served.base)
        await expect(page.locator("#method option")).to_have_text(
            ["auto (specreason)", *policies.METHODS]
        )
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("alert")).to_contain_text("There is no problem to solve.")
        await page.get_by_label("Problem", exact=True).fill(ASKED)
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
        await page.get_by_label("Method", exact=True).select_option("random")
        await page.get_by_text("Options of the method").click()
        await page.get_by_label("p", exact=True).fill("0")
        await page.get_by_label("Ahead").fill("0")
        await page.get_by_role("button", name="Run").click()
        await expect(page.locator(".step[data-fate='rejected'] .attempt + .attempt")).to_have_count(
            3
        )
        await expect(page.locator("#status")).to_contain_text("Finished in")
        served.small.gate = asyncio.Semaphore(2)
        served.small.left.clear()
        await page.get_by_role("button", name="Run").click()
        await expect(page.locator("#status")).to_contain_text("Running")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Run")).to_be_visible()
        await expect(page.get_by_role("alert")).to_be_hidden()
        async with asyncio.timeout(60):
            await served.small.left.wait()


async def test_no_page_of_another_site_may_frame_the_service_or_run_something(
    opened: Open, saved: Callable[[str], str]
) -> None:
    """
    Without a key: it may send such a request, and only may not read the answer, so the service has
    to refuse.
    """
    async with serving() as served:
        page = await opened(saved(f'<iframe src="{served.base}/"></iframe>'), console=False)
        await expect(page.locator("iframe")).to_be_visible()
        assert await page.frames[1].locator("#problem").count() == 0
        body = {"model": "auto", "messages": [{"role": "user", "content": ASKED}]}
        send = (
            "([url, body]) => fetch(url, {method: 'POST', mode: 'no-cors', body}).then(reply =>"
            " reply.type)"
        )
        sent = await page.evaluate(send, [f"{served.base}/v1/chat/completions", json.dumps(body)])
        assert sent == "opaque"
        posted = [
            request.status for request in served.recorded.requests if request.method == "POST"
        ]
        assert posted == [403]
        assert served.small.heads == served.large.heads == []
        await page.goto(served.base)
        await expect(page.locator("#problem")).to_be_visible()
