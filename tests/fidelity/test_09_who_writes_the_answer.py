"""
The large model wrote the whole answer, where the papers' methods go on through it with drafts and
verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec import policies
from stepspec.orchestrator import Budget, Chain, Ledger
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointError,
    EndpointUnavailable,
)
from stepspec.orchestrator.events import (
    Answered,
    Answering,
    Committed,
    Degraded,
    Drafted,
    Event,
    Judged,
    Started,
)
from stepspec.orchestrator.interfaces import answered_by
from stepspec.orchestrator.lookahead import LookaheadControl
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Moment
from stepspec.policies import METHODS
from stepspec.run_parts import Models
from stepspec.service.formats.deltas import DeltaBuilder, usage
from stepspec.settings import load
from tests.fakes import replay

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import BOUNDED, PROBLEM, arm, working
from ..orchestrator.test_run import Case as Run

ANSWER = "\n\nFirst, 6 x 7.\n\nThat is 42.\n\nSo it is \\boxed{42}."
THOUGHT = 3  # steps


class Case(Run):
    """
    A pair that thinks in three steps and answers in three paragraphs, of which the *wrong* drafts
    are bad.
    """

    def __init__(self, *, wrong: Sequence[int] = (), budget: Budget | None = None) -> None:
        super().__init__(budget)
        self.small = ScriptedModel(
            "small", counting("small", THOUGHT), answer=ANSWER, observe=self.events.append
        )
        self.large = ScriptedModel(
            "large", counting("large", THOUGHT), answer=ANSWER.replace("That", "This")
        )
        self.large.observe = self.events.append
        self.large.log = self.small.log

        def judge(chain: Chain, question: str) -> dict[str, float]:
            paragraph = len(chain.parts()[1].steps) - 2  # after the blank line
            return {"2" if paragraph in wrong and chain.steps[-1].author == "small" else "9": 1.0}

        self.large.judge = judge

    def run(self, **how: Any) -> tuple[Outcome, float]:
        return super().run(**{"ahead": 0, "by_method": True, **how})

    @property
    def committed(self) -> list[Committed]:
        return [event for event in self.events if isinstance(event, Committed)]


@pytest.mark.parametrize("ahead", [0, 1, 9])
def test_drafts_and_verdicts_go_on_through_the_answer(ahead: int) -> None:
    case = Case(wrong=[1])
    outcome, _ = case.run(ahead=ahead)
    assert (outcome.text, outcome.answer, outcome.reason) == (
        "First, 6 x 7.\n\nThis is 42.\n\nSo it is \\boxed{42}.",
        "42",
        "stop",
    )
    assert [event.index for event in case.committed] == list(range(len(case.committed)))
    answer = [event.step for event in case.committed[THOUGHT:]]
    assert [(step.author, step.text) for step in answer] == [
        ("small", "\n\n"),
        ("small", "First, 6 x 7.\n\n"),
        ("large", "This is 42.\n\n"),
        ("small", "So it is \\boxed{42}."),
    ]
    assert answer[-1].stop == "end"
    drafted = {event.index for event in case.events if isinstance(event, Drafted)}
    judged = {event.index for event in case.events if isinstance(event, Judged)}
    assert drafted >= judged >= {event.index for event in case.committed}


def test_the_streamed_text_is_verified_and_complete() -> None:
    case = Case(wrong=[0])
    outcome, _ = case.run(ahead=9)
    assert "".join(case.emitted) == outcome.text
    assert case.emitted == ["First, 6 x 7.\n\n", "That is 42.\n\n", "So it is \\boxed{42}."]
    first = next(place for place, event in enumerate(case.events) if isinstance(event, Answering))
    assert [e.index for e in case.events[:first] if isinstance(e, Committed)] == list(
        range(THOUGHT + 2)
    )


def test_the_ledger_the_solution_and_the_trace_hold_the_answer_once() -> None:
    case = Case(wrong=[1])
    outcome, _ = case.run(ahead=3)
    ledger = Ledger.of(case.events)
    assert ledger.small.kept + ledger.large.kept == outcome.chain.tokens
    assert not [event for event in case.events if isinstance(event, Answered)]
    solution = Solution.of(outcome, [Moment(0.0, event) for event in case.events])
    assert solution.thinking == outcome.chain.parts()[0].text
    assert solution.thinking.endswith(THINK_END)
    kept = [step for step in solution.steps if step.fate == "kept"]
    assert "".join(step.text for step in kept) == solution.thinking + ANSWER.replace("That", "This")
    assert replay([Started(PROBLEM.messages, "specreason"), *case.events]) == outcome.chain


def test_the_service_sends_the_answers_steps_as_content_and_counts_them_so() -> None:
    case = Case()
    outcome, _ = case.run()
    builder = DeltaBuilder("both")
    fields: dict[str, str] = {}
    for event in case.events:
        for delta in builder.add_event(event):
            for name, text in delta.fields.items():
                fields[name] = fields.get(name, "") + text
    thinking, answer = outcome.chain.parts()
    assert (
        fields["reasoning"] == fields["reasoning_content"] == thinking.text.removesuffix(THINK_END)
    )
    assert fields["content"] == outcome.text
    solution = Solution.of(outcome, [Moment(0.0, event) for event in case.events])
    counted = usage(9, solutions=[solution])
    assert counted["completion_tokens"] == thinking.tokens + answer.tokens
    assert counted["completion_tokens_details"] == {"reasoning_tokens": thinking.tokens}


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("room", [1, 2, 3, 5, 8, 13, 23])
def test_the_answer_keeps_within_its_budget(room: int, ahead: int) -> None:
    case = Case(budget=Budget(tokens=24 + room, answer=room))  # 24 tokens are thought
    outcome, _ = case.run(ahead=ahead)
    thinking, answer = outcome.chain.parts()
    assert answer.tokens <= max(room, 24 + room - thinking.tokens)
    assert outcome.reason == ("stop" if answer.finished else "length")
    plain = Case().run()[0].text
    assert plain.startswith(outcome.text)


@pytest.mark.parametrize(("seconds", "text"), [(8.0, "First, 6 x 7.\n\n"), (1.0, "")])
def test_a_partial_answer_counts_when_the_time_is_up(seconds: float, text: str) -> None:
    case = Case(budget=Budget(seconds=seconds + 1.5))
    outcome, took = case.run()
    assert (outcome.text, outcome.reason, took) == (text, "time", seconds + 1.5)
    assert "".join(case.emitted) == text


def test_an_answer_that_was_begun_in_the_time_to_think_may_go_on() -> None:
    case = Case(budget=Budget(seconds=15.0))
    # the time to think is over at 11.25, in the middle of the last draft
    outcome, took = case.run()
    assert (outcome.reason, outcome.answer, took) == ("stop", "42", 11.25 + 2.0)


def test_an_answer_that_repeats_itself_ends_there_and_is_not_tried_again() -> None:
    case = Case()
    again = " ".join(map(str, range(150)))
    case.small.answer = case.large.answer = "\n\n" + f"{again}\n\n" * 9
    outcome, _ = case.run()
    assert (outcome.text, outcome.reason) == (f"{again}\n\n" * 3, "repetition")
    assert case.small.log.count(f"large write {len(outcome.chain.steps)}") == 1


def test_an_answer_for_which_the_context_is_too_short_ends_there_and_is_not_tried_again() -> None:
    case = Case()
    full = ContextTooLong("full", role="small")
    case.small.fails = lambda verb, chain: full if "First" in chain.text else None
    outcome, _ = case.run(fallback=False)
    assert (outcome.text, outcome.reason) == ("First, 6 x 7.\n\n", "context")
    assert case.small.log.count(f"small write {len(outcome.chain.steps)}") == 1


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("failure", [EndpointUnavailable, ContextTooLong])
def test_a_small_model_that_is_lost_in_the_answer_is_replaced_there(
    failure: type[EndpointError], ahead: int
) -> None:
    case = Case()
    gone = failure("it failed", role="small", url="http://here", verb="write")
    case.small.fails = lambda verb, chain: gone if "First" in chain.text else None
    outcome, _ = case.run(ahead=ahead)
    assert outcome.text == "First, 6 x 7.\n\nThis is 42.\n\nSo it is \\boxed{42}."
    assert [event.role for event in case.events if isinstance(event, Degraded)] == ["small"]
    assert "".join(case.emitted) == outcome.text


def test_an_answer_without_text_is_left_to_the_large_model() -> None:
    case = Case()
    case.small.answer = ""
    outcome, _ = case.run()
    assert outcome.answer == "42"
    assert {(step.author, step.note) for step in outcome.chain.parts()[1].steps} == {
        ("large", "empty")
    }


def test_one_model_may_answer_alone() -> None:
    case = Case()
    outcome, _ = case.run(by_method=False, answerer=case.small)
    assert outcome.text == ANSWER.strip()
    assert [event.step.author for event in case.events if isinstance(event, Answered)] == ["small"]


@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from([name for name in METHODS if name not in (*policies.BASELINES, "reward")]),
    ahead=st.builds(working, st.sampled_from([1, 2, 5]), hedge=st.sampled_from([0.0, 1.0])),
    tokens=st.sampled_from([40, 80, 8192]),
)
@BOUNDED
def test_thinking_and_answer_are_the_same_at_any_lookahead(
    seed: int, name: str, ahead: LookaheadControl, tokens: int
) -> None:
    def outcome(ahead: int | LookaheadControl) -> tuple[Outcome, list[Event]]:
        budget = Budget(tokens)
        tried = arm(name, seed, budget=budget)
        events = list[Event]()
        tried.small.answer = ANSWER
        tried.large.answer = ANSWER.replace("That", "This")
        solving = solve(
            RunParts(tried.policy, budget=budget, ahead=ahead, by_method=True),
            PROBLEM,
            events.append,
        )
        found = run(solving)[0]
        assert tried.small.open == tried.large.open == 0
        thinking, answer = found.chain.parts()
        assert answer.tokens <= max(budget.for_answer, tokens - thinking.tokens)
        pieces = "".join(event.text for event in events if isinstance(event, Answering))
        assert pieces == found.text
        return found, events

    (plain, _) = outcome(0)
    (other, events) = outcome(ahead)
    assert other == plain
    assert replay([Started(PROBLEM.messages, name), *events]) == plain.chain


def test_each_method_answers_as_in_its_paper() -> None:
    found = {
        name: answered_by(method.build)
        for name, method in METHODS.items()
        if name not in policies.BASELINES
    }
    assert found == {
        "specreason": "method",
        "speculative-thinking": "method",
        "bild": "method",
        "glimpse": "large",
        "cascade": "large",
        "choose": "method",
        "random": "method",
        "reading": "method",
        "reflective": "method",
        "lookahead-reasoning": "method",
        "reward": "method",
        "relay": "small",
    }


def test_a_run_may_override_it_but_a_baseline_uses_one_model() -> None:
    case = Case()
    models = Models(case.small, case.large, None, Budget())

    def role(name: str, answer: object = None) -> str | None:
        answerer = models.answerer(name, answer)  # type: ignore[arg-type]
        return answerer.role if answerer else None

    assert [role("specreason"), role("relay"), role("glimpse")] == [None, "small", "large"]
    assert [role("specreason", by) for by in ("large", "method", "small")] == [
        "large",
        None,
        "small",
    ]
    assert [role(name, "method") for name in policies.BASELINES] == ["large", "small"]
    formatting = Models(case.small, case.large, None, Budget(), case.large)
    assert formatting.answerer("specreason", "method") is not None


def test_answer_is_a_setting_that_bears_on_a_calibration() -> None:
    assert load().answer is None
    assert load().conditions()["answer"] == "method"
    assert load(policy="relay", options={"cues": ["So"]}).conditions()["answer"] == "small"
    assert load(answer="large").conditions()["answer"] == "large"
    with pytest.raises(ConfigurationError, match=r"answer: .*'large', 'method' or 'small'"):
        load(answer="nobody")
