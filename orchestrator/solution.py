"""What became of a problem, for whoever asked. Values only, read off a run's outcome and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .chain import Rival, Role, Rollback
from .events import Committed, Degraded, Judged, Lost, Started
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
    thinking, *thinking* the committed steps until then; *steps* go on where the method wrote the answer.
    *finish_reason* is "stop", or what cut the run short: "length" (tokens or steps), "time", "repetition", "context".
    *degraded* names models that failed on the way, those in a nested pair by their path. *seconds* is wall time. *seed*
    is that of the sampling, drawn if none was set: with it, the same run can be asked for again. None if the models
    wrote greedily.
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

    @classmethod
    def of(cls, outcome: Outcome, moments: Sequence[Moment]) -> Solution:
        """What a run that came to *outcome* amounts to."""
        events = [moment.event for moment in moments]
        return cls(
            answer=outcome.answer,
            text=outcome.text,
            thinking=outcome.chain.parts()[0].text,
            steps=tuple(step for moment in moments for step in solved_steps(moment)),
            ledger=Ledger.of(events),
            finish_reason=outcome.reason,
            seconds=moments[-1].at,
            degraded=tuple(event.path or event.role for event in events if isinstance(event, Degraded)),
            seed=next((event.seed for event in events if isinstance(event, Started)), None),
        )


def solved_steps(moment: Moment) -> tuple[SolvedStep, ...]:
    """The steps whose fate *moment* tells: one, or none; of a draft that had rivals, also those."""
    match moment.event:
        case Committed(index=index, step=step, score=score):
            return (SolvedStep(index, step.author, step.text, score, "kept", step.note, moment.at),)
        case Judged(index=index, draft=step, verdict=verdict):
            refused = [rival for rival in verdict.rivals if rival.reason]
            if isinstance(verdict, Rollback):
                refused.insert(0, Rival(step, verdict.score, verdict.reason))
            return tuple(
                SolvedStep(index, one.step.author, one.step.text, one.score, "rejected", one.reason, moment.at)
                for one in refused
            )
        case Lost(index=index, draft=step):
            return (SolvedStep(index, step.author, step.text, None, "lost", "", moment.at),)
        case _:
            return ()
