"""What makes verdicts cheaper: a question that is cached or short, and drafts that are accepted without a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from stepspec.cli.terminal import summary
from stepspec.evals.calibration.policy_file import decisions
from stepspec.evals.calibration.search import CalibrationRun, repeats
from stepspec.orchestrator import Accept, Budget, Chain, Ledger, Rollback, Step, reason
from stepspec.orchestrator.budget import Budgeted
from stepspec.orchestrator.calibration import Calibration, RunConditions
from stepspec.orchestrator.chain import THINK_END, Message
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Called, Committed, Event, Judged, JudgedWithin
from stepspec.orchestrator.solution import Solution
from stepspec.policies import SpecReason, check, make
from stepspec.prompts import load
from stepspec.settings import Settings, conditions

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import PROBLEM, taste

GRADE, SHORT, KNOWN, BEFORE = (load(f"specreason.grade{name}") for name in ("", "-short", "-known", "-before"))
INSTRUCTED = Chain.of(f"{PROBLEM.messages[0].content}\n\n{BEFORE.text}")


def policy(length: int = 12, wrong: tuple[int, ...] = (), **options: Any) -> SpecReason:
    """SpecReason with a judge that finds the small model's steps at the places *wrong* wrong, and no others."""

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {"2" if len(chain.steps) - 1 in wrong else "9": 1.0}

    small = ScriptedModel("small", counting("small", length))
    large = ScriptedModel("large", counting("large", length), judge=judge, log=small.log)
    made = make("specreason", small, large, **options)
    assert isinstance(made, SpecReason)
    return made


def events_of(tried: SpecReason, ahead: int = 0) -> list[Event]:
    events: list[Event] = []
    for model in (tried.small, tried.large):
        assert isinstance(model, ScriptedModel)
        model.observe = events.append
    run(reason(tried, PROBLEM, ahead=ahead, observe=events.append))
    return events


def skipped(events: list[Event]) -> list[int]:
    """The indices of the committed drafts that nobody judged."""
    found = {e.index for e in events if isinstance(e, Judged) and isinstance(e.verdict, Accept) and e.verdict.skipped}
    return [e.index for e in events if isinstance(e, Committed) and e.index in found]


# Where the question stands.


@pytest.mark.parametrize(
    ("question", "before", "asked"),
    [("after", PROBLEM, GRADE), ("before", INSTRUCTED, KNOWN), ("short", PROBLEM, SHORT)],
)
def test_the_instruction_stands_after_the_draft_or_before_the_reasoning_or_nowhere(
    question: str, before: Chain, asked: Any
) -> None:
    seen: list[tuple[Chain, str]] = []
    openings: list[str] = []

    class Listening(ScriptedModel):
        async def write(self, chain: Chain, **options: Any) -> Step:
            seen.append((chain, "write"))
            return await super().write(chain, **options)

        async def ask(self, chain: Chain, question: str, choices: Any, *, opening: str = "") -> Mapping[str, float]:
            seen.append((chain, question))
            openings.append(opening)
            return await super().ask(chain, question, choices, opening=opening)

    small, large = (Listening(role, counting(role, 3)) for role in ("small", "large"))
    tried = make("specreason", small, large, question=question)
    draft = Step("So it is.\n\n", "small")
    assert run(tried.verify(PROBLEM, draft))[0] == Accept(9.0)
    run(tried.repair(PROBLEM, draft, Rollback()))
    run(tried.draft(PROBLEM))
    # The large model writes after the text that it judged by, so that one cached chain serves both.
    assert seen == [(before.extend(draft), asked.text), (before, "write"), (PROBLEM, "write")]
    assert openings == [GRADE.opening]


def test_the_instruction_follows_the_last_message_of_a_conversation() -> None:
    turns = (
        Message("system", "Be brief."),
        Message("user", "1 + 1?"),
        Message("assistant", "2"),
        Message("user", "And?"),
    )
    asked: list[Chain] = []

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        asked.append(chain)
        return {"9": 1.0}

    large = ScriptedModel("large", counting("large", 3), judge=judge)
    run(SpecReason(large, large, question="before").verify(Chain.of(turns), Step("3.\n\n", "small")))
    assert asked[0].messages == (*turns[:3], Message("user", f"And?\n\n{BEFORE.text}"))


def test_the_shorter_questions_are_shorter_and_open_the_same_reply() -> None:
    assert len(KNOWN.text) < len(SHORT.text) < len(GRADE.text) / 3
    assert KNOWN.opening == SHORT.opening == GRADE.opening


@pytest.mark.parametrize("question", ["before", "short"])
def test_several_steps_at_once_have_a_question_of_their_own(question: str) -> None:
    with pytest.raises(ConfigurationError, match="judge_every asks its own question") as caught:
        check("specreason", {"judge_every": 2, "question": question})
    assert caught.value.option == "question"
    assert check("specreason", {"judge_every": 2, "question": "after"})


# Which drafts are not judged.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"skip": 1, "skip_after": 1}, [1, 3, 5, 7, 9]),
        ({"skip": 2, "skip_after": 3}, [3, 4, 6, 7, 9, 10]),
        ({"skip": 3}, [8, 9, 10]),
        ({"skip": 16, "skip_after": 1}, list(range(1, 11))),  # The last step ends the thinking.
        ({"skip": 1, "skip_after": 12}, []),
    ],
)
@pytest.mark.parametrize("ahead", [0, 3])
def test_as_many_drafts_as_wanted_are_skipped_between_two_verdicts(
    options: dict[str, Any], expected: list[int], ahead: int
) -> None:
    events = events_of(policy(**options), ahead)
    assert skipped(events) == expected
    asked = [event for event in events if isinstance(event, Called) and event.verb == "ask"]
    assert len(asked) == 12 - len(expected)
    ledger = Ledger.of(events)
    assert (ledger.skipped, ledger.drafts, ledger.accepted) == (len(expected), len(asked), len(asked))
    judging = sum(event.prompt + event.written for event in asked)
    assert ledger.large.judging == judging


def test_a_rejected_draft_makes_the_next_ones_judged_again() -> None:
    # 2 and 3 are skipped; 4 is rejected and repaired, 5 and 6 are judged, 7 and 8 skipped, 9 judged, 10 skipped.
    events = events_of(policy(wrong=(4,), skip=2, skip_after=2))
    assert skipped(events) == [2, 3, 7, 8, 10]
    ledger = Ledger.of(events)
    assert (ledger.skipped, ledger.drafts, ledger.accepted, ledger.accept_rate) == (5, 7, 6, 6 / 7)
    shown = summary(Solution("42", "", "", (), ledger, "stop", 1.0)).plain
    assert "86% of 7 drafts accepted, 5 drafts not judged, " in shown
    assert "not judged" not in summary(Solution("42", "", "", (), replace(ledger, skipped=0), "stop", 1.0)).plain


def test_a_wrong_step_that_is_skipped_stays() -> None:
    (chain, _), _ = run(reason(policy(wrong=(2, 3), skip=1, skip_after=2), PROBLEM))
    assert [step.author for step in chain.steps[:4]] == ["small", "small", "small", "large"]


@pytest.mark.parametrize("judge_every", [1, 3])
def test_the_chain_is_the_same_at_any_lookahead(judge_every: int) -> None:
    for seed, skip in product(range(12), (1, 2, 5)):
        wrong = tuple(place for place in range(24) if taste(seed, place) < 0.3)
        tried = policy(24, wrong, skip=skip, skip_after=1 + seed % 3, judge_every=judge_every)
        first, *others = (run(reason(tried, PROBLEM, ahead=ahead))[0] for ahead in (0, 1, 4))
        assert all(other == first for other in others)


@pytest.mark.parametrize("tokens", [40, 57, 58, 59, 60, 90])
def test_budgets_hold_where_drafts_are_skipped(tokens: int) -> None:
    budget, plain = Budget(tokens=tokens, answer=8), policy(30, (5,))
    bounded = SpecReason(Budgeted(plain.small, budget.left), Budgeted(plain.large, budget.left), skip=3, skip_after=1)
    (chain, end), _ = run(reason(bounded, PROBLEM, spent=budget.spent, ahead=2))
    assert end == "budget"
    assert chain.tokens == tokens - 8


@pytest.mark.parametrize(
    "draft",
    [
        Step("So it is", "small", "length"),
        Step("So it is.\n", "small", "open"),
        Step(f"So it is.\n{THINK_END}", "small", "end"),
    ],
)
def test_incomplete_steps_and_the_end_of_the_thinking_are_always_judged(draft: Step) -> None:
    chain = PROBLEM.extend(Step("First.\n\n", "small"))
    assert run(policy(skip=9, skip_after=1).verify(chain, draft))[0] == Accept(9.0)
    whole = replace(draft, text="So it is.\n\n", stop="delimiter")
    assert run(policy(skip=9, skip_after=1).verify(chain, whole))[0] == Accept(skipped=True)
    closed = chain.extend(Step(f"So.\n{THINK_END}", "small", "end")).extend(Step("\n\nWell.\n\n", "small"))
    assert run(policy(skip=9, skip_after=1).verify(closed, whole))[0] == Accept(9.0)


def test_the_ledger_of_a_nested_pair_leaves_out_what_was_not_judged() -> None:
    draft = Step("So.\n\n", "small")
    verdicts = Accept(9.0), Accept(skipped=True), Rollback(reason="grade", score=2.0)
    assert Ledger.of(JudgedWithin("small", 0, draft, verdict) for verdict in verdicts).sifted == (("small", 2, 1),)


@pytest.mark.parametrize("verdict", [Accept(9.0), Accept(skipped=True)])
def test_a_lost_bet_with_the_text_of_a_committed_draft_does_not_change_whether_that_was_judged(verdict: Accept) -> None:
    draft, score = Step("So.\n\n", "small"), None if verdict.skipped else 9.0
    other = Accept(9.0) if verdict.skipped else Accept(skipped=True)
    for events in (
        [Judged(0, draft, other), Judged(0, draft, verdict)],
        [Judged(0, draft, verdict), Judged(0, draft, other)],
    ):
        ledger = Ledger.of([*events, Committed(0, draft, score)])
        assert (ledger.skipped, ledger.accepted) == (int(verdict.skipped), int(not verdict.skipped))


# What is promised.


def calibration_run(value: float, wrong: Mapping[int, str], length: int = 24, **options: Any) -> CalibrationRun:
    tried = policy(length, threshold=value, **options)
    assert isinstance(tried.large, ScriptedModel)
    tried.large.judge = lambda chain, question: {wrong.get(len(chain.steps) - 1, "9"): 1.0}
    events: list[Event] = []
    (chain, _), _ = run(reason(tried, PROBLEM, ahead=2, observe=events.append))
    return CalibrationRun(0, value, True, decisions=tuple(decisions(events)), text=chain.text)


def test_a_calibration_may_reuse_runs_in_which_drafts_were_skipped() -> None:
    values = (9.0, 7.0, 4.0, 0.0)
    reused = 0
    for seed in range(20):
        grades = {place: str(int(10 * taste(seed, place))) for place in range(24) if taste(seed, place, "doubt") < 0.2}
        runs = [calibration_run(value, grades, skip=2, skip_after=1 + seed % 3) for value in values]
        for earlier, later in pairwise(runs):
            assert later.value is not None
            assert repeats(earlier, later, values)
            if earlier.first_change(later.value) is None:
                reused += 1
                assert earlier.text == later.text
    assert reused


def test_a_calibration_covers_only_runs_that_judge_as_it_did() -> None:
    def found(**options: Any) -> RunConditions:
        chosen = {"threshold": 6.0, **options}
        return RunConditions("specreason", {}, conditions(Settings(policy="specreason", options=chosen)))

    def monitor(made: RunConditions) -> Calibration:
        values = dict(made.values)
        values["options"] = {name: value for name, value in values["options"].items() if name != "threshold"}
        promise = {"policy": "specreason", "option": "threshold", "value": 6.0, "max_loss": 0.02, "confidence": 0.95}
        return Calibration.model_validate({**promise, "conditions": values})

    assert not monitor(found()).differences(found())
    assert monitor(found()).differences(found(skip=3)) == ("options.skip",)
    assert monitor(found()).differences(found(question="short")) == ("options.question",)
    assert not monitor(found(skip=3)).differences(found(skip=3))
    assert monitor(found(skip=3)).differences(found(skip=4))
