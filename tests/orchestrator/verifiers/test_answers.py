"""
The answer of a run under a verifier: held back, judged, rewritten, within the budget and the
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from stepspec.orchestrator import Budget, Chain, Ledger, Rating, Step
from stepspec.orchestrator.errors import ContextTooLong, EndpointUnavailable, VerifierFailed
from stepspec.orchestrator.events import (
    Answered,
    Answering,
    AnswerJudged,
    Called,
    Event,
    FellBack,
    Stage,
)
from stepspec.orchestrator.run import Outcome, RunParts
from stepspec.orchestrator.run import run as solve
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Moment, Recorder
from stepspec.orchestrator.verifiers import (
    AnswerCheck,
    Candidate,
    FunctionVerifier,
    SharedVerifier,
    Verifier,
    yes_or_no,
)
from stepspec.policies import make

from ...fakes import ScriptedModel, counting, run, tokenise
from ..arms import PROBLEM

NOTE = "\n\nRejected: {}\n\n"
LATE = EndpointUnavailable("too much work", role="large")


def note(reason: str) -> str:
    return NOTE.format(reason)


@dataclass(eq=False)
class Rewriter(ScriptedModel):
    """A model that writes one of *rewrites* after each note, and goes on with the last one."""

    rewrites: Sequence[str] = ("It is \\boxed{43}.", "It is \\boxed{44}.")

    def next(self, text: str) -> str | None:
        *before, written = text.split("\n\nRejected: ")
        if not before:
            return super().next(text)
        pieces = tokenise(self.rewrites[min(len(before), len(self.rewrites)) - 1])
        place = len(tokenise(written.partition("\n\n")[2]))
        return pieces[place] if place < len(pieces) else None


@dataclass
class Checked:
    """
    A run of four steps whose answers *rate* rates; the large model answers 42, and then what it
    rewrites.
    """

    rate: Callable[[Candidate], Any]
    budget: Budget = field(default_factory=Budget)
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    policy: str = "specreason"
    thinks: bool = True
    by_method: bool = False
    takes: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.small = ScriptedModel("small", counting("small", 4))
        self.large = Rewriter("large", counting("large", 4), log=self.small.log)
        self.candidates: list[Candidate] = []
        self.recorder: Recorder | None = None

    @property
    def moments(self) -> list[Moment]:
        return self.recorder.moments if self.recorder else []

    @property
    def events(self) -> list[Event]:
        return [moment.event for moment in self.moments]

    @property
    def emitted(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Answering)]

    @property
    def verdicts(self) -> list[tuple[bool | None, str, bool]]:
        return [
            (each.accepted, each.reason, each.final)
            for each in self.events
            if isinstance(each, AnswerJudged)
        ]

    async def solve(self) -> Outcome:
        async def rated(candidate: Candidate) -> Any:
            self.candidates.append(candidate)
            await asyncio.sleep(self.takes)
            return self.rate(candidate)

        async def judge(chain: Chain, stage: Stage) -> Rating:
            return await yes_or_no(self.large, chain, f"Is this {stage} right?", "")

        loop = asyncio.get_running_loop()
        recorder = self.recorder = Recorder(loop.time)
        self.small.observe = self.large.observe = recorder
        settings = FunctionVerifier.model_validate({"function": rated, **self.settings})
        verifier = Verifier(SharedVerifier(settings), judge, recorder, loop.time)
        return await solve(
            RunParts(
                make(self.policy, self.small, self.large),
                budget=self.budget,
                ahead=1,
                stop=self.stop,
                by_method=self.by_method,
                check=AnswerCheck(verifier, self.large, note, settings.repairs),
            ),
            replace(PROBLEM, thinks=self.thinks),
            recorder,
        )

    def run(self) -> tuple[Outcome, float]:
        outcome, seconds = run(self.solve())
        assert self.small.open == self.large.open == 0
        return outcome, seconds


def boxed(*right: str) -> Callable[[Candidate], Rating]:
    """Accept the *right* answers."""
    return lambda candidate: Rating(
        float(candidate.answer in right), "" if candidate.answer in right else "off by one"
    )


def test_an_answer_that_a_full_context_cuts_is_not_judged() -> None:
    case = Checked(boxed("42"))
    write = case.large.write

    async def write_and_fail(chain: Chain, **options: Any) -> Step:
        step = await write(chain, **options)
        if chain.closed:
            raise ContextTooLong("full", role="large")
        return step

    vars(case.large).update(write=write_and_fail)
    outcome, _ = case.run()
    assert (outcome.reason, outcome.verified, case.candidates) == ("context", None, [])
    assert case.emitted == [outcome.text]
    assert outcome.text.startswith("So it is")


@pytest.mark.parametrize("by_method", [False, True])
def test_the_stop_that_ended_a_judged_answer_is_known(by_method: bool) -> None:
    outcome, _ = Checked(lambda candidate: True, stop=("it is", "is"), by_method=by_method).run()
    assert (outcome.text.strip(), outcome.verified, outcome.stopped) == ("So", True, "it is")


def test_an_accepted_answer_is_emitted_once_it_is_judged_with_the_problem_and_the_thinking() -> (
    None
):
    case = Checked(boxed("42"))
    outcome, seconds = case.run()
    assert (outcome.answer, outcome.verified, outcome.rejection, outcome.reason) == (
        "42",
        True,
        "",
        "stop",
    )
    assert seconds == 7.0  # those of the run alone, and one for the verdict
    assert case.verdicts == [(True, "", True)]
    kinds = [
        type(event)
        for event in case.events
        if isinstance(event, Answering | AnswerJudged | Answered)
    ]
    assert kinds == [AnswerJudged, Answered, Answering]
    assert case.emitted == ["So it is \\boxed{42}."]
    (candidate,) = case.candidates
    assert (candidate.stage, candidate.problem, candidate.answer) == (
        "answer",
        PROBLEM.messages,
        "42",
    )
    assert candidate.text == outcome.text
    assert [step.strip() for step in candidate.steps] == [
        f"The small one says {place}." for place in range(4)
    ]


def test_the_large_model_rewrites_a_rejected_answer_after_a_note_of_the_reason() -> None:
    case = Checked(boxed("43"))
    outcome, _ = case.run()
    assert (outcome.answer, outcome.text, outcome.verified, outcome.rejection) == (
        "43",
        "It is \\boxed{43}.",
        True,
        "",
    )
    assert case.verdicts == [(False, "off by one", False), (True, "", True)]
    assert case.emitted == ["It is \\boxed{43}."]
    assert [event.step.text for event in case.events if isinstance(event, Answered)] == [
        "It is \\boxed{43}."
    ]
    solution = Solution.of(outcome, case.moments)
    (step,) = [step for step in solution.steps if step.fate == "rejected"]
    assert (step.index, step.author, step.reason, step.detail, step.grade) == (
        4,
        "large",
        "answer",
        "off by one",
        0.0,
    )
    assert (solution.verified, solution.degraded) == (True, ())
    ledger = Ledger.of(case.events)
    assert ledger.critic.requests == 2
    assert ledger.large.discarded == len(tokenise(case.large.answer))


@pytest.mark.parametrize(("repairs", "answer"), [(0, "42"), (1, "43"), (2, "44")])
def test_an_answer_that_stays_rejected_is_given_with_the_reason(repairs: int, answer: str) -> None:
    case = Checked(boxed("none"), settings={"repairs": repairs})
    outcome, _ = case.run()
    assert (outcome.answer, outcome.verified, outcome.rejection) == (answer, False, "off by one")
    assert case.verdicts == [
        (False, "off by one", place == repairs) for place in range(repairs + 1)
    ]
    assert "".join(case.emitted) == outcome.text


def test_the_threshold_decides_about_a_score_between() -> None:
    for threshold, verified in ((0.6, True), (0.7, False)):
        outcome, _ = Checked(
            lambda candidate: 0.6, settings={"threshold": threshold, "repairs": 0}
        ).run()
        assert outcome.verified is verified


@pytest.mark.parametrize(
    ("more", "text"), [(0, "So it is \\boxed{42}."), (2, "It is")], ids=["none", "two"]
)
def test_a_rewritten_answer_has_only_the_tokens_that_are_left(more: int, text: str) -> None:
    thought = Checked(boxed("42")).run()[0].chain.tokens
    answer = len(tokenise(Rewriter.answer))
    case = Checked(boxed("43"), Budget(tokens=thought + answer + more, answer=answer))
    outcome, _ = case.run()
    assert (outcome.text, outcome.verified, outcome.reason) == (text, False, "length")
    assert case.verdicts[0] == (False, "off by one", not more)


def test_a_model_that_rewrites_nothing_leaves_the_rejected_answer() -> None:
    case = Checked(boxed("43"))
    case.large.rewrites = ("",)
    outcome, _ = case.run()
    assert (outcome.answer, outcome.verified, outcome.rejection) == ("42", False, "off by one")
    assert case.emitted == [outcome.text]


@pytest.mark.parametrize(
    ("right", "deadline", "takes", "verified"),
    [("42", 8.0, 3.5, None), ("43", 7.875, 1.0, False)],
    ids=["during the verdict", "while it is rewritten"],
)
def test_time_that_is_up_leaves_the_answer_as_it_was_judged(
    right: str, deadline: float, takes: float, verified: bool | None
) -> None:
    case = Checked(boxed(right), Budget(seconds=deadline), {"seconds": 100}, takes=takes)
    outcome, seconds = case.run()
    assert (outcome.answer, outcome.verified, outcome.reason, seconds) == (
        "42",
        verified,
        "time",
        deadline,
    )
    assert (outcome.rejection, case.emitted) == (
        "off by one" if right == "43" else "",
        [outcome.text],
    )


def test_an_answer_that_time_cut_short_is_not_judged() -> None:
    case = Checked(boxed("42"), Budget(seconds=8.0))
    case.large.latency = lambda chain: 100.0
    outcome, seconds = case.run()
    assert (outcome.text, outcome.verified, outcome.reason, seconds) == ("", None, "time", 8.0)
    assert case.candidates == []


def test_the_part_of_an_answer_that_was_written_in_time_is_given_unjudged() -> None:
    case = Checked(boxed("42"), Budget(seconds=9.0))
    case.large.pace = 1.0
    outcome, _ = case.run()
    assert outcome.text
    assert (outcome.answer == "42", outcome.verified, outcome.reason) == (False, None, "time")
    assert case.candidates == []
    assert len([event for event in case.events if isinstance(event, Answered)]) == 1
    assert "".join(case.emitted) == outcome.text


@pytest.mark.parametrize(
    ("fallback", "answer", "verified", "rejection"),
    [
        ("large", "42", True, ""),
        ("accept", "42", None, ""),
        ("reject", "43", False, "no rating within 2 s (seconds in [critic])"),
    ],
)
def test_a_verifier_that_is_too_late_is_replaced(
    fallback: str, answer: str, verified: bool | None, rejection: str
) -> None:
    case = Checked(boxed("42"), settings={"fallback": fallback, "seconds": 2}, takes=1000.0)
    case.large.judge = lambda chain, question: {"Yes": 0.9} if "answer" in question else {"9": 1.0}
    outcome, seconds = case.run()
    assert (outcome.answer, outcome.verified, outcome.rejection) == (answer, verified, rejection)
    assert seconds < 20


def test_the_large_model_may_reject_in_the_place_of_the_verifier() -> None:
    case = Checked(lambda candidate: 1 / 0)
    case.large.judge = lambda chain, question: {"No": 0.9} if "answer" in question else {"9": 1.0}
    outcome, _ = case.run()
    assert (outcome.answer, outcome.verified) == ("43", False)
    fallen = [event for event in case.events if isinstance(event, FellBack)]
    assert (
        fallen
        == [FellBack("answer", 4, "it raised ZeroDivisionError: division by zero", "large")] * 2
    )
    assert Solution.of(outcome, case.moments).degraded == ("critic",)
    assert [
        call.fate for call in case.events if isinstance(call, Called) and call.role == "critic"
    ] == ["failed"] * 2


def test_a_run_fails_with_its_verifier_if_it_is_to() -> None:
    case = Checked(lambda candidate: 7, settings={"fallback": "fail"})
    with pytest.raises(
        VerifierFailed,
        match=r"verifier rated[-0-9]* gave no rating: its score is 7, and has to be a number",
    ):
        case.run()
    assert case.small.open == case.large.open == 0
    assert case.emitted == []


def test_cancelling_a_run_cancels_its_verifier() -> None:
    async def main() -> None:
        case = Checked(boxed("42"), settings={"seconds": 5000}, takes=1000.0)
        solving = asyncio.create_task(case.solve())
        await asyncio.sleep(20)
        assert [candidate.stage for candidate in case.candidates] == ["answer"]
        solving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await solving
        assert len(asyncio.all_tasks()) == 1

    assert run(main())[1] == 20.0


def test_an_answer_that_the_method_wrote_is_rewritten_by_the_large_model() -> None:
    case = Checked(boxed("43"), by_method=True)
    outcome, _ = case.run()
    assert (outcome.answer, outcome.verified) == ("43", True)
    assert outcome.chain.parts()[1].text.strip() == "So it is \\boxed{42}."
    assert case.candidates[0].answer == "42"
    assert case.emitted == ["It is \\boxed{43}."]
    accepted = Checked(boxed("42"), by_method=True)
    outcome, _ = accepted.run()
    assert (outcome.answer, outcome.verified) == ("42", True)
    assert not [event for event in accepted.events if isinstance(event, Answered)]
    assert accepted.emitted == [outcome.text]


def test_models_that_do_not_think_are_judged_by_all_that_they_wrote() -> None:
    case = Checked(boxed("43"), thinks=False)
    endings = ("One.\n\n", "It is \\boxed{42}.")
    case.small.script = case.large.script = lambda previous: endings[len(previous)]
    outcome, _ = case.run()
    assert (outcome.answer, outcome.text, outcome.verified) == ("43", "It is \\boxed{43}.", True)
    assert case.candidates[0].text == "One.\n\nIt is \\boxed{42}."
    assert case.candidates[0].steps == ()
    assert case.emitted == ["It is \\boxed{43}."]


def test_a_large_model_that_fails_to_judge_fails_the_run() -> None:
    case = Checked(lambda candidate: 1 / 0)
    asked: list[Chain] = []

    def fails(verb: str, chain: Chain) -> Exception | None:
        if verb == "ask" and chain.closed and chain.text.endswith("}."):
            asked.append(chain)
            return LATE
        return None

    case.large.fails = fails
    with pytest.raises(EndpointUnavailable, match="too much work"):
        case.run()
    assert len(asked) == 1
