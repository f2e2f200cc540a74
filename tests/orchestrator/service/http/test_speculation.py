"""Token-level speculation of the servers, in the replies and metrics of the service."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.endpoints import metrics
from stepspec.orchestrator.events import Event, Speculated
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.nesting import servers
from stepspec.orchestrator.run import Outcome
from stepspec.orchestrator.service.formats import deltas as payloads
from stepspec.orchestrator.service.http.admission import Admission
from stepspec.orchestrator.service.watch.metrics import Metrics
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.stats import Acceptance
from stepspec.orchestrator.trace import Moment, parse

from ....test_underneath import shown
from ..served import Reply, Served, chosen, serving, until

COUNTERS = {"rate": 0.75, "length": 4.0, "counted": {"drafts": 2, "drafted": 8, "accepted": 6}}


async def post(served: Served, path: str, **fields: object) -> Reply:
    """Ask the large model; it goes on once somebody saw two more passes than there were."""
    ((_, large),) = servers(served.service.context.offer.engine.large)
    served.large.gate = asyncio.Semaphore(0)
    asking = asyncio.create_task(served.post(path, {"model": "large", **fields}))
    await until(lambda: served.recorded.events)
    served.large.metrics = shown(12, 8)
    await until(lambda: large.reading is not None and large.reading.counted.drafts == 12)
    for _ in range(99):
        served.large.gate.release()
    return await asking


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 1 + 1?"}]}),
        ("/v1/responses", {"input": "What is 1 + 1?"}),
    ],
)
async def test_a_response_has_the_counters(
    path: str, fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "ACCEPTANCE_POLL_SECONDS", 0.01)
    async with serving(metrics=shown(10)) as served:
        answer = (await post(served, path, **fields)).json
        (entry,) = answer["ledger"]["speculation"]
        assert {key: entry[key] for key in COUNTERS} == COUNTERS
        assert (entry["role"], entry["shared"]) == ("large", False)
        assert entry["since"] < entry["until"]
        assert answer["stepspec"]["speculation"] == {"large": entry}


async def test_the_metrics_have_the_counters_of_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ACCEPTANCE_POLL_SECONDS", 0.01)
    async with serving(metrics=shown(10)) as served:
        await post(served, "/v1/chat/completions", messages=[{"role": "user", "content": "What is 1 + 1?"}])
        counted = served.service.context.offer.speculation
        await until(lambda: counted()["large"].drafts == 2)
        for _ in range(2):
            text = (await served.get("/metrics")).body.decode()
            assert 'stepspec_speculation_passes_total{role="large"} 2.0' in text
            assert 'stepspec_speculation_drafted_tokens_total{role="large"} 8.0' in text
            assert 'stepspec_speculation_accepted_tokens_total{role="large"} 6.0' in text
            assert 'role="small"' not in "".join(line for line in text.splitlines() if "speculation" in line)


async def test_the_page_gets_the_counters_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ACCEPTANCE_POLL_SECONDS", 0.01)
    async with serving(metrics=shown(10)) as served:
        payloads = await post(served, "/live", problem="What is 1 + 1?")
    lines = [line.removeprefix("data: ").encode() for line in payloads.lines if line.startswith("data: ")]
    reported = [one for one in (parse(line).event for line in lines) if isinstance(one, Speculated)]
    assert sum((one.counted for one in reported), Acceptance()) == Acceptance(2, 8, 6)


async def test_servers_that_do_not_speculate_are_not_mentioned() -> None:
    async with serving() as served:
        answer = (await served.chat()).json
        assert answer["stepspec"]["speculation"] is None
        assert answer["ledger"]["speculation"] == []
        assert b"speculation_passes_total{" not in (await served.get("/metrics")).body


def test_overlapping_counters_of_one_server_are_not_summed() -> None:
    one = Speculated("large", Acceptance(2, 8, 6), 0.0, 1.0)
    longer = replace(one, counted=Acceptance(3, 12, 6), until=1.5)
    within = Speculated("small", Acceptance(1, 4, 4), 0.0, 1.0, path="small.large")
    ledgers = [Ledger.of([entry]) for entry in (longer, one, within)]
    large, small = payloads.ledger(ledgers)["speculation"]
    assert (large["counted"]["drafts"], large["until"], large["shared"]) == (3, 1.5, True)
    assert (small["path"], small["rate"], small["length"], small["shared"]) == ("small.large", 1.0, 5.0, False)


def test_nothing_drafted_has_no_rate() -> None:
    events: list[Event] = [Speculated("large", Acceptance(), 0.0, 1.0)]
    solution = Solution.of(Outcome(Chain.of("p"), "", "stop"), [Moment(0.0, event) for event in events])
    (entry,) = payloads.solution(solution)["ledger"]["speculation"]
    assert (entry["rate"], entry["length"]) == (None, None)


def test_a_server_that_is_looked_at_later_is_counted_from_then() -> None:
    totals: dict[str, Acceptance] = {}
    metrics = Metrics(Admission(chosen()), "0", speculation=lambda: totals)
    assert b"stepspec_speculation_passes_total{" not in metrics.scrape()[0]
    totals["small.large"] = Acceptance(1, 4, 2)
    assert b'stepspec_speculation_accepted_tokens_total{role="small.large"} 2.0' in metrics.scrape()[0]
    totals["small.large"] = Acceptance(2, 8, 5)
    assert b'stepspec_speculation_accepted_tokens_total{role="small.large"} 5.0' in metrics.scrape()[0]
