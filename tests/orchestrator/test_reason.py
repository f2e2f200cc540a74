"""Properties of the loop with any policy: with seeds, random times, failures and budgets."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Budget, Chain, Ledger, Step
from stepspec.orchestrator.answer import AnswerStream, write_answer
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.events import (
    Called,
    Committed,
    Drafted,
    Event,
    Judged,
    Lost,
    Repaired,
    Started,
)
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.reason import End
from tests.fakes import replay

from ..fakes import run
from .arms import ARMS, BOUNDED, PROBLEM, Arm, arm, taste, working

SEEDS = st.integers(0, 10_000)
AHEADS = st.builds(working, st.sampled_from([1, 2, 5]), hedge=st.sampled_from([0.0, 0.5, 1.0]))
every_arm = pytest.mark.parametrize("name", ARMS)


def committed(arm: Arm) -> list[Step]:
    return [event.step for event in arm.events if isinstance(event, Committed)]


def unjudged_by_small(arm: Arm) -> list[Step]:
    """Return the small model's drafts that were committed without having been judged."""
    lost = [event.draft for event in arm.events if isinstance(event, Lost)]
    return [
        event.draft
        for event in arm.events
        if isinstance(event, Judged)
        and event.verdict == Accept(judged=False)
        and event.draft.author == "small"
        and not any(event.draft is draft for draft in lost)
    ]


@every_arm
@given(seed=SEEDS, ahead=AHEADS, sticky=st.booleans())
@BOUNDED
def test_the_chain_is_the_same_at_any_lookahead_and_never_later_and_the_events_tell_every_fate(
    name: str, seed: int, ahead: LookaheadControl, sticky: bool
) -> None:
    plain = arm(name, seed)
    betting = arm(name, seed, sticky=sticky)
    (chain, end), slow = run(plain.run())
    result, fast = run(betting.run(ahead))
    assert result == (chain, end)
    assert chain.finished == (end == "finished")
    assert fast <= slow or betting.small.closing
    assert replay([Started(PROBLEM.messages, name), *betting.events]) == chain
    expected = Ledger.of(plain.events)
    ledger = Ledger.of(betting.events)
    fates = Counter(type(event) for event in betting.events)
    by_large = sum(step.author == "large" for step in chain.steps) - fates[Repaired]
    unjudged = by_large + len(unjudged_by_small(betting))
    assert fates[Judged] <= fates[Drafted] == ledger.drafts + unjudged + fates[Lost]
    assert fates[Repaired] == ledger.drafts - ledger.accepted
    assert (ledger.drafts, ledger.accepted) == (expected.drafts, expected.accepted)
    for account in (ledger.small, ledger.large):
        calls = [
            event
            for event in betting.events
            if isinstance(event, Called) and event.role == account.role
        ]
        assert account.kept == sum(
            len(step.tokens) for step in chain.steps if step.author == account.role
        )
        assert account.written == sum(call.written for call in calls if call.verb == "write")
        assert account.requests == len(calls)


class Placed(asyncio.Task[Any]):
    """A task whose place in a set depends on *direction*, as it would on its memory address."""

    direction = 1
    numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(self.numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.direction * self.number % 8


@every_arm
@given(seed=SEEDS, sticky=st.booleans())
@BOUNDED
def test_the_order_of_the_events_does_not_depend_on_memory_addresses(
    name: str, seed: int, sticky: bool
) -> None:
    seen = list[list[Event]]()
    for direction in (1, -1):
        kind = type("Placed", (Placed,), {"direction": direction, "numbers": itertools.count()})
        tried = arm(name, seed, sticky=sticky)

        async def main(tried: Arm = tried, kind: Any = kind) -> None:
            def make(loop: Any, coroutine: Any, **options: Any) -> Any:
                return kind(coroutine, loop=loop, **options)

            asyncio.get_running_loop().set_task_factory(make)
            await tried.run(3)

        run(main())
        seen.append(tried.events)
    assert seen[0] == seen[1]


@every_arm
@given(
    seed=SEEDS,
    ahead=st.sampled_from([0, 1, 3]),
    sticky=st.booleans(),
    pauses=st.lists(st.integers(0, 60), min_size=1, max_size=3),
)
@BOUNDED
def test_cancelling_at_any_moment_and_again_leaves_nothing_open(
    name: str, seed: int, ahead: int, sticky: bool, pauses: list[int]
) -> None:
    async def main() -> None:
        running = asyncio.create_task(arm(name, seed, sticky=sticky).run(ahead))
        await asyncio.sleep(pauses[0] / 8)
        over = running.done()
        for pause in pauses[1:]:
            running.cancel()
            await asyncio.sleep(pause / 8)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() or running.result()
        assert running.cancelled() != over

    run(main())


@every_arm
@given(
    seed=SEEDS, ahead=st.sampled_from([0, 1, 3]), sticky=st.booleans(), eighths=st.integers(0, 150)
)
@BOUNDED
def test_a_deadline_ends_the_run_with_the_committed_steps(
    name: str, seed: int, ahead: int, sticky: bool, eighths: int
) -> None:
    deadline = eighths / 8
    (full, end), needed = run(arm(name, seed, sticky=sticky).run(ahead))
    watched = arm(name, seed, sticky=sticky)
    (chain, early), took = run(watched.run(ahead, deadline=deadline))
    assert chain.steps == tuple(committed(watched))
    if early == "time":
        assert chain.steps == full.steps[: len(chain.steps)]
        assert needed >= deadline
        assert 0 <= took - deadline <= 4 * watched.small.closing
    else:
        assert (chain, early, took) == (full, end, needed)


@every_arm
@given(seed=SEEDS, ahead=AHEADS, rate=st.sampled_from([0.02, 0.2]))
@BOUNDED
def test_a_failure_is_raised_exactly_where_it_would_be_without_bets(
    name: str, seed: int, ahead: LookaheadControl, rate: float
) -> None:
    def fails(verb: str, chain: Chain) -> Exception | None:
        return (
            ConnectionError(verb, chain.text)
            if taste(seed, "fails", verb, chain.text) < rate
            else None
        )

    async def outcome(ahead: int | LookaheadControl) -> tuple[list[Step], End | tuple[object, ...]]:
        failing = arm(name, seed)
        failing.small.fails = failing.large.fails = fails
        try:
            return committed(failing), (await failing.run(ahead))[1]
        except ConnectionError as exc:
            return committed(failing), exc.args

    assert run(outcome(ahead))[0] == run(outcome(0))[0]


@every_arm
@given(
    seed=SEEDS,
    ahead=AHEADS,
    tokens=st.integers(2, 80),
    answer=st.none() | st.integers(1, 10),
    steps=st.none() | st.integers(1, 8),
)
@BOUNDED
def test_budgets_hold_exactly_with_room_for_the_answer(
    name: str,
    seed: int,
    ahead: LookaheadControl,
    tokens: int,
    answer: int | None,
    steps: int | None,
) -> None:
    budget = Budget(tokens, steps, answer=None if answer is None else min(answer, tokens - 1))
    room = tokens - budget.for_answer
    limited = arm(name, seed, budget=budget, sticky=True)
    (chain, end), _ = run(limited.run(ahead))
    assert (chain, end) == run(arm(name, seed, budget=budget).run())[0]
    assert chain.tokens <= room
    assert steps is None or len(chain.steps) <= steps
    assert (end == "budget") == (
        not chain.finished and (chain.tokens == room or len(chain.steps) == steps)
    )
    written, _ = run(
        write_answer(
            Budgeted(limited.large, budget.left),
            chain,
            limit=budget.for_answer,
            stream=AnswerStream(print),
        )
    )
    assert 1 <= len(written.tokens) <= budget.for_answer
