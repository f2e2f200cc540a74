"""Every request to a model has its purpose, its step, and whether it is a bet."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stepspec.orchestrator import Chain, Model, Rollback, Step, Verdict, reason
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.events import Called, Event
from stepspec.orchestrator.interfaces import REQUEST, RequestContext
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.run import RunParts
from stepspec.orchestrator.run import run as run_to_the_answer
from stepspec.policies import SpecReason

from ..fakes import run
from .arms import PROBLEM, pair


@dataclass(frozen=True)
class Spying:
    """SpecReason that notes the context of every decision."""

    inner: SpecReason
    contexts: list[RequestContext]
    foreseeable = True

    @property
    def answerer(self) -> Model:
        return self.inner.answerer

    async def draft(self, chain: Chain) -> Step:
        self.contexts.append(REQUEST.get())
        return await self.inner.draft(chain)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        self.contexts.append(REQUEST.get())
        return await self.inner.verify(chain, draft)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        self.contexts.append(REQUEST.get())
        return await self.inner.repair(chain, draft, rollback)


def spied(ahead: int | LookaheadControl) -> list[RequestContext]:
    small, large = pair(length=3, wrong=(1,))
    contexts: list[RequestContext] = []
    run(reason(Spying(SpecReason(small, large), contexts), PROBLEM, ahead=ahead))
    return contexts


def calls(events: list[Event]) -> list[Called]:
    return [event for event in events if isinstance(event, Called)]


def test_without_lookahead_nothing_is_a_bet() -> None:
    assert spied(0) == [
        RequestContext("draft", 0),
        RequestContext("verify", 0),
        RequestContext("draft", 1),
        RequestContext("verify", 1),
        RequestContext("repair", 1),
        RequestContext("draft", 2),
        RequestContext("verify", 2),
    ]


def test_requests_beyond_the_next_step_are_bets() -> None:
    contexts = spied(2)
    assert contexts[0] == RequestContext("draft", 0)
    assert RequestContext("draft", 1, bet=True) in contexts
    assert {RequestContext("verify", 0), RequestContext("verify", 1)} & set(contexts)
    assert RequestContext("repair", 1) in contexts
    assert not any(one.bet for one in contexts if one.purpose == "repair")


def test_a_verdict_is_a_bet_while_an_earlier_one_is_awaited() -> None:
    small, large = pair(length=3)
    large.reading = lambda chain: 9.0
    contexts: list[RequestContext] = []
    run(reason(Spying(SpecReason(small, large), contexts), PROBLEM, ahead=2))
    verdicts = [one for one in contexts if one.purpose == "verify"]
    assert verdicts == [RequestContext("verify", 0), *(RequestContext("verify", at, bet=True) for at in (1, 2))]


def test_a_hedge_is_a_bet_whichever_step_it_is_about() -> None:
    contexts = spied(LookaheadControl(hedge=1.0))
    assert RequestContext("hedge", 1, bet=True) in contexts
    assert RequestContext("repair", 1) not in contexts


@pytest.mark.parametrize("ahead", [0, 2])
def test_observers_get_the_purpose_of_requests(ahead: int) -> None:
    small, large = pair(length=4, wrong=(1,))
    events: list[Event] = []
    small.observe = large.observe = events.append

    async def main() -> None:
        budget = Budget(512)
        await run_to_the_answer(RunParts(SpecReason(small, large), budget=budget, ahead=ahead), PROBLEM, events.append)
        assert REQUEST.get() == RequestContext()

    run(main())
    requests = {(call.role, call.verb, call.purpose, call.step) for call in calls(events)}
    assert {("small", "write", "draft", 0), ("large", "ask", "verify", 0), ("large", "write", "repair", 1)} <= requests
    assert ("large", "write", "answer", 4) in requests
    assert all(call.step <= call.last_step for call in calls(events))


def test_a_request_that_stays_open_has_its_last_step() -> None:
    small, large = pair(length=4)
    small.sticky = True
    events: list[Event] = []
    small.observe = large.observe = events.append
    run(reason(SpecReason(small, large), PROBLEM, ahead=2))
    drafts = [(call.step, call.last_step) for call in calls(events) if call.role == "small"]
    assert drafts == [(0, 3)]
