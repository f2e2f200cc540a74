"""The counters of token-level speculation of a solver's servers, with scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from stepspec import Solver
from stepspec.orchestrator.endpoints import GREEDY, polling
from stepspec.orchestrator.nesting import servers
from stepspec.orchestrator.stats import Acceptance

from .orchestrator.endpoints.server import Break, FakeVllm
from .orchestrator.service.served import until
from .test_solver import PROBLEM, SCRIPT
from .test_solver import serving as replicated

SOON = 30.0  # seconds


def shown(passes: int, written: int = 0) -> bytes:
    """What a server shows that drafted four tokens a pass and accepted three of them."""
    counted = {"spec_decode_num_drafts": passes, "spec_decode_num_draft_tokens": 4 * passes}
    counted |= {"spec_decode_num_accepted_tokens": 3 * passes, "generation_tokens": written}
    return "".join(f"vllm:{name}_total {value}.0\n" for name, value in counted.items()).encode()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Servers are polled all the time; and an empty working directory."""
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)


@dataclass
class Stalling(FakeVllm):
    """A server that shows its metrics once, and then lets everybody wait."""

    shows: int = 0

    async def show(self, request: web.Request) -> web.Response:
        self.shows += 1
        if self.shows > 1:
            await asyncio.Event().wait()
        return await super().show(request)


@asynccontextmanager
async def solving(large: FakeVllm) -> AsyncGenerator[Solver]:
    small = FakeVllm(SCRIPT)
    async with (
        small.serve("small") as one,
        large.serve("large") as other,
        Solver(one, other, sampling=GREEDY, policy="large") as solver,
    ):
        yield solver


async def test_the_counters_have_the_role_of_the_model_or_its_path() -> None:
    tiny, small, large = (FakeVllm(SCRIPT, digits={"9": -0.1}, metrics=shown(10)) for _ in range(3))
    async with (
        tiny.serve() as one,
        small.serve("large") as two,
        large.serve("large") as three,
        Solver({"small": one, "large": two}, three, sampling=GREEDY, ending="small", answer="large") as solver,
    ):
        tiny.metrics, large.metrics = shown(12, 8), shown(11, 4)
        grown = {"small.small": Acceptance(2, 8, 6), "small.large": Acceptance(), "large": Acceptance(1, 4, 3)}
        async with asyncio.timeout(SOON):
            await until(lambda: solver.acceptance.totals == grown)


async def test_every_replica_that_is_up_is_polled() -> None:
    async with replicated() as both, both.solver() as solver:
        assert [(name, server.settings.url) for name, server in servers(solver.large)] == [
            ("large", url) for url in both.urls
        ]
        both.large[0].faults.extend([Break(after=0)] * 99)
        await solver.solve(PROBLEM)
        assert [server.settings.url for _, server in servers(solver.large)] == [both.urls[1]]


async def test_unanswered_metrics_delay_no_run() -> None:
    server = Stalling(SCRIPT, metrics=shown(10))
    async with asyncio.timeout(SOON), solving(server) as solver:
        await until(lambda: server.shows > 1)
        assert (await solver.solve(PROBLEM)).answer == "2"


async def test_metrics_that_fail_cost_nothing() -> None:
    server = FakeVllm(SCRIPT, metrics=shown(10))
    async with asyncio.timeout(SOON), solving(server) as solver:
        server.metrics = b""  # not found, from now on
        assert (await solver.solve(PROBLEM)).answer == "2"
