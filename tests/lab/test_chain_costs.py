"""The figures of long chains and crowds: what is measured, and compared with the goals."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from lab.chain_costs import (
    MANY_STEPS,
    STEP_TOKENS,
    Figure,
    Run,
    callbacks_timed,
    grown,
    long_run,
    solver_at,
    table_of,
    token_bytes,
)
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.events import Committed, Drafted, Judged

from ..stand_in import StandIn


def server() -> StandIn:
    return StandIn(steps=MANY_STEPS, step_tokens=STEP_TOKENS)


@pytest.mark.parametrize(
    ("value", "goal", "outcome"), [(2.5, 2.5, "met"), (2.6, 2.5, "missed"), (9.0, None, "")]
)
def test_a_figure_is_compared_with_its_goal(value: float, goal: float | None, outcome: str) -> None:
    figure = Figure("a step", value, "ms", goal)
    assert figure.outcome == outcome
    shown = io.StringIO()
    Console(file=shown, width=140).print(table_of([figure]))
    assert f"{value} ms" in shown.getvalue()


async def test_a_grown_chain_is_what_a_run_writes() -> None:
    async with server().listening() as url, solver_at(url) as solver:
        written = await Run(solver, Chain.of("What is 6 x 7?")).think(3)
        made = grown(3 * STEP_TOKENS, solver.small.vocabulary)
    assert [step.text for step in made.steps] == [step.text for step in written.steps]
    assert [list(step.tokens) for step in made.steps] == [
        list(step.tokens) for step in written.steps
    ]


async def test_a_long_run_has_the_events_of_each_of_its_steps() -> None:
    async with server().listening() as url, solver_at(url) as solver:
        run = Run(solver, Chain.of("What is 6 x 7?"))
        await run.think(1)
        chain = grown(4 * STEP_TOKENS, solver.small.vocabulary)
        made = long_run(solver, chain, run.recorder.events)
    assert made.chain is chain
    events = made.recorder.events
    for kind in (Drafted, Judged, Committed):
        found = [event for event in events if isinstance(event, kind)]
        steps = [each.step if isinstance(each, Committed) else each.draft for each in found]
        assert all(one is other for one, other in zip(steps, chain.steps, strict=True))


async def test_the_longest_callback_is_found_and_the_loop_is_as_before() -> None:
    before = asyncio.Handle._run  # pyright: ignore[reportPrivateUsage]
    with callbacks_timed() as longest:
        await asyncio.sleep(0)
        sum(range(2_000_000))
        await asyncio.sleep(0)
    assert longest() > 1.0
    assert asyncio.Handle._run is before  # pyright: ignore[reportPrivateUsage]


def test_a_live_token_takes_at_most_its_goal() -> None:
    assert 15 < token_bytes(2_000) <= 60
