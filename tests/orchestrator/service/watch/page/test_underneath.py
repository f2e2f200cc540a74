"""Token-level speculation underneath, in the page's ledger: live, from a trace, and never as the run's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import expect

from stepspec.orchestrator.events import Speculated
from stepspec.orchestrator.ledger import Ledger, Speculation
from stepspec.orchestrator.service.watch.page import html
from stepspec.orchestrator.stats import Acceptance
from stepspec.orchestrator.trace import Moment, dump, parse

from .conftest import Open
from .made import PROBLEM, made
from .made_nested import nested
from .replay import Replay
from .script import script
from .test_accessible import Scheme, schemes, violations
from .test_page import wide

WINDOWS = (
    Moment(0.4, Speculated("large", Acceptance(2, 8, 6), -0.25, 0.25, url="http://one")),
    Moment(0.8, Speculated("small", Acceptance(5, 10, 4), 0.0, 0.5, shared=True, url="http://two")),
    Moment(1.2, Speculated("large", Acceptance(3, 12, 11), 0.25, 1.25, url="http://one")),
)
IDLE = (Moment(1.0, Speculated("small", Acceptance(), 0.0, 1.0, path="small.large")),)


def among(trace: bytes, windows: tuple[Moment, ...]) -> bytes:
    """Put *windows* in their places in a *trace*."""
    moments = [*map(parse, trace.splitlines()), *windows]
    return b"".join(dump(moment) for moment in sorted(moments, key=lambda moment: moment.at))


TRACE, NESTED = among(made(), WINDOWS), among(nested(), IDLE)


def expected(one: Speculation) -> dict[str, Any]:
    counted = one.counted
    return {
        "name": one.name,
        "drafts": counted.drafts,
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "rate": counted.rate,
        "length": counted.length,
        "since": one.since,
        "until": one.until,
        "shared": one.shared,
    }


@pytest.mark.parametrize("trace", [TRACE, NESTED, made()], ids=["plain", "nested", "none"])
def test_its_sums_are_the_librarys(trace: bytes) -> None:
    ledger = Ledger.of(parse(line).event for line in trace.splitlines())
    found = script("return ledger.ledgerOf(seen(given)).speculation", trace.decode())
    assert found == [expected(one) for one in ledger.speculation]


@pytest.mark.asyncio(loop_scope="module")
async def test_the_ledger_has_a_table_of_it(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)))
    table = page.locator("#ledger-figures table").last
    await expect(table.locator("caption")).to_have_text("Meanwhile, token-level speculation in the servers")
    await expect(table.locator("thead th")).to_have_text(["large", "small"])
    await expect(table.locator("tbody tr")).to_have_text(
        [
            "drafted2010",
            "accepted85%40%",
            "tokens a pass4.401.80",
            "looked at for1.50 s0.50 s",
            "others therenone knownyes",
        ]
    )
    page = await opened(saved(html(NESTED)))
    await expect(page.locator("#ledger-figures table")).to_have_count(3)
    rows = page.locator("#ledger-figures table").last.locator("tr")
    await expect(rows).to_have_text(
        [
            "small.large",
            "drafted0",
            "accepted\N{EN DASH}",
            "tokens a pass\N{EN DASH}",
            "looked at for1.00 s",
            "others therenone known",
        ]
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_without_it_there_is_no_table(opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(made())))
    await expect(page.locator("#ledger-figures table")).to_have_count(1)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_run_shows_it_while_it_goes_on(opened: Open) -> None:
    gate, lines = asyncio.Semaphore(0), TRACE.splitlines()
    first, last = (place for place, line in enumerate(lines) if b'"role":"large","counted"' in line)
    async with Replay(TRACE, gate=gate).serving() as service:
        page = await opened(service.url)
        await page.get_by_label("Problem", exact=True).fill(PROBLEM)
        await page.keyboard.press("Control+Enter")
        rows = page.locator("#ledger-figures table").nth(1).locator("tbody tr")
        for _ in range(first + 1):
            gate.release()
        await expect(rows.nth(0)).to_have_text("drafted8")
        for _ in range(last - first):
            gate.release()
        await expect(rows.nth(0)).to_have_text("drafted2010")
        for _ in lines:
            gate.release()
        await expect(page.locator("#status")).to_contain_text("Finished")
        await page.close()  # Or it asks a service that is gone about its judge.


@schemes
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.asyncio(loop_scope="module")
async def test_it_keeps_nobody_out(scheme: Scheme, width: int, opened: Open, saved: Callable[[str], str]) -> None:
    page = await opened(saved(html(TRACE)), color_scheme=scheme, viewport={"width": width, "height": 800})
    await expect(page.locator("#ledger-figures table")).to_have_count(2)
    assert await violations(page) == []
    assert not await wide(page)
