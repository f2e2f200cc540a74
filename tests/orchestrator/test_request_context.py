"""
Every request to a model has its purpose, its step, and whether it is a bet; drafts may leave theirs
open.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from stepspec.orchestrator import Chain, Model, Rollback, Step, Verdict, reason
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import OPEN_REQUESTS, REQUEST, RequestContext
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_the_answer
from stepspec.policies import SpecReason

from ..fakes import run
from .arms import PROBLEM, pair


@dataclass(frozen=True)
class Spying:
    """SpecReason that notes the context of every decision, and where it may leave requests open."""

    inner: SpecReason
    contexts: list[RequestContext] = field(default_factory=list[RequestContext])
    stacks: dict[str, set[AsyncExitStack | None]] = field(
        default_factory=dict[str, set[AsyncExitStack | None]]
    )
    repair_may_start_early = True

    @property
    def answerer(self) -> Model:
        return self.inner.answerer

    async def draft(self, chain: Chain) -> Step:
        self.note()
        return await self.inner.draft(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        self.note()
        return await self.inner.verify(chain, draft)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        self.note()
        return await self.inner.repair(chain, draft, rollback)

    def note(self) -> None:
        self.contexts.append(REQUEST.get())
        self.stacks.setdefault(REQUEST.get().purpose, set()).add(OPEN_REQUESTS.get())


def spied(ahead: int | LookaheadControl) -> list[RequestContext]:
    spying = Spying(SpecReason(*pair(length=3, wrong=(1,))))
    run(reason(spying, PROBLEM, ahead=ahead))
    return spying.contexts


def calls(events: list[Event]) -> list[Called]:
    return [event for event in events if isinstance(event, Called)]


def test_without_lookahead_nothing_is_a_bet() -> None:
    pairs = (
        ("draft", 0),
        ("verify", 0),
        ("draft", 1),
        ("verify", 1),
        ("repair", 1),
        ("draft", 2),
        ("verify", 2),
    )
    assert [(one.purpose, one.step, one.bet) for one in spied(0)] == [
        (*pair, False) for pair in pairs
    ]


def test_requests_beyond_the_next_step_and_hedges_are_bets() -> None:
    contexts = spied(2)
    assert contexts[0] == RequestContext("draft", 0)
    assert RequestContext("draft", 1, bet=True) in contexts
    assert {RequestContext("verify", 0), RequestContext("verify", 1)} & set(contexts)
    assert RequestContext("repair", 1) in contexts
    assert not any(one.bet for one in contexts if one.purpose == "repair")
    hedged = spied(LookaheadControl(hedge=1.0))
    assert RequestContext("hedge", 1, bet=True) in hedged
    assert RequestContext("repair", 1) not in hedged


def test_a_verdict_is_a_bet_while_an_earlier_one_is_awaited() -> None:
    small, large = pair(length=3)
    large.reading = lambda chain: 9.0
    spying = Spying(SpecReason(small, large))
    run(reason(spying, PROBLEM, ahead=2))
    verdicts = [one for one in spying.contexts if one.purpose == "verify"]
    assert verdicts == [
        RequestContext("verify", 0),
        *(RequestContext("verify", at, bet=True) for at in (1, 2)),
    ]


@pytest.mark.parametrize("ahead", [0, 2])
def test_observers_get_the_purpose_of_requests(ahead: int) -> None:
    small, large = pair(length=4, wrong=(1,))
    events: list[Event] = []
    small.observe = large.observe = events.append

    async def main() -> None:
        budget = Budget(512)
        await run_to_the_answer(
            RunParts(SpecReason(small, large), budget=budget, ahead=ahead), PROBLEM, events.append
        )
        assert REQUEST.get() == RequestContext()

    run(main())
    requests = {(call.role, call.verb, call.purpose, call.step) for call in calls(events)}
    assert {
        ("small", "write", "draft", 0),
        ("large", "ask", "verify", 0),
        ("large", "write", "repair", 1),
    } <= requests
    assert ("large", "write", "answer", 4) in requests
    assert all(call.step <= call.last_step for call in calls(events))


def test_requests_may_be_left_open_by_drafts_alone_for_one_block_and_with_lookahead() -> None:
    async def stacks(ahead: int) -> dict[str, set[AsyncExitStack | None]]:
        spying = Spying(SpecReason(*pair(wrong=(4,))))
        await reason(spying, PROBLEM, ahead=ahead)
        assert OPEN_REQUESTS.get() is None
        return spying.stacks

    found, _ = run(stacks(1))
    # before and after the one repair
    assert (len(found["draft"]), None in found["draft"]) == (2, False)
    assert found["verify"] == found["repair"] == {None}
    assert run(stacks(0))[0] == {purpose: {None} for purpose in ("draft", "verify", "repair")}


def test_a_request_that_was_left_open_saves_its_latency_and_is_closed_during_the_repair() -> None:
    small, large = pair(length=6, wrong=(3,))
    small.sticky = True
    small.pace = 0.125
    events: list[Event] = []
    small.observe = events.append
    _, seconds = run(reason(SpecReason(small, large), PROBLEM, ahead=1))
    assert [(call.step, call.last_step) for call in calls(events)] == [(0, 4), (4, 5)]
    log = small.log
    assert [line for line in log if line.startswith("small")] == [
        "small write 0",
        *(f"small goes on {index}" for index in (1, 2, 3, 4)),
        "small write 0 cancelled",
        "small write 4",
        "small goes on 5",
        "small write 4 done",
    ]
    assert log.index("small write 0 cancelled") < log.index("large write 3 done")
    # The fourth draft is complete at 4.25 s, and its judgement at 5.25 s; the repair at 6.25 s; the
    # last two drafts at 8 s and 9 s, and the last judgement a second later.
    assert seconds == 10


def test_no_bet_continues_while_open_requests_are_closed() -> None:
    small, large = pair(wrong=(0,))
    small.sticky = True
    small.pace = 0.125
    small.closing = 5.0
    run(reason(SpecReason(small, large), PROBLEM, ahead=9))
    refused = small.log.index("large ask 1 done")
    closed = small.log.index("small write 0 cancelled")
    assert "large write 0 done" in small.log[refused:closed]
    assert not [
        line
        for line in small.log[refused:closed]
        if "goes on" in line or line.startswith("small write 1")
    ]
