"""Timings and grades of one run, from its trace. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..chain import Accept, Verdict
from ..events import (
    Adapted,
    Chosen,
    Committed,
    Drafted,
    Judged,
    Repaired,
    Started,
)
from ..trace import Moment


@dataclass(frozen=True, slots=True)
class ShadowCheck:
    """
    The result of a shadow: the *grade* of an accepted step, and whether the large model *agreed* that it is correct.

    *own* is whether it agreed that the control is correct: a step that it wrote itself at the same place.
    """

    grade: float
    agreed: bool
    own: bool = True


@dataclass(frozen=True, slots=True)
class RunStats:
    """
    Timings, in seconds, and grades of one run.

    *drafts* are the times of drafts that did not wait for anything: the first after the start or a repair. *judged* are
    the times from a draft to its verdict, and *repairs* those from a rollback to its repair. *grades* has an entry for
    every draft that was committed or repaired (None: the verdict had no score), and *accepted* says which of these were
    accepted. Lost bets count in *judged* only. *checks* are the results of shadows that were known when the run began.
    """

    drafts: tuple[float, ...] = ()
    judged: tuple[float, ...] = ()
    repairs: tuple[float, ...] = ()
    grades: tuple[float | None, ...] = ()
    accepted: tuple[bool, ...] = ()
    checks: tuple[ShadowCheck, ...] = ()

    @classmethod
    def of(cls, moments: Iterable[Moment]) -> RunStats:
        """Read the trace of a run, complete or not."""
        reading = Reading()
        for moment in moments:
            reading.read(round(moment.at, 6), moment)  # as in a trace on disk, so that both give the same result
        return cls(
            tuple(reading.drafts),
            tuple(reading.judged),
            tuple(reading.repairs),
            tuple(grade for grade, _ in reading.decided),
            tuple(accepted for _, accepted in reading.decided),
            tuple(reading.checks),
        )


@dataclass(eq=False)
class Reading:
    """
    What was read of a run so far, and the state of reading on.

    *free* is the time since which the small model could draft; None while it drafts. With *anew* the next commit lets
    it start again. Steps that the large model leads with are not drafts.
    """

    drafts: list[float] = field(default_factory=list[float])
    judged: list[float] = field(default_factory=list[float])
    repairs: list[float] = field(default_factory=list[float])
    decided: list[tuple[float | None, bool]] = field(default_factory=list[tuple[float | None, bool]])
    checks: list[ShadowCheck] = field(default_factory=list[ShadowCheck])
    free: float | None = None
    settled: float = 0.0
    waiting: dict[int, float] = field(default_factory=dict[int, float])
    verdicts: dict[int, tuple[float, Verdict]] = field(default_factory=dict[int, tuple[float, Verdict]])
    anew: bool = False

    def read(self, at: float, moment: Moment) -> None:
        match moment.event:
            case Started():
                self.free = at
            case Adapted(checks=checks, own=own):
                # Checks without controls are from older traces, with another question: they are left out.
                self.checks += [
                    ShadowCheck(grade, agreed, right) for (grade, agreed), right in zip(checks, own, strict=False)
                ]
            case Drafted(index, draft):
                if draft.author == "small":
                    self._draft(at, index)
                self.free = None
            case Judged(index, _, verdict) if index in self.waiting:
                self.judged.append(at - self.waiting.pop(index))
                self.verdicts[index] = at, verdict
            case Repaired(index, _, rollback):
                judged, _ = self.verdicts.get(index, (self.settled, rollback))
                self.repairs.append(at - max(judged, self.settled))
                self.decided.append((rollback.score, False))
                self.anew = True
            case Chosen():
                self.anew = True
            case Committed(index, step):
                self._commit(at, index, drafted=step.author == "small")
            case _:
                pass

    def _draft(self, at: float, index: int) -> None:
        if self.free is not None:
            self.drafts.append(at - self.free)
        self.waiting[index] = at

    def _commit(self, at: float, index: int, *, drafted: bool) -> None:
        self.settled = at
        _, verdict = self.verdicts.pop(index, (at, None))
        if drafted and verdict is not None:
            self._stands(verdict)
        if self.anew:
            self.free, self.anew = at, False

    def _stands(self, verdict: Verdict) -> None:
        if isinstance(verdict, Accept):
            self.decided.append((verdict.score, True))
        elif verdict.chosen is not None:
            self.decided.append((verdict.chosen.score, True))
