"""What the last runs say about time and quality, and what follows for a threshold and a depth. No I/O."""

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

DRAFTS, VERDICTS = 5, 20  # to be timed before anything is said about speed


@dataclass(frozen=True, slots=True)
class Costs:
    """
    Seconds to *draft* a step, to *judge* it and to *repair* it, and what the time of a committed step follows from.

    Of drafts a share *a* is accepted, so that a rejected one comes after a/(1 - a) others. Working *k* drafts ahead,
    one is committed every max(draft, (draft + judge)/(k + 1)) seconds: the small model writes one after the other, and
    k + 1 are under way. A rejected one is drafted and judged in full, for there is nothing behind it to overlap with,
    and then repaired. Until its verdict is known min(k, judge/draft) bets are made on it; each delays the rest by a
    *toll*, a share of the seconds of a draft.
    """

    draft: float
    judge: float
    repair: float
    toll: float = 0.1

    def step(self, accepted: float, ahead: int) -> float:
        """Seconds to a committed step, where a share *accepted* of the drafts is, *ahead* drafts ahead."""
        pace = max(self.draft, (self.draft + self.judge) / (ahead + 1))
        lost = min(ahead, self.judge / self.draft) if self.draft > 0 else ahead
        rejected = self.draft + self.judge + self.repair + lost * self.toll * self.draft
        return accepted * pace + (1 - accepted) * rejected


@dataclass(frozen=True, slots=True)
class Share:
    """A share that was estimated, and between which bounds it lies: Wilson's, at 95%."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Share:
        """The mean of *figures* from 0 to 1; where there are none, none is bad, and all of the next ones may be."""
        return cls(fmean(figures), *wilson(sum(figures), len(figures))) if figures else cls(0.0, 0.0, 1.0)

    def corrected(self, more: Sequence[Share], less: Sequence[Share]) -> Share:
        """
        The sum of this share and those of *more*, minus those of *less*; a sum below 0 is taken for 0.

        Its bounds are as far away as those of all terms together (MOVER: Zou and Donner, 2008), from 0 to 1.
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
    The last *window* drafts, and as many seconds of each kind.

    A grade over the *top* one is read as the probability that the step is good. That is the judge's own opinion, and
    whether it is right is not known; shadows tell by how much it is off.
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

    def add(self, lesson: RunStats) -> None:
        self.grades.extend(lesson.grades)
        self.accepted.extend(lesson.accepted)
        self.checks.extend(lesson.checks)
        self._drafts.extend(lesson.drafts)
        self._judged.extend(lesson.judged)
        self._repairs.extend(lesson.repairs)

    @property
    def costs(self) -> Costs | None:
        """Medians; None until enough was timed. Where nothing was ever repaired, a repair is free."""
        if len(self._drafts) < DRAFTS or len(self._judged) < VERDICTS:
            return None
        repair = median_low(self._repairs) if self._repairs else 0.0
        return Costs(median_low(self._drafts), median_low(self._judged), repair)

    def rate(self, threshold: float | None) -> float:
        """The share of the drafts that *threshold* accepts, or that were accepted; there has to be one."""
        if threshold is None:
            return fmean(self.accepted)
        return fmean(grade is not None and grade >= threshold for grade in self.grades)

    def enough(self, limit: float) -> bool:
        """Whether a share of *limit* could be excluded at all, if nothing were bad."""
        return len(self.grades) >= needed(limit)

    def bad(self, threshold: float, limit: float) -> Share:
        """
        The share of bad steps among those that *threshold* accepts.

        Without shadows it is the judge's mean doubt, taken as it is: its lower bound is the mean itself. With enough of
        them to tell *limit*, the doubt is corrected: by the share of the checked steps that the large model disputes,
        beyond the share that it disputes of its own steps, less the judge's doubt about the checked steps.
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
    """How many steps, if none of them is bad, have a share of *limit* for their upper bound."""
    return ceil(Z * Z * (1 - limit) / limit)


def kept(evidence: Evidence, thresholds: Sequence[float], own: float, limit: float) -> list[float]:
    """
    Those of *thresholds*, the strictest first, that keep the *limit*; none if that cannot be said of any.

    A user's *own* one and stricter ones do so unless the evidence is against it, by their lower bounds; looser ones for
    sure, by their upper bounds. Whatever is stricter than one that keeps it keeps it too, however few grades it has.
    """
    for place in reversed(range(len(thresholds))):
        bad = evidence.bad(thresholds[place], limit)
        if (bad.most if thresholds[place] < own else bad.least) <= limit:
            return list(thresholds[: place + 1])
    return []


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
        self._checks: list[ShadowCheck] = []

    def checked(self, check: ShadowCheck) -> None:
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
        self.add(RunStats.of(moments))

    def add(self, lesson: RunStats) -> None:
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
