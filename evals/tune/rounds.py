"""
Rounds of a run: a draft, its verdict, and the repair if the draft is rejected. No I/O.

A round is read from the events of a run. `commit_times` says how long rounds take at known paces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepspec.orchestrator.chain import Rollback, Step, accepts
from stepspec.orchestrator.events import Committed, Drafted, Event, Judged, Repaired

from .paces import PairPaces


@dataclass(frozen=True, slots=True)
class Round:
    """One draft of a method, its verdict, and the repair if it is rejected."""

    drafted: int
    """Tokens that the small model drafts; 0 if the large model writes instead."""
    accepted: bool
    """Whether the draft is accepted whole, or a rival of it."""
    tokens: int
    """Tokens by which the chain grows."""
    written: int = 0
    """Tokens that the large model writes: a repair, or a step in place of a draft."""
    verdict_seconds: float = 0.0
    """Seconds from the end of the draft to its verdict."""
    at: float = field(default=0.0, compare=False)
    """When the round was in the chain, on the clock of the event loop."""


class RoundWatch:
    """Observes a run, and collects its rounds."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.failed = False
        """Whether a verdict failed, so that the draft counts as rejected."""
        self._drafted: dict[int, float] = {}  # when the draft of each step was complete
        self._judged: dict[int, tuple[Judged, float]] = {}  # with the seconds of the verdict
        self._kept: Step | None = None  # what is left of a rejected draft

    def __call__(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        match event:
            case Drafted(index):
                self._drafted[index] = now
            case Judged(index, _, verdict):
                self._judged[index] = (event, now - self._drafted.get(index, now))
                self.failed |= isinstance(verdict, Rollback) and verdict.reason == "no verdict"
            case Committed(index, step) if index in self._judged and self._kept is None:
                self._commit(index, step, now)
            case Repaired(_, step):
                self._repair(step, now)
            case _:
                pass

    def _commit(self, index: int, step: Step, now: float) -> None:
        """Take in a *step* that was drafted: it is accepted, or what is left of it."""
        judged, seconds = self._judged[index]
        if not accepts(judged.verdict):
            self._kept = step
            return
        del self._judged[index]
        tokens = len(step.tokens)
        drafted = 0 if step.author == "large" else tokens
        self.rounds.append(
            Round(
                drafted,
                accepted=True,
                tokens=tokens,
                written=tokens - drafted,
                verdict_seconds=seconds,
                at=now,
            )
        )

    def _repair(self, step: Step, now: float) -> None:
        """Take in the repair of the oldest judged draft; later drafts are lost."""
        judged, seconds = self._judged[min(self._judged)]
        kept = len(self._kept.tokens) if self._kept else 0
        written = len(step.tokens)
        self.rounds.append(
            Round(
                len(judged.draft.tokens),
                accepted=False,
                tokens=kept + written,
                written=written,
                verdict_seconds=seconds,
                at=now,
            )
        )
        self._kept = None
        self._judged.clear()

    @property
    def tokens(self) -> int:
        """Tokens of all rounds."""
        return sum(round.tokens for round in self.rounds)

    @property
    def between(self) -> bool:
        """Whether a round is over and the next one has committed nothing."""
        return bool(self.rounds) and self._kept is None


def commit_times(rounds: Sequence[Round], paces: PairPaces, verdict: float) -> list[float]:
    """
    The second at which each of *rounds* is in the chain, if a *verdict* takes so many seconds.

    Drafts go on while earlier ones are judged, as far ahead as `PairPaces.ahead` says. A rejection
    loses the later drafts: the small model begins again after the repair.
    """
    small = paces.small
    large = paces.large
    times: list[float] = []
    now = 0.0  # the last round was committed
    free = small.first  # the small model can draft
    judged = 0  # drafts since the last restart
    for round in rounds:
        if round.drafted:
            waits_for = times[-1 - paces.ahead] if judged > paces.ahead else 0.0
            free = max(free, waits_for) + round.drafted * small.token
            now = max(now, free + verdict)
            judged += 1
        if round.written:
            now += large.first + (round.written - 1) * large.token
        if not round.accepted or not round.drafted:
            free = now + small.first
            judged = 0
        times.append(now)
    return times
