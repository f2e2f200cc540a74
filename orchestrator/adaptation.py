"""
A threshold and a depth that follow what runs teach: the least time at a fixed limit of quality.

The idea is online speculative decoding's (Liu et al. 2023, arXiv:2310.07177): what drafts are worth is seen while they
are used. There a drafter's weights follow, here the two figures that say how much is let pass and how far to bet.
Pure: the same traces in the same order, the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from .errors import ConfigurationError
from .events import Adapted
from .evidence import Evidence, kept
from .lesson import Check, Lesson
from .trace import Moment

WINDOW = 1024
MARGIN = 0.02  # of the time, to be saved before anything is changed


@dataclass(frozen=True, slots=True)
class Choice:
    """What the next run is given: a *threshold*, if there is one to adapt, and a depth."""

    threshold: float | None
    ahead: int


@dataclass(eq=False)
class Adaptation:
    """
    Decides between runs, and never in one: a chain is not judged by moving rules.

    At most a share of *limit* of the accepted steps may be bad, as far as grades and shadows tell (see `Evidence`).
    Among the *thresholds*, the strictest first, that keep it (see `kept`), and the depths up to *most*, those are
    sought that take the least time (see `Costs`), beginning with *choice*. A run moves each by one place at most,
    towards the best, if that saves more than a fiftieth; a threshold that breaks the limit gets stricter whatever it
    costs. Neither moves before there is enough evidence. *top* is the highest grade there is.
    """

    limit: float
    most: int
    choice: Choice
    thresholds: tuple[float, ...] = ()
    top: float = 1.0
    window: int = WINDOW
    runs: int = 0
    evidence: Evidence = field(init=False)

    def __post_init__(self) -> None:
        if not 0 < self.limit < 1 or self.most < 0:
            raise ConfigurationError(f"an adaptation needs a limit between 0 and 1, and a depth: {self.limit}")
        if list(self.thresholds) != sorted(set(self.thresholds), reverse=True):
            raise ConfigurationError(f"thresholds go from the strictest to the loosest: {self.thresholds}")
        if self.thresholds and self.choice.threshold not in self.thresholds:
            raise ConfigurationError(f"{self.choice.threshold} is not among the thresholds {self.thresholds}")
        self.evidence = Evidence(self.top, self.window)
        self._own = self.choice.threshold
        self._checks: list[Check] = []

    def checked(self, check: Check) -> None:
        """Keep the result of a shadow, for the trace of the next run to hold."""
        self._checks.append(check)

    def begin(self, option: str = "") -> Adapted:
        """What the next run is given, and why: the first thing that its trace should tell after its start."""
        checks, self._checks = self._checks, []
        return replace(
            self.standing(option),
            checks=tuple((check.grade, check.agreed) for check in checks),
            own=tuple(check.own for check in checks),
        )

    def standing(self, option: str = "") -> Adapted:
        """The same, without a run."""
        evidence, threshold, ahead = self.evidence, self.choice.threshold, self.choice.ahead
        costs, bad = evidence.costs, None
        seconds = costs.step(evidence.rate(threshold), ahead) if costs and evidence.grades else None
        if threshold is not None and evidence.enough(self.limit) and evidence.rate(threshold) > 0:
            bad = evidence.bad(threshold, self.limit).most
        return Adapted(option, threshold, ahead, self.runs, bad, seconds)

    def learn(self, moments: Iterable[Moment]) -> None:
        """Learn from the trace of a run that is over, and decide about the next."""
        self.add(Lesson.of(moments))

    def add(self, lesson: Lesson) -> None:
        """The same, from what the trace tells."""
        self.evidence.add(lesson)
        self.runs += 1
        self.choice = self._next()

    @property
    def hopeless(self) -> bool:
        """Whether no threshold that accepts anything keeps the limit, by what is known."""
        evidence = self.evidence
        return self._kept() is not None and all(
            evidence.rate(one) == 0 or evidence.bad(one, self.limit).least > self.limit for one in self.thresholds
        )

    def _kept(self) -> list[float] | None:
        """The thresholds that may be chosen; None while too little is known to choose."""
        if self._own is None or not self.evidence.enough(self.limit):
            return None
        return kept(self.evidence, self.thresholds, self._own, self.limit)

    def _next(self) -> Choice:
        now, allowed = self.choice, self._kept()
        if allowed is not None and now.threshold not in (allowed or self.thresholds[:1]):
            return replace(now, threshold=self._place(now.threshold, -1))
        costs = self.evidence.costs
        if costs is None or not self.evidence.grades:
            return now

        values: list[float | None] = [*allowed] if allowed else [now.threshold]
        rates = {value: self.evidence.rate(value) for value in values}

        def seconds(choice: Choice) -> float:
            return costs.step(rates[choice.threshold], choice.ahead)

        best = min((Choice(value, ahead) for value in values for ahead in range(self.most + 1)), key=seconds)
        if seconds(best) >= (1 - MARGIN) * seconds(now):
            return now
        return self._towards(best)

    def _towards(self, best: Choice) -> Choice:
        """One place from the present choice to the *best*."""
        now = self.choice
        ahead = now.ahead + _sign(best.ahead - now.ahead)
        if now.threshold is None or best.threshold is None:
            return Choice(now.threshold, ahead)
        return Choice(self._place(now.threshold, _sign(now.threshold - best.threshold)), ahead)

    def _place(self, threshold: float | None, places: int) -> float | None:
        """The threshold that is so many *places* looser."""
        return None if threshold is None else self.thresholds[self.thresholds.index(threshold) + places]


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
