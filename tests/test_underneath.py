"""The counters of token-level speculation in a run, from servers with scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from stepspec import Solution, Solver
from stepspec.cli.terminal import speculation_line
from stepspec.orchestrator import trace
from stepspec.orchestrator.endpoints import GREEDY, metrics
from stepspec.orchestrator.events import Committed, Event, Finished, Speculated
from stepspec.orchestrator.ledger import Ledger, Speculation
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
    """Somebody looks all the time; and an empty working directory."""
    monkeypatch.setattr(metrics, "ACCEPTANCE_POLL_SECONDS", 0.01)
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


def looks(solver: Solver) -> int:
    """The number of drafts that were counted at the speculating server."""
    (found,) = (server.reading for _, server in (*servers(solver.small), *servers(solver.large)) if server.reading)
    return found.counted.drafts


async def gated(solver: Solver, server: FakeVllm, later: bytes, passes: int, to: Path) -> tuple[Solution, list[Event]]:
    """Solve one problem; after its first step the *server* has the metrics *later*; continue once they were read."""
    events: list[Event] = []
    server.gate = asyncio.Semaphore(3)
    running = asyncio.create_task(solver.solve(PROBLEM, observe=events.append, trace_to=to))
    await until(lambda: any(isinstance(event, Committed) for event in events))
    server.metrics = later
    await until(lambda: looks(solver) == passes)
    for _ in range(99):
        server.gate.release()
    return await running, events


async def test_the_ledger_and_the_trace_have_the_counters_of_the_server(tmp_path: Path) -> None:
    server = FakeVllm(SCRIPT, metrics=shown(10))
    async with solving(server) as solver:
        solution, events = await gated(solver, server, shown(12, 8), 12, tmp_path / "trace.jsonl")
    (large,) = solution.ledger.speculation
    assert (large.role, large.counted, large.shared, large.path) == ("large", Acceptance(2, 8, 6), False, "")
    assert large.since < large.until < solution.seconds
    assert isinstance(events[-1], Finished)
    assert {event.url for event in events if isinstance(event, Speculated)} == {solver.large.settings.url}
    moments = trace.read(tmp_path / "trace.jsonl")
    assert Ledger.of(moment.event for moment in moments) == solution.ledger


async def test_concurrent_runs_share_the_counters(tmp_path: Path) -> None:
    server = FakeVllm(SCRIPT, metrics=shown(10))
    async with solving(server) as solver:
        other = asyncio.create_task(solver.solve(PROBLEM, policy="small"))
        solution, _ = await gated(solver, server, shown(12, 8), 12, tmp_path / "trace.jsonl")
        await other
        after, _ = await gated(solver, server, shown(13, 12), 13, tmp_path / "trace.jsonl")
    assert [one.shared for one in solution.ledger.speculation] == [True]
    assert [one.counted for one in after.ledger.speculation] == [Acceptance(1, 4, 3)]


async def test_an_unknown_client_is_noticed(tmp_path: Path) -> None:
    server = FakeVllm(SCRIPT, metrics=shown(10))
    async with solving(server) as solver:
        solution, _ = await gated(solver, server, shown(12, 1000), 12, tmp_path / "trace.jsonl")
    assert [one.shared for one in solution.ledger.speculation] == [True]


async def test_the_counters_of_an_inner_model_have_its_path(tmp_path: Path) -> None:
    tiny, small = FakeVllm(SCRIPT, metrics=shown(10)), FakeVllm(SCRIPT, digits={"9": -0.1})
    large = FakeVllm(SCRIPT, digits={"9": -0.1})
    async with (
        tiny.serve() as one,
        small.serve("large") as two,
        large.serve("large") as three,
        Solver({"small": one, "large": two}, three, sampling=GREEDY, ending="small", answer="large") as solver,
    ):
        solution, _ = await gated(solver, tiny, shown(12, 8), 12, tmp_path / "trace.jsonl")
    (entry,) = solution.ledger.speculation
    assert (entry.role, entry.path, entry.name) == ("small", "small.small", "small.small")
    assert (entry.counted, entry.shared) == (Acceptance(2, 8, 6), False)


async def test_every_replica_that_is_up_is_looked_at() -> None:
    async with replicated() as both, both.solver() as solver:
        assert [(name, server.settings.url) for name, server in servers(solver.large)] == [
            ("large", url) for url in both.urls
        ]
        both.large[0].faults.extend([Break(after=0)] * 99)
        await solver.solve(PROBLEM)
        assert [server.settings.url for _, server in servers(solver.large)] == [both.urls[1]]


async def test_without_speculating_servers_a_run_has_no_counters() -> None:
    server = FakeVllm(SCRIPT, metrics=b"vllm:generation_tokens_total 5.0\n")
    async with solving(server) as solver:
        solution = await solver.solve(PROBLEM)
    assert (solution.answer, solution.ledger.speculation) == ("2", ())


async def test_unanswered_metrics_delay_no_run() -> None:
    server = Stalling(SCRIPT, metrics=shown(10))
    async with asyncio.timeout(SOON), solving(server) as solver:
        await until(lambda: server.shows > 1)
        solution = await solver.solve(PROBLEM)
    assert (solution.answer, solution.ledger.speculation) == ("2", ())


async def test_metrics_that_fail_cost_nothing() -> None:
    server = FakeVllm(SCRIPT, metrics=shown(10))
    async with asyncio.timeout(SOON), solving(server) as solver:
        server.metrics = b""  # not found, from now on
        solution = await solver.solve(PROBLEM)
    assert (solution.answer, solution.ledger.speculation) == ("2", ())


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            Speculation("large", Acceptance(10, 40, 34), -0.5, 1.5),
            "token-level speculation under large: 85%, 4.40 a pass "
            "(its servers' counters over 2.0 s, nobody else known to be at work there)",
        ),
        (
            Speculation("small", Acceptance(), 0.0, 1.0, shared=True, path="small.large"),
            "token-level speculation under small.large: nothing drafted "
            "(its servers' counters over 1.0 s, others at work there too)",
        ),
    ],
)
def test_the_line_names_the_model_of_the_counters(entry: Speculation, expected: str) -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(speculation_line(entry), soft_wrap=True)
    assert shown.get().strip() == expected
