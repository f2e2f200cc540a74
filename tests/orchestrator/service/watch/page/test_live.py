"""The live page in a real browser: a run to its end, and everything that can keep it from that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from .conftest import Open
from .made import PROBLEM, SLIP, STEPS, made
from .replay import Replay

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE = made()
LINES = TRACE.splitlines()
DOWN = {"message": "the large model is gone", "type": "server_error", "param": None, "code": None}
Start = Callable[..., Awaitable[Replay]]


@pytest_asyncio.fixture(loop_scope="module")
async def serve() -> AsyncGenerator[Start]:
    """Start a service that replays a trace."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Replay:
            return await stack.enter_async_context(Replay(TRACE, **settings).serving())

        yield start


async def run(page: Page, problem: str = PROBLEM) -> None:
    await page.get_by_label("Problem", exact=True).fill(problem)
    await page.keyboard.press("Control+Enter")


def until(kind: str, number: int = 1) -> int:
    """How many lines of the trace there are up to the event *kind*, for the so many-th time."""
    places = [place for place, line in enumerate(LINES, 1) if f'"event":"{kind}"'.encode() in line]
    return places[number - 1]


async def test_a_run_is_shown_step_by_step_to_its_end(serve: Start, opened: Open) -> None:
    gate, released = asyncio.Semaphore(0), 0
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
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await expect(page.locator("#answer .final-answer > :last-child")).to_have_text("16")
    await expect(page.get_by_role("button", name="Run")).to_be_visible()
    await expect(page.locator("#announcements")).to_contain_text("Answer: 16")
    assert service.requests == [{"problem": PROBLEM, "model": "auto", "stepspec": {"options": {}}}]


async def colour(step: Locator) -> str:
    return str(await step.locator(".text").first.evaluate("one => getComputedStyle(one).color"))


async def test_only_chosen_options_are_sent(serve: Start, opened: Open) -> None:
    service = await serve()
    page = await opened(service.url)
    await page.get_by_label("Method").select_option("bild")
    await expect(page.locator("#about")).to_have_text("Write until unsure.")
    await page.get_by_text("Options of the method").click()
    await page.get_by_label("scale").fill("0.25")
    await page.get_by_label("strict").uncheck()
    await page.get_by_label("cues").fill('["Wait"]')
    await page.get_by_label("Ahead").fill("0")
    await run(page)
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await page.get_by_label("Method").select_option("large")
    await page.get_by_label("Ahead").fill("")
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    wishes = {"options": {"scale": 0.25, "strict": False, "cues": ["Wait"]}, "ahead": 0}
    assert [(request["model"], request["stepspec"]) for request in service.requests] == [
        ("bild", wishes),
        ("large", {"options": {}}),
    ]


async def test_a_run_can_be_stopped_and_what_there_is_stays(serve: Start, opened: Open) -> None:
    gate = asyncio.Semaphore(until("Committed"))
    service = await serve(gate=gate)
    page = await opened(service.url)
    await run(page)
    await expect(page.locator(".step").first).to_contain_text("verified")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator("#status")).to_have_text("Unfinished")
    await expect(page.locator(".step")).to_have_count(1)
    await expect(page.get_by_role("alert")).to_be_hidden()
    async with asyncio.timeout(10):
        await service.left.wait()


BUSY = {**DOWN, "type": "service_unavailable_error"}
WRONG = {**DOWN, "type": "invalid_request_error", "param": "ahead"}
HALF = until("Committed")
ERRORS: list[tuple[dict[str, Any], str, int]] = [
    ({"refusal": (503, BUSY, {"Retry-After": "2"})}, "gone The service or a model is not ready: try again in 2 s.", 0),
    ({"refusal": (400, WRONG, {})}, "Change “ahead”, and run again.", 0),
    ({"refusal": (200, DOWN, {}), "breaks": HALF}, "the large model is gone", 1),
    ({"breaks": HALF}, "The stream ended before the run did.", 1),
]


@pytest.mark.parametrize(("settings", "message", "steps"), ERRORS)
async def test_an_error_is_shown_with_what_to_do(
    settings: dict[str, Any], message: str, steps: int, serve: Start, opened: Open
) -> None:
    service = await serve(**settings)
    page = await opened(service.url, console=False)
    await run(page)
    await expect(page.get_by_role("alert")).to_contain_text(message)
    await expect(page.locator(".step")).to_have_count(steps)
    await expect(page.get_by_role("button", name="Run")).to_be_visible()
    service.refusal = service.breaks = None
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_service_that_is_gone_is_named(serve: Start, opened: Open) -> None:
    service = await serve()
    page = await opened(service.url, console=False)
    await expect(page.get_by_label("Method")).to_be_enabled()
    await page.route("**/live", lambda route: route.abort())
    await run(page)
    await expect(page.get_by_role("alert")).to_contain_text("Is “stepspec serve” still running?")


async def test_nothing_is_asked_without_a_problem(serve: Start, opened: Open) -> None:
    service = await serve()
    page = await opened(service.url)
    await run(page, "  ")
    await expect(page.get_by_role("alert")).to_contain_text("There is no problem to solve.")
    await expect(page.get_by_label("Problem", exact=True)).to_be_focused()
    assert service.requests == []


async def test_a_key_is_requested_and_kept_for_the_tab(serve: Start, opened: Open) -> None:
    service = await serve(key="sesame")
    page = await opened(service.url, console=False)
    dialog = page.get_by_role("dialog", name="This service asks for a key")
    await expect(dialog).to_be_visible()
    await expect(page.locator("#key-wrong")).to_be_hidden()
    await page.get_by_label("API key").fill("guess")
    await page.keyboard.press("Enter")
    await expect(page.locator("#key-wrong")).to_be_visible()
    await page.get_by_label("API key").fill("sesame")
    await page.get_by_role("button", name="Use key").click()
    await expect(dialog).to_be_hidden()
    await run(page)
    await expect(page.locator("#status")).to_have_text("Finished in 1.32 s")
    await page.reload()
    await expect(page.get_by_label("Method")).to_be_enabled()
    await expect(dialog).to_be_hidden()


async def test_without_the_key_the_page_says_what_is_missing(serve: Start, opened: Open) -> None:
    service = await serve(key="sesame")
    page = await opened(service.url, console=False)
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("alert")).to_contain_text("Give the service's key")
    await run(page)
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("alert")).to_contain_text("this service asks for a key")
    assert service.requests == []


async def test_the_answer_is_copied(serve: Start, opened: Open) -> None:
    service = await serve()
    page = await opened(service.url, permissions=["clipboard-read", "clipboard-write"])
    await run(page)
    await page.get_by_role("button", name="Copy answer").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "16"
