"""The result of a run, for users: values only, made from the run's outcome and its trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    """One step that was written, and its fate. A rejected answer is a step, too."""

    index: int
    """The place of the step in the chain, from 0."""
    author: Role
    """The model that wrote it."""
    text: str
    """Its text."""
    grade: float | None
    """The score of the verdict; None if there is none."""
    fate: StepFate
    """What became of it: "kept", "rejected" by the verdict, or "lost", a bet on a rejected step."""
    reason: str
    """Why the step, or the step that it repairs, was rejected; "answer" for a rejected answer."""
    at: float
    """When its fate was known, in seconds since the run began."""
    detail: str = ""
    """What a verifier said about it."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution of a problem."""

    answer: str
    r"""The content of the last ``\boxed{}`` of the text, or its last line."""
    text: str
    """What was written after the thinking."""
    thinking: str
    """The text of the committed steps before the answer."""
    steps: tuple[SolvedStep, ...]
    """All steps that were written, those of the answer too if the method wrote it."""
    ledger: Ledger
    """Tokens and seconds, by model and by fate."""
    finish_reason: FinishReason
    """
    "stop", or what cut the run short: "length" (tokens or steps), "time", "repetition" or
    "context".
    """
    seconds: float
    """Wall time of the run."""
    degraded: tuple[str, ...] = ()
    """
    The models that failed for good.

    It names the "critic" if the verifier failed at least once.
    """
    seed: int | None = None
    """
    The seed of the sampling, which repeats the run; chosen at random if none was set.

    None if the models wrote greedily, if `auto` decided, or if one model was alone and no seed was
    set.
    """
    share_alone: float | None = None
    """The share of the steps that `auto` let the large model write alone. None without `auto`."""
    aside: str = ""
    """Why the large model wrote alone, and what to do about it; "" if it did not."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of tools that the answer makes, as far as they are complete."""
    verified: bool | None = None
    """
    Whether the verifier, or the large model in its place, accepted the answer.

    None if nobody judged it.
    """
    rejection: str = ""
    """Why the answer was not accepted; "" if it was."""
    stopped: str = ""
    """The stop string that ended the answer; "" if none did."""
    thinking_tokens: int = 0
    """The number of tokens of the thinking."""

    @classmethod
    def of(cls, outcome: Outcome, moments: Sequence[Moment]) -> Solution:
        """Make the solution of a run from its *outcome* and its trace."""
        events = [moment.event for moment in moments]
        lost = [event.draft for event in events if isinstance(event, Lost)]
        seeds = (event.seed for event in events if isinstance(event, Started))
        degraded: list[str] = [event.role for event in events if isinstance(event, Degraded)]
        if any(isinstance(event, FellBack) for event in events):
            degraded.append("critic")
        advice = (event.advice for event in events if isinstance(event, Decided) and event.advice)
        thinking, _ = outcome.chain.parts()
        return cls(
            answer=outcome.answer,
            text=outcome.text,
            thinking=thinking.text,
            steps=tuple(step for moment in moments for step in solved_steps(moment, lost)),
            ledger=Ledger.of(events),
            finish_reason=outcome.reason,
            seconds=moments[-1].at,
            degraded=tuple(degraded),
            seed=next(seeds, None),
            share_alone=share_alone(events),
            aside=next(advice, ""),
            calls=outcome.calls,
            verified=outcome.verified,
            rejection=outcome.rejection,
            stopped=outcome.stopped,
            thinking_tokens=thinking.tokens if outcome.chain.thought else 0,
        )


def share_alone(events: Iterable[Event]) -> float | None:
    """
    Return the share of the steps that `auto` let the large model write alone.

    None if there are no steps that `auto` decided about.
    """
    choice: Choice | None = None
    choices: list[Choice] = []
    for event in events:
        if isinstance(event, Decided):
            choice = event.choice
        elif isinstance(event, Committed) and choice:
            choices.append(choice)
    return choices.count("large") / len(choices) if choices else None


def solved_steps(moment: Moment, lost: Sequence[Step] = ()) -> tuple[SolvedStep, ...]:
    """
    Return the steps whose fate is decided at *moment*, and the rejected rivals of a draft.

    A rejected draft that is in *lost* has its fate at another moment.
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
                    index,
                    other.author,
                    other.text,
                    score,
                    "rejected",
                    reason,
                    moment.at,
                    detail,
                )
                for other, score, reason, detail in rejected
            )
        case AnswerJudged(
            index=index, step=step, accepted=False, score=score, reason=detail, final=False
        ):
            return (
                SolvedStep(
                    index,
                    step.author,
                    step.text,
                    score,
                    "rejected",
                    "answer",
                    moment.at,
                    detail,
                ),
            )
        case Lost(index=index, draft=step):
            return (SolvedStep(index, step.author, step.text, None, "lost", "", moment.at),)
        case _:
            return ()
