"""Timings and grades of one run, from its trace. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..chain import Accept, Verdict
from ..events import (
    Chosen,
    Committed,
    Drafted,
    Judged,
    Repaired,
    Started,
)
from ..trace import Moment


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
    free: float | None = None
    settled: float = 0.0
    waiting: dict[int, float] = field(default_factory=dict[int, float])
    verdicts: dict[int, tuple[float, Verdict]] = field(default_factory=dict[int, tuple[float, Verdict]])
    anew: bool = False

    def read(self, at: float, moment: Moment) -> None:
        match moment.event:
            case Started():
                self.free = at
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
