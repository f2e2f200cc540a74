"""Adapt the threshold and the depth of a policy to the time and quality of the last runs. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, hypot
from statistics import fmean, median_low
from typing import Any

from ..errors import ConfigurationError
from ..events import Adapted
from ..stats import Z, wilson
from ..trace import Moment
from .run_stats import RunStats, ShadowCheck

DRAFTS, VERDICTS = 5, 20  # the least number of timings before costs are estimated


@dataclass(frozen=True, slots=True)
class Threshold:
    """
    The *option* that makes a policy stricter or looser, and its *values*, the strictest first.

    With *compared*, the policy uses the value only to compare it with a verdict's score: a score of at least the value
    is accepted, and the strictest value is the highest possible score. Then two values give the same run if no score of
    the run lies between them, provided that runs repeat.
    """

    option: str
    values: tuple[float, ...]
    compared: bool = False


@dataclass(frozen=True, slots=True)
class Adaptable:
    """What may be adapted of a policy in addition to the depth: a *threshold* with its *default* value, or None."""

    threshold: Threshold | None = None
    default: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """
    Seconds to *draft*, *judge* and *repair* a step. From these follows the time of a committed step.

    A share *a* of the drafts is accepted. *k* drafts ahead, a step is committed every
    max(draft, (draft + judge)/(k + 1)) seconds: the small model writes one draft after the other, and k + 1 are under
    way. A rejected draft is drafted and judged in full, because nothing overlaps with it, and then repaired. Before its
    verdict is known, min(k, judge/draft) bets are made on it; each costs the *toll*, a share of the seconds of a draft.
    """

    draft: float
    judge: float
    repair: float
    toll: float = 0.1

    def step(self, accepted: float, ahead: int) -> float:
        """Expected seconds per committed step if a share *accepted* of the drafts is accepted, *ahead* drafts ahead."""
        pace = max(self.draft, (self.draft + self.judge) / (ahead + 1))
        lost = min(ahead, self.judge / self.draft) if self.draft > 0 else ahead
        rejected = self.draft + self.judge + self.repair + lost * self.toll * self.draft
        return accepted * pace + (1 - accepted) * rejected


@dataclass(frozen=True, slots=True)
class Share:
    """An estimated share with its 95% bounds (Wilson's)."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Share:
        """The mean of *figures*, each 0 to 1; without figures the share is 0, with the bounds 0 and 1."""
        return cls(fmean(figures), *wilson(sum(figures), len(figures))) if figures else cls(0.0, 0.0, 1.0)

    def corrected(self, more: Sequence[Share], less: Sequence[Share]) -> Share:
        """
        Add the shares *more*, subtract the shares *less*, and limit the result to 0 to 1.

        The distances of the bounds are those of all terms combined (MOVER: Zou and Donner, 2008).
        """
        mean = self.mean + sum(term.mean for term in more) - sum(term.mean for term in less)
        plus = (self, *more)
        below = hypot(*(term.mean - term.least for term in plus), *(term.most - term.mean for term in less))
        above = hypot(*(term.most - term.mean for term in plus), *(term.mean - term.least for term in less))
        mean = min(1.0, max(0.0, mean))
        return Share(mean, max(0.0, mean - below), min(1.0, mean + above))


@dataclass(eq=False)
class Evidence:
    """
    The last *window* drafts, and the last *window* timings of each kind.

    A grade divided by *top*, the highest grade, is read as the probability that the step is good. That is the judge's
    opinion; shadows measure how far it is off.
    """

    top: float
    window: int
    grades: deque[float | None] = field(init=False)
    accepted: deque[bool] = field(init=False)
    checks: deque[ShadowCheck] = field(init=False)

    def __post_init__(self) -> None:
        self.grades, self.accepted, self.checks = self._deque(), self._deque(), self._deque()
        self._drafts, self._judged, self._repairs = self._deque(), self._deque(), self._deque()

    def _deque(self) -> deque[Any]:
        return deque(maxlen=self.window)

    def add(self, stats: RunStats) -> None:
        self.grades.extend(stats.grades)
        self.accepted.extend(stats.accepted)
        self.checks.extend(stats.checks)
        self._drafts.extend(stats.drafts)
        self._judged.extend(stats.judged)
        self._repairs.extend(stats.repairs)

    @property
    def costs(self) -> Costs | None:
        """The medians of the timings; None until there are enough. Without repairs so far, a repair costs 0."""
        if len(self._drafts) < DRAFTS or len(self._judged) < VERDICTS:
            return None
        repair = median_low(self._repairs) if self._repairs else 0.0
        return Costs(median_low(self._drafts), median_low(self._judged), repair)

    def rate(self, threshold: float | None) -> float:
        """The share of the drafts that *threshold* accepts; None: that were accepted. There has to be a draft."""
        if threshold is None:
            return fmean(self.accepted)
        return fmean(grade is not None and grade >= threshold for grade in self.grades)

    def enough(self, limit: float) -> bool:
        """Whether there are enough grades to exclude a share of *limit* if no step is bad."""
        return len(self.grades) >= needed(limit)

    def bad(self, threshold: float, limit: float) -> Share:
        """
        The share of bad steps among those that *threshold* accepts.

        Without shadows it is the judge's mean doubt, whose lower bound is then the mean itself. With enough shadows for
        *limit*, the doubt is corrected: plus the share of the checked steps that the large model disputes, minus the
        share of its own steps that it disputes, minus the judge's doubt about the checked steps.
        """
        doubts = Share.of([self._doubt(grade) for grade in self.grades if grade is not None and grade >= threshold])
        if len(self.checks) < needed(limit):
            return replace(doubts, least=doubts.mean)
        disputed = Share.of([float(not check.agreed) for check in self.checks])
        own = Share.of([float(not check.own) for check in self.checks])
        known = Share.of([self._doubt(check.grade) for check in self.checks])
        return doubts.corrected((disputed,), (own, known))

    def _doubt(self, grade: float) -> float:
        return min(1.0, max(0.0, 1 - grade / self.top))


def needed(limit: float) -> int:
    """The number of steps after which, if none is bad, the upper bound of the bad share is *limit*."""
    return ceil(Z * Z * (1 - limit) / limit)


def kept(evidence: Evidence, thresholds: Sequence[float], own: float, limit: float) -> list[float]:
    """
    Return those of *thresholds*, the strictest first, that keep the *limit*.

    The user's *own* threshold and stricter ones keep it unless their lower bound exceeds it; looser ones only if their
    upper bound does not. A threshold that is stricter than one that keeps the limit keeps it too, however few grades it
    has.
    """
    for place in reversed(range(len(thresholds))):
        bad = evidence.bad(thresholds[place], limit)
        if (bad.most if thresholds[place] < own else bad.least) <= limit:
            return list(thresholds[: place + 1])
    return []


WINDOW = 1024
MARGIN = 0.02  # the least share of the time that a change has to save


@dataclass(frozen=True, slots=True)
class Choice:
    """The *threshold* of the next run, None if there is none to adapt, and its depth *ahead*."""

    threshold: float | None
    ahead: int


@dataclass(eq=False)
class Adaptation:
    """
    Decides between runs, never during one: all drafts of a chain are judged by one threshold.

    At most a share of *limit* of the accepted steps may be bad, as far as grades and shadows show (see `Evidence`).
    Among the *thresholds*, the strictest first, that keep the limit (see `kept`), and the depths up to *most*, the
    fastest pair is sought (see `Costs`), starting from *choice*. Each run moves both by at most one place towards it,
    if it saves more than a fiftieth of the time; a threshold that exceeds the limit gets stricter at any cost. Neither
    moves before there is enough evidence. *top* is the highest possible grade.
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
            raise ConfigurationError(
                f"adaptation needs a limit between 0 and 1, and a depth of 0 or more: {self.limit}"
            )
        if list(self.thresholds) != sorted(set(self.thresholds), reverse=True):
            raise ConfigurationError(f"thresholds go from the strictest to the loosest: {self.thresholds}")
        if self.thresholds and self.choice.threshold not in self.thresholds:
            raise ConfigurationError(f"{self.choice.threshold} is not among the thresholds {self.thresholds}")
        self.evidence = Evidence(self.top, self.window)
        self._own = self.choice.threshold
        self._checks: list[ShadowCheck] = []

    def checked(self, check: ShadowCheck) -> None:
        """Keep the result of a shadow for the trace of the next run."""
        self._checks.append(check)

    def begin(self, option: str = "") -> Adapted:
        """Return the threshold and depth of the next run, as the event that follows `Started` in its trace."""
        checks, self._checks = self._checks, []
        return replace(
            self.standing(option),
            checks=tuple((check.grade, check.agreed) for check in checks),
            own=tuple(check.own for check in checks),
        )

    def standing(self, option: str = "") -> Adapted:
        """Return the present threshold and depth, without starting a run."""
        evidence, threshold, ahead = self.evidence, self.choice.threshold, self.choice.ahead
        costs, bad = evidence.costs, None
        seconds = costs.step(evidence.rate(threshold), ahead) if costs and evidence.grades else None
        if threshold is not None and evidence.enough(self.limit) and evidence.rate(threshold) > 0:
            bad = evidence.bad(threshold, self.limit).most
        return Adapted(option, threshold, ahead, self.runs, bad, seconds)

    def learn(self, moments: Iterable[Moment]) -> None:
        """Learn from the trace of a run that has ended, and decide about the next one."""
        self.add(RunStats.of(moments))

    def add(self, stats: RunStats) -> None:
        """Learn from the statistics of a run that has ended, and decide about the next one."""
        self.evidence.add(stats)
        self.runs += 1
        self.choice = self._next()

    @property
    def hopeless(self) -> bool:
        """Whether, by the evidence so far, no threshold that accepts any step keeps the limit."""
        evidence = self.evidence
        return self._kept() is not None and all(
            evidence.rate(value) == 0 or evidence.bad(value, self.limit).least > self.limit for value in self.thresholds
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
        """Move the present choice by one place towards the *best*."""
        now = self.choice
        ahead = now.ahead + _sign(best.ahead - now.ahead)
        if now.threshold is None or best.threshold is None:
            return Choice(now.threshold, ahead)
        return Choice(self._place(now.threshold, _sign(now.threshold - best.threshold)), ahead)

    def _place(self, threshold: float | None, places: int) -> float | None:
        """Return the threshold that is *places* looser."""
        return None if threshold is None else self.thresholds[self.thresholds.index(threshold) + places]


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
