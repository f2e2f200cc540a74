"""Token-level speculation of the servers, in the metrics of the service."""

from __future__ import annotations

import asyncio

import pytest

from stepspec.orchestrator.endpoints import polling
from stepspec.orchestrator.nesting import servers
from stepspec.orchestrator.service.http.admission import Admission
from stepspec.orchestrator.service.watch.metrics import Metrics
from stepspec.orchestrator.stats import Acceptance

from ....test_underneath import shown
from ..served import Reply, Served, chosen, serving, until


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


async def test_the_metrics_have_the_counters_of_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.01)
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


async def test_servers_that_do_not_speculate_are_not_mentioned() -> None:
    async with serving() as served:
        await served.chat()
        assert b"speculation_passes_total{" not in (await served.get("/metrics")).body


def test_a_server_that_is_looked_at_later_is_counted_from_then() -> None:
    totals: dict[str, Acceptance] = {}
    metrics = Metrics(Admission(chosen()), "0", speculation=lambda: totals)
    assert b"stepspec_speculation_passes_total{" not in metrics.scrape()[0]
    totals["small.large"] = Acceptance(1, 4, 2)
    assert b'stepspec_speculation_accepted_tokens_total{role="small.large"} 2.0' in metrics.scrape()[0]
    totals["small.large"] = Acceptance(2, 8, 5)
    assert b'stepspec_speculation_accepted_tokens_total{role="small.large"} 5.0' in metrics.scrape()[0]
