"""The result of a run, for users: values only, made from the run's outcome and its trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from .chain import Role, Rollback, Step, ToolCall
from .events import (
    AnswerJudged,
    Choice,
    Committed,
    Decided,
    Degraded,
    Event,
    FellBack,
    Judged,
    Lost,
    Started,
)
from .ledger import Ledger
from .run import FinishReason, Outcome
from .trace import Moment

StepFate: TypeAlias = Literal["kept", "rejected", "lost"]


@dataclass(frozen=True, slots=True)
class SolvedStep:
    """
    One step that was written, and its fate.

    *fate* is "kept", "rejected" (by the verdict) or "lost" (a bet on a rejected step). *grade* is
    the verdict's score; None if there is none. *reason* says why the step, or the step that it
    repairs, was rejected, and *detail* what a verifier said about it. *at* is in seconds since the
    run began. A rejected answer is a step too (reason "answer").
    """

    index: int
    author: Role
    text: str
    grade: float | None
    fate: StepFate
    reason: str
    at: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """
    Consecutive *steps* of a run with `auto`, and why they were written as they were.

    With the *choice* "method" the method wrote them, *ahead* drafts ahead; with "large" the large
    model alone.
    """

    choice: Choice
    ahead: int
    steps: int
    reason: str


@dataclass(frozen=True, slots=True)
class Solution:
    r"""
    The solution of a problem.

    *answer* is the content of the last ``\boxed{}`` of *text*, or its last line. *text* was written
    after the thinking, and *thinking* is the text of the committed steps before it. *steps* are all
    steps that were written, including those of the answer if the method wrote it. *finish_reason*
    is "stop", or what cut the run short: "length" (tokens or steps), "time", "repetition",
    "context". *degraded* names the models that failed, those in a nested pair by their path.
    *seconds* is wall time. *seed* is that of the sampling, chosen at random if none was set: the
    same seed repeats the run. None if the models wrote greedily, if `auto` decided, or if one model
    was alone and no seed was set. *stretches* says what a run with `auto` chose; without it there
    are none. *aside* says in a sentence why the large model wrote alone, and what to do about it;
    "" if it did not. *calls* are the calls of tools that the answer makes; of an answer that was
    cut short, those that are complete. *verified* says whether the verifier accepted the answer, or
    the large model in its place; None if nobody judged it. *rejection* is the reason if it did not.
    If the verifier failed at least once, *degraded* names the "critic".
    """

    answer: str
    text: str
    thinking: str
    steps: tuple[SolvedStep, ...]
    ledger: Ledger
    finish_reason: FinishReason
    seconds: float
    degraded: tuple[str, ...] = ()
    seed: int | None = None
    stretches: tuple[Stretch, ...] = ()
    aside: str = ""
    calls: tuple[ToolCall, ...] = ()
    verified: bool | None = None
    rejection: str = ""

    @property
    def share_alone(self) -> float:
        """The share of the steps that `auto` let the large model write alone."""
        steps = sum(stretch.steps for stretch in self.stretches)
        return (
            sum(each.steps for each in self.stretches if each.choice == "large") / steps
            if steps
            else 0.0
        )

    @classmethod
    def of(cls, outcome: Outcome, moments: Sequence[Moment]) -> Solution:
        """Make the solution of a run from its *outcome* and its trace."""
        events = [moment.event for moment in moments]
        lost = [event.draft for event in events if isinstance(event, Lost)]
        return cls(
            answer=outcome.answer,
            text=outcome.text,
            thinking=outcome.chain.parts()[0].text,
            steps=tuple(step for moment in moments for step in solved_steps(moment, lost)),
            ledger=Ledger.of(events),
            finish_reason=outcome.reason,
            seconds=moments[-1].at,
            degraded=tuple(_degraded(events)),
            seed=next((event.seed for event in events if isinstance(event, Started)), None),
            stretches=tuple(stretches(events)),
            aside=next(
                (event.advice for event in events if isinstance(event, Decided) and event.advice),
                "",
            ),
            calls=outcome.calls,
            verified=outcome.verified,
            rejection=outcome.rejection,
        )


def _degraded(events: Sequence[Event]) -> Iterator[str]:
    """
    The models that failed for good, and the critic if something else had to judge in its place.
    """
    yield from (event.path or event.role for event in events if isinstance(event, Degraded))
    if any(isinstance(event, FellBack) for event in events):
        yield "critic"


def stretches(events: Iterable[Event]) -> Iterator[Stretch]:
    """
    The stretches that were decided in a run; decisions that change nothing but their reason are one
    stretch.
    """
    current: Stretch | None = None
    for event in events:
        if isinstance(event, Decided):
            if current is not None and (current.choice, current.ahead) == (
                event.choice,
                event.ahead,
            ):
                continue
            if current is not None and current.steps:
                yield current
            current = Stretch(event.choice, event.ahead, 0, event.reason)
        elif isinstance(event, Committed) and current is not None:
            current = replace(current, steps=current.steps + 1)
    if current is not None and current.steps:
        yield current


def solved_steps(moment: Moment, lost: Sequence[Step] = ()) -> tuple[SolvedStep, ...]:
    """
    The steps whose fate is decided at *moment*, and rejected rivals of a draft; drafts in *lost*
    have another.
    """
    match moment.event:
        case Committed(index=index, step=step, score=score):
            return (SolvedStep(index, step.author, step.text, score, "kept", step.note, moment.at),)
        case Judged(index=index, draft=step, verdict=verdict):
            rejected = [
                (rival.step, rival.score, rival.reason, "")
                for rival in verdict.rivals
                if rival.reason
            ]
            if isinstance(verdict, Rollback) and not any(step is draft for draft in lost):
                rejected.insert(0, (step, verdict.score, verdict.reason, verdict.detail))
            return tuple(
                SolvedStep(
                    index, other.author, other.text, score, "rejected", reason, moment.at, detail
                )
                for other, score, reason, detail in rejected
            )
        case AnswerJudged(
            index=index, step=step, accepted=False, score=score, reason=detail, final=False
        ):
            return (
                SolvedStep(
                    index, step.author, step.text, score, "rejected", "answer", moment.at, detail
                ),
            )
        case Lost(index=index, draft=step):
            return (SolvedStep(index, step.author, step.text, None, "lost", "", moment.at),)
        case _:
            return ()
