"""Where tokens and seconds went: every count of the ledger by a hand-made run."""

from random import Random

import pytest

from stepspec.orchestrator import Accept, Ledger, Rollback, Step, Token
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.events import (
    Answered,
    Called,
    Committed,
    Drafted,
    Event,
    Fate,
    Finished,
    Judged,
    Lost,
    Repaired,
    Started,
    Verb,
)
from stepspec.orchestrator.ledger import Account


def step(text: str, author: Role, tokens: int, note: str = "") -> Step:
    return Step(text, author, tokens=(Token("a"),) * tokens, note=note)


def call(
    role: Role,
    verb: Verb,
    *,
    written: int,
    prompt: int = 0,
    cached: int = 0,
    seconds: float = 1.0,
    fate: Fate = "done",
) -> Called:
    return Called(role, verb, fate, 0.0, seconds, None, prompt, cached, written)


FIRST = step("one", "small", 5)
SECOND = step("two", "small", 7)
BETTER = step("better", "large", 11, note="grade")
THIRD = step("three", "small", 3)
ANSWER = step("answer", "large", 2)
REFUSED = Rollback(reason="grade", score=2.0)

# One draft stands, one is rolled back, and a bet on that one is lost, after it was judged.
RUN: list[Event] = [
    Started((), "specreason"),
    Drafted(0, FIRST),
    call("small", "write", written=5, prompt=100, cached=0),
    Drafted(1, SECOND),
    call("small", "write", written=7, prompt=105, cached=100, seconds=0.5),
    Judged(0, FIRST, Accept(8.0)),
    call("large", "ask", written=1, prompt=150, cached=96, seconds=0.25),
    Committed(0, FIRST, 8.0),
    Drafted(2, THIRD),
    call("small", "write", written=4, prompt=112, cached=100, fate="cancelled"),
    Judged(2, THIRD, Accept(9.0)),
    call("large", "ask", written=0, prompt=160, cached=144, fate="failed", seconds=0.125),
    Judged(1, SECOND, REFUSED),
    call("large", "score", written=0, prompt=155, cached=0, seconds=0.5),
    Lost(2, THIRD),
    Repaired(1, BETTER, REFUSED),
    call("large", "write", written=11, prompt=155, cached=144, seconds=2.0),
    Committed(1, BETTER),
    Answered(ANSWER),
    call("large", "write", written=2, prompt=170, cached=160),
    Finished("stop", "42", 9.0),
]


def test_tokens_and_seconds_are_charged_by_model_and_by_fate() -> None:
    ledger = Ledger.of(RUN)
    assert ledger.small == Account(
        "small", kept=5, discarded=11, prompt=317, cached=200, requests=3, judging=0, writing=2.5
    )
    assert ledger.large == Account(
        "large",
        kept=13,
        discarded=0,
        judging=1 + (150 - 96) + (160 - 144) + 155,
        prompt=790,
        cached=544,
        requests=5,
        failed=1,
        writing=3.0,
        judged=0.875,
    )


def test_rates_and_shares_follow_from_the_counts_in_any_order_of_the_events() -> None:
    shuffled = list(RUN)
    Random(7).shuffle(shuffled)
    ledger = Ledger.of(shuffled)
    assert ledger == Ledger.of(RUN)
    assert (ledger.small.written, ledger.small.waste) == (16, 11 / 16)
    assert (ledger.drafts, ledger.accepted, ledger.accept_rate) == (2, 1, 0.5)
    assert ledger.share_large == 13 / 18


def test_nothing_is_worth_nothing() -> None:
    ledger = Ledger.of([])
    assert ledger == Ledger(Account("small"), Account("large"))
    assert (ledger.accept_rate, ledger.share_large, ledger.small.waste) == (None, 0.0, 0.0)


@pytest.mark.parametrize("verdict", [Accept(9.0), REFUSED])
def test_a_lost_bet_at_the_place_of_a_repaired_draft_is_not_a_draft(
    verdict: Accept | Rollback,
) -> None:
    bet = Judged(1, THIRD, verdict)
    assert Ledger.of([bet, *RUN]).accept_rate == Ledger.of([*RUN, bet]).accept_rate == 0.5


PART = Step("on", "small", "length", (Token("on"),))
REST = step("e and a half", "large", 4, note="doubt")
IN_PART = Rollback(2, "doubt")
WHOLE = Rollback(len(FIRST.text), "doubt")
PLAIN = Rollback()
REPAIR = step("one", "large", 2)


@pytest.mark.parametrize(
    "events",
    [
        [
            Judged(0, FIRST, IN_PART),
            Committed(0, PART),
            Repaired(1, REST, IN_PART),
            Committed(1, REST),
        ],
        [
            Judged(0, FIRST, WHOLE),
            Committed(0, FIRST),
            Repaired(1, REST, WHOLE),
            Committed(1, REST),
        ],
        [Judged(0, FIRST, PLAIN), Repaired(0, REPAIR, PLAIN), Committed(0, REPAIR)],
    ],
    ids=["kept in part", "kept completely", "without a reason"],
)
def test_a_draft_that_was_repaired_was_not_accepted(events: list[Event]) -> None:
    ledger = Ledger.of(
        [*events, call("small", "write", written=5), call("large", "write", written=4)]
    )
    assert (ledger.drafts, ledger.accepted) == (1, 0)
    assert ledger.small.written == 5


def test_a_draft_that_nobody_judged_is_in_no_accept_rate() -> None:
    unjudged: list[Event] = [Judged(0, FIRST, Accept(judged=False)), Committed(0, FIRST)]
    ledger = Ledger.of(unjudged)
    assert (ledger.drafts, ledger.accepted, ledger.accept_rate) == (0, 0, None)
    judged: list[Event] = [Judged(1, SECOND, REFUSED), Repaired(1, BETTER, REFUSED)]
    mixed = Ledger.of([*unjudged, *judged, Judged(2, THIRD, Accept(9.0)), Committed(2, THIRD)])
    assert (mixed.drafts, mixed.accepted, mixed.accept_rate) == (2, 1, 0.5)


def test_a_step_that_closes_the_thinking_is_not_a_draft() -> None:
    assert (
        Ledger.of([Committed(0, step("</think>", "large", 0, note="closed"))]).accept_rate is None
    )


def test_tokens_without_a_request_never_make_a_count_negative() -> None:
    ledger = Ledger.of([Committed(0, FIRST), call("small", "write", written=3)])
    assert (ledger.small.kept, ledger.small.discarded) == (5, 0)
