"""Who takes which trial, and what becomes of it when a worker dies. Decides only: no I/O, no waiting."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from ..orchestrator.errors import WorkersLost
from .plan import Trial
from .samples import Place
from .trial import Sample

LIVES = 3  # workers that may be lost with the same trial


class Dealer:
    """
    Deals trials out in their order, each to one worker at a time.

    One that is not *ready* is left aside until it is, and later ones are dealt meanwhile. What a lost worker held goes
    to the others, before anything new.
    """

    def __init__(self, todo: Iterable[Trial], ready: Callable[[Trial], bool] = lambda trial: True) -> None:
        self._ready = ready
        self._new = deque(enumerate(todo))
        self._aside: list[tuple[int, Trial]] = []  # in order
        self._held: dict[Place, tuple[int, str]] = {}
        self._lost_with: dict[Place, list[str]] = {}
        self._left: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether there is a sample of every trial."""
        return not (self._new or self._aside or self._held)

    def over(self, worker: str) -> bool:
        """Whether nothing will ever be dealt to *worker* again."""
        return worker in self._left or self.finished

    def deal(self, worker: str) -> Trial | None:
        """The next trial for *worker*; None if there is none now."""
        if worker in self._left:
            return None
        for at, (turn, trial) in enumerate(self._aside):
            if self._ready(trial):
                del self._aside[at]
                return self._hand(turn, trial, worker)
        while self._new:
            turn, trial = self._new.popleft()
            if self._ready(trial):
                return self._hand(turn, trial, worker)
            self._aside.append((turn, trial))
        return None

    def _hand(self, turn: int, trial: Trial, worker: str) -> Trial:
        self._held[trial.place] = turn, worker
        return trial

    def done(self, trial: Trial) -> None:
        """Note that there is a sample of *trial*."""
        del self._held[trial.place]

    def give_back(self, trial: Trial) -> None:
        """
        Note that *trial* was lost together with the worker who held it, who is dealt nothing any more.

        Raise `WorkersLost`, which names the trial, once it has cost too many workers.
        """
        turn, worker = self._held.pop(trial.place)
        self._left.add(worker)
        insort(self._aside, (turn, trial), key=lambda each: each[0])
        lost = self._lost_with.setdefault(trial.place, [])
        lost.append(worker)
        if len(lost) >= LIVES:
            name = f" ({trial.task.name})" if trial.task.name else ""
            raise WorkersLost(
                f"{LIVES} workers were lost while they solved problem {trial.number}{name} as {trial.arm.name!r}: "
                f"{', '.join(lost)}; see their logs for why (memory?), or leave the problem out"
            )


class Rates:
    """Accept rates of arms, from the samples that are *done* by now."""

    def __init__(self, done: Mapping[Place, Sample]) -> None:
        self._done = done
        self._sums: dict[str, list[tuple[int, int]]] = {}  # accepted and all drafts, over the first samples

    def over(self, arm: str, number: int) -> float | None:
        """Accepted drafts of *arm* over all its drafts, up to sample *number*; None while one of these is missing."""
        sums = self._sums.setdefault(arm, [])
        while (sample := self._done.get((len(sums), arm))) is not None:
            accepted, drafts = sums[-1] if sums else (0, 0)
            sums.append((accepted + sample.ledger.accepted, drafts + sample.ledger.drafts))
        if number >= len(sums):
            return None
        accepted, drafts = sums[number]
        return accepted / drafts if drafts else 0.0
