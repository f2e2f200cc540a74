"""Choose: the best rival that passes replaces a rejected draft; otherwise it is SpecReason."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepspec.orchestrator import Accept, Chain, Ledger, Rollback, Step, Token, reason
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import EndpointUnavailable
from stepspec.orchestrator.events import (
    Answered,
    Called,
    Chosen,
    Committed,
    Event,
    Judged,
    Repaired,
    Started,
)
from stepspec.orchestrator.interfaces import WriteOptions
from stepspec.orchestrator.repetition import SPAN_UNITS, LoopGuard
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Moment, dump, parse
from stepspec.policies import Choose, SpecReason, make
from stepspec.policies.choose import forks
from tests.fakes import replay

from ..fakes import ScriptedModel, counting, run
from ..orchestrator.arms import BOUNDED, PROBLEM, arm

SEEDS = st.integers(0, 10_000)
DRAFT, A, B, C = (f"So it is {number}.\n\n" for number in (1, 2, 3, 4))
LIKELY: Mapping[str, float] = {" 2": -1.0, " 3": -1.5, " 4": -2.0}


def pair(
    grades: Mapping[str, int], likely: Mapping[str, float] = LIKELY, length: int = 3
) -> tuple[ScriptedModel, ScriptedModel]:
    """
    The small model writes DRAFT, and finds the *likely* numbers likely; the judge gives *grades*,
    or else a 9.
    """

    def script(previous: tuple[str, ...]) -> str:
        if previous:
            return counting("small", length)(previous)
        return DRAFT

    def rivals(before: str, token: str) -> Sequence[Token]:
        own = Token(token, -0.25, 1)
        return (
            [own, *[Token(text, logprob) for text, logprob in likely.items()]]
            if token == " 1"
            else [own]
        )

    def judge(chain: Chain, question: str) -> Mapping[str, float]:
        return {str(grades.get(chain.steps[-1].text, 9)): 1.0}

    small = ScriptedModel("small", script, rivals=rivals)
    return small, ScriptedModel("large", counting("large", length), judge=judge, log=small.log)


def verdict(grades: Mapping[str, int], **options: Any) -> tuple[Accept | Rollback, float]:
    policy = Choose(*pair(grades), **options)

    async def judged() -> Accept | Rollback:
        return await policy.verify(PROBLEM, await policy.draft(PROBLEM))

    return run(judged())


def texts(ruling: Accept | Rollback) -> list[tuple[str, float | None, str]]:
    return [(rival.step.text, rival.score, rival.reason) for rival in ruling.rivals]


@pytest.mark.parametrize(
    ("grades", "kept", "others"),
    [
        ({DRAFT: 2, A: 7, B: 9, C: 8}, B, [(A, 7.0, "beaten"), (B, 9.0, ""), (C, 8.0, "beaten")]),
        ({DRAFT: 2, A: 6, B: 3, C: 7}, C, [(A, 6.0, "grade"), (B, 3.0, "grade"), (C, 7.0, "")]),
        ({DRAFT: 2, A: 8, B: 8, C: 8}, A, [(A, 8.0, ""), (B, 8.0, "beaten"), (C, 8.0, "beaten")]),
        (
            {DRAFT: 2, A: 6, B: 5, C: 0},
            None,
            [(A, 6.0, "grade"), (B, 5.0, "grade"), (C, 0.0, "grade")],
        ),
    ],
)
def test_the_best_rival_that_passes_is_accepted(
    grades: Mapping[str, int], kept: str | None, others: list[tuple[str, float, str]]
) -> None:
    ruling, seconds = verdict(grades)
    # the draft, its grade, its rivals in one request, and their grades at once
    assert seconds == 4.0
    assert isinstance(ruling, Rollback)
    assert (ruling.reason, ruling.score, texts(ruling)) == ("grade", 2.0, others)
    assert (ruling.chosen.step.text if ruling.chosen else None) == kept


def test_the_likeliest_rivals_are_written() -> None:
    ruling, _ = verdict({DRAFT: 2}, candidates=2)
    assert [rival.step.text for rival in ruling.rivals] == [A]


def test_an_equal_or_looping_rival_is_refused_without_a_question() -> None:
    class Odd(ScriptedModel):
        async def write(self, chain: Chain, **options: Unpack[WriteOptions]) -> Step:
            step = await super().write(chain, **options)
            return Step(odd_texts.get(options.get("opening", ""), step.text), "small")

    again = " ".join(map(str, range(150))) + "\n\n"
    small, large = pair({DRAFT: 2, B: 6}, {**LIKELY, " 5": -2.5})
    odd_texts = {
        "So it is 2": " So it is 1. \n\n",
        "So it is 3": again,
        "So it is 4": B,
        "So it is 5": B,
    }
    odd = Odd("small", small.script, rivals=small.rivals, log=small.log)
    chain = PROBLEM.extend(Step(again, "small")).extend(Step(again, "small"))
    policy = Choose(odd, large, candidates=5)
    draft = run(Choose(small, large, candidates=5).draft(PROBLEM))[0]
    ruling = run(policy.verify(chain, draft))[0]
    assert texts(ruling) == [
        (" So it is 1. \n\n", None, "same"),
        (again, None, "repetition"),
        (B, 6.0, "grade"),
        (B, None, "same"),
    ]
    assert small.log.count("large ask 3") == 2


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_chosen_rival_is_an_accepted_draft_and_every_token_is_accounted_for(ahead: int) -> None:
    small, large = pair({DRAFT: 2, A: 6, B: 8})
    events: list[Event] = [Started(PROBLEM.messages, "choose")]
    small.observe = large.observe = events.append
    (chain, end), _ = run(reason(Choose(small, large), PROBLEM, ahead=ahead, observe=events.append))
    assert end == "finished"
    assert chain.steps[0].text == C  # the judge gives it a 9
    ledger = Ledger.of(events)
    assert (ledger.drafts, ledger.accepted, ledger.chosen, ledger.accept_rate) == (3, 3, 1, 1.0)
    written = sum(
        event.written for event in events if isinstance(event, Called) and event.role == "small"
    )
    assert ledger.small.kept == chain.tokens
    assert ledger.small.written == written
    assert (ledger.large.kept, ledger.large.discarded) == (0, 0)
    kinds = [type(event) for event in events if isinstance(event, Chosen | Committed | Repaired)]
    assert kinds == [Chosen, Committed, Committed, Committed]
    assert replay(events) == chain
    assert [parse(dump(Moment(0.0, event))).event for event in events] == events
    solution = Solution.of(Outcome(chain, "", "stop"), [Moment(0.0, event) for event in events])
    rows = [
        (step.text, step.grade, step.fate, step.reason)
        for step in solution.steps
        if step.index == 0
    ]
    assert rows == [
        (DRAFT, 2.0, "rejected", "grade"),
        (A, 6.0, "rejected", "grade"),
        (B, 8.0, "rejected", "beaten"),
        (C, 9.0, "kept", ""),
    ]


def test_a_judge_that_fails_at_the_rivals_approves_of_none() -> None:
    small, large = pair({DRAFT: 2})
    failing = EndpointUnavailable("gone", role="large", url="http://x", verb="ask")
    large.fails = lambda verb, chain: (
        failing if verb == "ask" and chain.steps[0].text != DRAFT else None
    )
    (chain, _), _ = run(reason(Choose(small, large), PROBLEM, spent=Budget(steps=1).spent))
    assert [(step.author, step.note) for step in chain.steps] == [("large", "no verdict")]


@pytest.mark.parametrize("tokens", [6, 15, 24])
def test_rivals_stay_within_the_budget(tokens: int) -> None:
    tried = arm("choose", 7, budget=Budget(tokens))
    run(tried.run(1))
    rivals = [
        rival
        for event in tried.events
        if isinstance(event, Judged)
        for rival in event.verdict.rivals
    ]
    assert all(len(rival.step.tokens) <= tokens - Budget(tokens).for_answer for rival in rivals)


def test_after_a_rival_that_ends_the_thinking_the_answer_is_its_own() -> None:
    draft = f"So it is 1.\n{THINK_END}"
    rival = f"So it is 2.\n{THINK_END}"
    small, large = pair({draft: 2})
    small.script = lambda previous: draft
    large.answer = "\n\nThe answer is 7."
    events: list[Event] = []
    outcome, seconds = run(
        solve(RunParts(Choose(small, large), budget=Budget(), ahead=1), PROBLEM, events.append)
    )
    assert (outcome.chain.text, outcome.reason) == (rival, "stop")
    assert len([event for event in events if isinstance(event, Answered)]) == 1
    assert seconds == 5.0  # four requests as ever, and the answer


@pytest.mark.parametrize(("options", "count"), [({}, 4), ({"candidates": 3}, 3)])
def test_only_the_needed_number_of_alternatives_is_requested(
    options: Mapping[str, Any], count: int
) -> None:
    small, large = pair({})
    small.rivals = lambda before, token: [Token(f"w{place}") for place in range(30)]
    draft, _ = run(Choose(small, large, **options).draft(PROBLEM))
    assert {len(token.top) for token in draft.tokens} == {count}


def test_every_option_of_specreason_counts() -> None:
    options: dict[str, Any] = {"threshold": 5, "read": "greedy", "sure": 0.5}
    models = pair({})
    assert Choose(*models, **options).alone == SpecReason(*models, **options)


@pytest.mark.parametrize(
    ("guard", "reason"), [(LoopGuard(), "repetition"), (LoopGuard(4), ""), (None, "")]
)
def test_a_rival_in_a_loop_is_rejected_unless_loops_are_not_stopped(
    guard: LoopGuard | None, reason: str
) -> None:
    small, large = pair({DRAFT: 2}, {" 2": -1.0})
    policy = make("choose", small, large, loop_guard=guard)
    round_ = "".join(f" w{number}" for number in range(SPAN_UNITS))
    looping = Chain(PROBLEM.messages, (Step(round_ * (LoopGuard().rounds_to_reject - 1), "large"),))

    async def write(chain: Chain, **options: Unpack[WriteOptions]) -> Step:
        return Step(round_, "small", "delimiter")

    small.write = write  # type: ignore[method-assign]
    draft = Step("So", "small", "delimiter")
    assert isinstance(policy, Choose)
    rivals, _ = run(policy.rivals(looping, draft, [draft.text]))
    assert [rival.reason for rival in rivals] == [reason]


@given(seed=SEEDS, ahead=st.sampled_from([0, 1, 3]), sticky=st.booleans())
@BOUNDED
def test_one_candidate_is_specreason_call_for_call(seed: int, ahead: int, sticky: bool) -> None:
    runs: list[tuple[object, float, list[str], list[Event]]] = []
    for policy in (SpecReason, Choose):
        tried = arm("choose", seed, sticky=sticky)
        options: dict[str, Any] = {}
        if policy is Choose:
            options = {"candidates": 1, "least": 0.01}
        tried.policy = policy(tried.small, tried.large, **options)
        result, seconds = run(tried.run(ahead))
        runs.append((result, seconds, tried.log, tried.events))
    assert runs[0] == runs[1]


# Beginnings of rivals: none is the beginning of another, and none is a stump.

NEVER = -math.inf
LOGPROBS = st.floats(-6, 0)


def token(text: str, *others: tuple[str, float], id: int = 1) -> Token:
    own = Token(text, -0.1, 1)
    return Token(text, -0.1, 1, id, (own, *[Token(other, logprob) for other, logprob in others]))


def step(*tokens: Token) -> Step:
    return Step("".join(token.text for token in tokens), "small", "delimiter", tokens, "words")


def begun(step: Step, least: float = NEVER) -> list[str]:
    return forks(PROBLEM, step, least)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Steps of words that tell different words for their places."""
    words = draw(st.lists(st.sampled_from([" a", " b", " c", "d"]), min_size=1, max_size=6))
    likely = st.dictionaries(
        st.sampled_from([" a", " b", " c", "d", " </s>", "\n\n"]), LOGPROBS, max_size=4
    )
    return step(*[token(word, *draw(likely).items()) for word in words])


def test_the_likeliest_are_first_and_among_equals_the_earlier() -> None:
    draft = step(
        token("So", ("Wait", -2.0)), token(" 7", (" 8", -1.0), (" 9", -2.0)), token(".\n\n")
    )
    assert begun(draft) == ["So 8", "Wait", "So 9"]
    assert begun(draft, -1.0) == ["So 8"]
    assert begun(draft, -0.99) == []


def test_delimiters_and_tokens_without_words_begin_no_rival() -> None:
    odd = ("\n\n", f"a{THINK_END}", "<|im_end|>", "</s>", "\ufffd", "", " <|eot_id|>", "So")
    assert begun(step(token("So", *[(text, -1.0) for text in odd], ("1 < 2 > 0", -1.0)))) == [
        "1 < 2 > 0"
    ]
    assert begun(step(token("So\n"), token("it", ("\n", -1.0), (" is", -2.0)))) == ["So\n is"]


def test_a_token_that_was_cut_and_the_middle_of_a_character_are_no_place_to_fork() -> None:
    assert begun(step(token("So"), token(".\n\n", (" and", -1.0), id=-1))) == []
    half = token("", (" b", -1.0))
    assert begun(step(token("a"), half, token("é", ("x", -1.0)), token("c", ("y", -1.0)))) == [
        "a b",
        "aéy",
    ]
    assert begun(step(token("", (" b", -1.0)), token("é", ("x", -1.0)), token(""))) == [" b"]


def test_rivals_with_the_text_of_the_draft_are_dropped() -> None:
    same = "".join(("S", "o"))
    assert begun(step(token("So", (same, -0.1), ("It", -1.0), id=0))) == ["It"]


@given(draft=steps(), least=st.floats(-6, 0))
@BOUNDED
def test_no_beginning_is_the_beginning_of_another_or_of_the_step(draft: Step, least: float) -> None:
    likely: dict[str, float] = {}
    before = ""
    for token in draft.tokens:
        likely |= {before + other.text: other.logprob for other in token.top}
        before += token.text
    found = forks(PROBLEM, draft, least)
    logprobs = [likely[text] for text in found]
    assert logprobs == sorted(logprobs, reverse=True)
    assert all(logprob >= least for logprob in logprobs)
    written = [re.findall(" [abc]|d", text) for text in (draft.text, *found)]
    assert ["".join(words) for words in written] == [draft.text, *found]
    for place, words in enumerate(written):
        assert not any(
            other[: len(words)] == words for number, other in enumerate(written) if number != place
        )
