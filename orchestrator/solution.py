"""What became of a problem, for whoever asked. Values only, read off a run's outcome and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .chain import Role, Rollback
from .events import Committed, Degraded, Judged, Lost
from .ledger import Ledger
from .run import FinishReason, Outcome
from .trace import Moment

StepFate: TypeAlias = Literal["kept", "rejected", "lost"]


@dataclass(frozen=True, slots=True)
class SolvedStep:
    """
    One step that was written, and what became of it.

    *fate* is "kept", "rejected" (the verdict) or "lost" (a bet on a rejected step). *grade* is the verdict's score,
    where it has one; *reason* says why a step was rejected, or for what the step that it repairs was. *at* is in
    seconds since the run began.
    """

    index: int
    author: Role
    text: str
    grade: float | None
    fate: StepFate
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Solution:
    r"""
    What became of a problem.

    *answer* is what the last ``\boxed{}`` of *text* holds, or its last line; *text* is all that was written after the
    thinking, *thinking* the committed steps. *finish_reason* is "stop", or what cut the run short: "length" (tokens or
    steps), "time", "repetition", "context". *degraded* names models that failed on the way. *seconds* is wall time.
    """

    answer: str
    text: str
    thinking: str
    steps: tuple[SolvedStep, ...]
    ledger: Ledger
    finish_reason: FinishReason
    seconds: float
    degraded: tuple[Role, ...] = ()

    @classmethod
    def of(cls, outcome: Outcome, moments: Sequence[Moment]) -> Solution:
        """What a run that came to *outcome* amounts to."""
        events = [moment.event for moment in moments]
        return cls(
            answer=outcome.answer,
            text=outcome.text,
            thinking=outcome.chain.text,
            steps=tuple(step for moment in moments if (step := solved_step(moment)) is not None),
            ledger=Ledger.of(events),
            finish_reason=outcome.reason,
            seconds=moments[-1].at,
            degraded=tuple(event.role for event in events if isinstance(event, Degraded)),
        )


def solved_step(moment: Moment) -> SolvedStep | None:
    """What *moment* says about the fate of a step; None if nothing."""
    match moment.event:
        case Committed(index=index, step=step, score=score):
            return SolvedStep(index, step.author, step.text, score, "kept", step.note, moment.at)
        case Judged(index=index, draft=step, verdict=Rollback() as rollback):
            return SolvedStep(index, step.author, step.text, rollback.score, "rejected", rollback.reason, moment.at)
        case Lost(index=index, draft=step):
            return SolvedStep(index, step.author, step.text, None, "lost", "", moment.at)
        case _:
            return None
