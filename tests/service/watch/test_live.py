"""The routes of the page: every event of a run as a line of a trace, and its solution."""

from __future__ import annotations

import asyncio
import re

import orjson

from stepspec.orchestrator import trace
from stepspec.orchestrator.events import Answering, Committed, Finished, Started
from tests.fakes import replay

from ...stand_in import Refuse
from ..served import ANSWER, THINKING, chosen, serving


async def test_a_run_is_streamed_as_a_trace_that_replays() -> None:
    async with serving() as served:
        reply = await served.post("/live", {"problem": "What is 1 + 1?", "stepspec": {"ahead": 0}})
    *lines, last = reply.lines
    moments = [trace.parse(line.removeprefix("data: ").encode()) for line in lines]
    events = [moment.event for moment in moments]
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, Answering)) == ANSWER
    assert sum(isinstance(event, Committed) for event in events) == 3
    assert replay(events).text == f"{THINKING}</think>\n\n{ANSWER}"
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)
    kind, _, payload = last.partition("\ndata: ")
    solution = orjson.loads(payload)
    assert (kind, solution["answer"], solution["text"], solution["finish_reason"]) == (
        "event: solution",
        "2",
        ANSWER,
        "stop",
    )
    judged = {"verified", "rejection"}
    numbers = {"seconds", "ledger", "accept_rate", "share_large"}
    assert set(solution) == {"answer", "text", "finish_reason"} | numbers | judged
    assert solution["ledger"]["small"]["kept"] == 8


async def test_an_error_has_its_status_or_is_the_last_event() -> None:
    async with serving(policy="large") as served:
        served.large.faults.extend([None] + [Refuse(500, "dead")] * 99)
        late = await served.post("/live", {"problem": "x", "stepspec": {"ahead": 0}})
        early = await served.post("/live", {"problem": "x"})
        wrong = await served.post("/live", {"problem": "x", "model": "nobody"})
    kind, _, payload = late.lines[-1].partition("\ndata: ")
    assert (late.status, kind, orjson.loads(payload)["error"]["code"]) == (
        200,
        "event: error",
        "upstream_unavailable",
    )
    assert (early.status, wrong.status) == (503, 404)


async def test_the_methods_are_listed_with_their_options() -> None:
    async with serving() as served:
        payload = (await served.get("/live/methods")).json
    assert (payload["default"], payload["models"]) == (
        "specreason",
        {"small": "tiny", "large": "huge"},
    )
    methods = {method["name"]: method for method in payload["methods"]}
    assert methods["specreason"]["options"]["threshold"] == 7
    assert methods["specreason"]["about"].startswith("Accept a step of the small model")


async def test_the_page_has_its_content_policy_and_no_other_site_may_frame_it() -> None:
    async with serving() as served:
        page = await served.get("/")
    policy = page.headers["Content-Security-Policy"]
    (within,) = re.findall(
        r'http-equiv="Content-Security-Policy" content="([^"]+)"', page.body.decode()
    )
    assert policy == f"{within}; frame-ancestors 'none'"
    assert (page.headers["X-Content-Type-Options"], page.headers["Referrer-Policy"]) == (
        "nosniff",
        "no-referrer",
    )


async def test_whoever_stops_watching_stops_the_run() -> None:
    async with serving(chosen(keep_alive=0.05)) as served:
        served.small.gate = asyncio.Semaphore(1)
        async with served.http.post(f"{served.base}/live", json={"problem": "x"}) as reply:
            assert b'"event":"Started"' in await reply.content.readuntil(b"\n\n")
        async with asyncio.timeout(10):
            await served.small.left.wait()
            await served.service.context.admission.idle()
