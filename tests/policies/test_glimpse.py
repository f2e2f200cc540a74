"""
GlimpRouter: one token of the small model decides which model writes the step, in the request that
may write it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Any

import pytest

from stepspec.orchestrator import Accept, Rollback, Step, Token, reason
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.events import Called, Event
from stepspec.policies import Glimpse
from stepspec.policies.glimpse import doubt, entropy

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM


def equal(count: int) -> list[Token]:
    """Rivals that are all as likely, and the entropy log(count) of theirs."""
    return [Token(f" {number}", log(1 / count)) for number in range(count)]


def pair(hard: Sequence[int], rivals: int = 8) -> tuple[ScriptedModel, ScriptedModel]:
    """
    Make a small model that is unsure of the first token of the paragraphs at *hard*, and of no
    other.
    """

    def likeliest(before: str, token: str) -> list[Token]:
        *previous, begun = before.split("\n\n")
        return equal(rivals) if not begun and len(previous) in hard else [Token(token)]

    small = ScriptedModel("small", counting("small", 4), rivals=likeliest)
    return small, ScriptedModel("large", counting("large", 4), log=small.log)


def test_a_step_costs_one_request_and_a_glimpse_one_token() -> None:
    small, large = pair([1, 3])
    events: list[Event] = []
    small.observe = large.observe = events.append
    small.pace = large.pace = 0.125
    run(reason(Glimpse(small, large), PROBLEM))
    calls = [(event.role, event.written) for event in events if isinstance(event, Called)]
    assert calls == [
        ("small", 6),
        ("small", 1),
        ("large", 6),
        ("small", 6),
        ("small", 1),
        ("large", 8),
    ]


def test_an_entropy_that_is_just_the_threshold_is_enough_for_both_looks() -> None:
    policy = Glimpse(*pair([0], rivals=4), threshold=doubt(equal(4)))
    draft = run(policy.draft(PROBLEM))[0]
    assert (len(draft.tokens), draft.stop) == (1, "until")
    assert isinstance(run(policy.verify(PROBLEM, replace(draft, stop="delimiter")))[0], Rollback)


@pytest.mark.parametrize(("options", "count"), [({}, 20), ({"top": 3}, 3)])
def test_only_the_requested_number_of_rivals_is_read(options: dict[str, Any], count: int) -> None:
    draft = run(Glimpse(*pair([0], rivals=40), threshold=9, **options).draft(PROBLEM))[0]
    assert len(draft.tokens[0].top) == count


def test_the_end_of_thinking_as_a_first_token_is_glimpsed_at_too() -> None:
    small, large = pair([0])
    small.script = lambda previous: THINK_END
    policy = Glimpse(small, large)
    draft = run(policy.draft(PROBLEM))[0]
    assert draft.stop == "end"
    assert isinstance(run(policy.verify(PROBLEM, draft))[0], Rollback)


@pytest.mark.parametrize(
    ("stop", "verdict"), [("until", Rollback(reason="entropy", score=0.0)), ("end", Accept(0.0))]
)
def test_a_draft_without_tokens_was_handed_over_or_ends_the_turn(
    stop: str, verdict: Accept | Rollback
) -> None:
    draft = Step("", "small", "until" if stop == "until" else "end")
    assert run(Glimpse(*pair([])).verify(PROBLEM, draft))[0] == verdict


@pytest.mark.parametrize(
    ("chances", "nats"),
    [
        ((), 0),
        ((0.3,), 0),
        ((0.5, 0.5), log(2)),
        ((0.1, 0.1, 0.1, 0.1), log(4)),  # Of the rest of the probability nothing is known.
        ((0.25, 0.75), 0.562335),
        ((0.5, 0.5, 0.0), log(2)),
        ((0.0,), 0),
    ],
)
def test_entropy_is_that_of_the_known_rivals_in_nats(chances: Sequence[float], nats: float) -> None:
    assert entropy(chances) == pytest.approx(nats)
