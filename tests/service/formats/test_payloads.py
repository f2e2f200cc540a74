"""From events to the payloads of a client, without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from stepspec.orchestrator.chain import Chain, Rollback, Step, Token
from stepspec.orchestrator.events import (
    Answered,
    Answering,
    Called,
    Committed,
    Event,
    Judged,
    Lost,
    Started,
)
from stepspec.orchestrator.run import FinishReason, Outcome
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Moment
from stepspec.service.formats import deltas as payloads
from stepspec.service.formats.deltas import DeltaBuilder

PROBLEM = Chain.of("p")


def step(text: str, tokens: int = 1) -> Step:
    return Step(text, "small", tokens=(Token("x"),) * tokens)


def solved(
    text: str,
    reason: FinishReason = "stop",
    events: tuple[Event, ...] = (),
    chain: Chain = PROBLEM,
) -> Solution:
    outcome = Outcome(chain, text, reason)
    return Solution.of(outcome, [Moment(0.0, event) for event in (Answered(step(text)), *events)])


def deltas(builder: DeltaBuilder, *events: Event, text: str) -> dict[str, str]:
    joined: dict[str, str] = {}
    added = [delta for event in events for delta in builder.add_event(event)]
    for delta in (*added, *builder.finish(solved(text))):
        for name, piece in delta.fields.items():
            joined[name] = joined.get(name, "") + piece
    return joined


def test_unsent_text_is_sent_at_the_end() -> None:
    assert (
        deltas(
            DeltaBuilder("both"),
            Answering("It "),
            text="It is 2.",
        )["content"]
        == "It is 2."
    )
    assert (
        deltas(DeltaBuilder("both"), Answering("It is 2."), text="It is 2.")["content"]
        == "It is 2."
    )
    shown = deltas(DeltaBuilder("content"), Committed(0, step("a\n\n")), text="")
    assert shown == {"content": "<think>\na\n\n\n</think>\n\n"}
    assert deltas(DeltaBuilder("content"), text="2") == {"content": "2"}


def test_a_draft_that_is_rejected_and_then_lost_as_a_bet_is_one_step() -> None:
    draft = step("a\n\n")
    rejected = Rollback(reason="grade")
    events = Judged(1, draft, rejected), Lost(1, draft), Judged(1, step("a\n\n"), rejected)
    assert [each.fate for each in solved("2", events=events).steps] == ["lost", "rejected"]


def test_sent_text_is_never_taken_back() -> None:
    assert (
        deltas(
            DeltaBuilder("both"),
            Answering("It was"),
            text="It is 2.",
        )["content"]
        == "It was"
    )


@pytest.mark.parametrize("thinking", list(payloads.FIELDS))
def test_a_model_that_answers_as_it_reasons_has_content_only(thinking: Any) -> None:
    answers = Started((), "large", thinks=False)
    events = (
        answers,
        Committed(0, step("a\n\n")),
        Answering("a"),
        Committed(1, step("b")),
        Answering("\n\nb"),
    )
    assert deltas(DeltaBuilder(thinking), *events, text="a\n\nb") == {"content": "a\n\nb"}
    (delta,) = DeltaBuilder(thinking).add_event(Committed(0, step("a"), 0.5))
    assert delta.step == {"index": 0, "author": "small", "grade": 0.5, "fate": "kept", "reason": ""}


def test_the_time_of_the_servers_is_counted_once_where_they_overlap() -> None:
    times = ((7.0, 1.0), (1.0, 2.0), (2.0, 2.0), (2.5, 0.1))
    calls = [Called("small", "write", "done", started, seconds) for started, seconds in times]
    assert payloads.upstream_seconds(calls) == pytest.approx(4.0)
    assert payloads.calls_of([Answering("x"), *calls]) == [*calls[1:], calls[0]]


def test_usage_counts_the_tokens_of_a_single_model() -> None:
    chain = PROBLEM.extend(step("a", 5))
    events = (Committed(0, step("a", 5)), Answered(step("b", 2)))
    solutions = [solved("b", events=events, chain=chain)] * 2
    assert payloads.usage(10, 4, solutions) == {
        "prompt_tokens": 10,
        "completion_tokens": 16,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 10},
    }
    assert payloads.usage(3, 4, solutions)["prompt_tokens_details"] == {"cached_tokens": 3}
