"""
Select the method of a run among several, by the time that a run of each takes now. No I/O.

`MethodSelection` selects for one run after the other from what `Auto` measured, and `select` compares. The same events
in the same order give the same selections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp, log, sqrt
from statistics import fmean, variance

from ..events import Selected
from .auto import EXTRA, MARGIN, SHARE, Auto, Record

FIRST = 8  # runs before the first probe of another method, and between that one and the next one's
STEPS = 32  # that a probe writes, if it has no more than `LONGEST` runs
LONGEST = 4
FRESH = 16  # finished runs of all methods, among which one of a method has to be to be compared
LEAST = 8  # runs of a method, from which on their length counts
CERTAIN = 2  # standard errors by which the mean lengths of two methods' runs differ, for the difference to count


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of a method: the *seconds* of a token, None if nothing is, and the *lengths* of its runs."""

    seconds: float | None = None
    lengths: tuple[int, ...] = ()


def relative_length(pace: Pace, other: Pace) -> float:
    """The mean length of a run over that of the *other* method, by their logarithms; 1 unless they differ for sure."""
    ours, theirs = ([log(length) for length in each.lengths] for each in (pace, other))
    if min(len(ours), len(theirs)) < LEAST:
        return 1.0
    difference = fmean(ours) - fmean(theirs)
    error = sqrt(variance(ours) / len(ours) + variance(theirs) / len(theirs))
    return exp(difference) if abs(difference) > CERTAIN * error else 1.0


def select(paces: Mapping[str, Pace], now: str) -> Selected:
    """
    Select one of the methods by their *paces*; say the expected seconds of a run of each, and the reason in words.

    The method *now* stays unless another one saves a `MARGIN` of the time. Methods of unknown pace are not compared.
    """
    used = paces[now]
    if used.seconds is None:
        return Selected(now, reason=f"the pace of {now} is not known yet")
    tokens = fmean(used.lengths)
    expected = {
        name: pace.seconds * tokens * relative_length(pace, used)
        for name, pace in paces.items()
        if pace.seconds is not None
    }
    fastest = min(expected, key=expected.__getitem__)
    best = fastest if expected[fastest] < (1 - MARGIN) * expected[now] else now
    reason = ", ".join(f"{name}: {expected[name]:.3g} s a run" for name in sorted(expected, key=expected.__getitem__))
    return Selected(best, tuple(expected.items()), reason)


@dataclass(eq=False)
class MethodSelection:
    """
    The method in use by the runs of one solver that select, and when the others were last probed.

    *runs* counts the runs that select. What they compare is in the records of *auto*.
    """

    auto: Auto
    now: str = ""
    runs: int = 0
    _probing: tuple[str, ...] = ()  # the methods of the next runs
    _probed: dict[str, int] = field(default_factory=dict[str, int])
    _excess: dict[str, float] = field(default_factory=dict[str, float])  # of a run's time, when it was last compared

    def select(self, records: Mapping[str, Record]) -> Selected:
        """
        Select the method of a run that begins among those with *records*.

        The first of them is in use before anything is known.
        """
        if self.now not in records:
            self.now = next(iter(records))
        self.runs += 1
        selected = select({name: self._pace(name, record) for name, record in records.items()}, self.now)
        if not set(self._probing) <= set(records):
            self._probing = ()
        if not self._probing:  # nothing changes in the middle of a probe
            self._use(selected)
            self._probing = self._next_probe(records)
        if not self._probing:
            return selected
        probed, *rest = self._probing
        self._probing, self._probed[probed] = tuple(rest), self.runs
        return replace(selected, policy=probed, probe=True, reason=f"a probe; {selected.reason}")

    def _use(self, selected: Selected) -> None:
        if selected.policy != self.now:
            self._probed[self.now], self.now = self.runs, selected.policy
        expected = dict(selected.seconds)
        self._excess |= {name: seconds / expected[self.now] - 1 for name, seconds in expected.items()}

    def _pace(self, name: str, record: Record) -> Pace:
        """What the latest runs took. Those of a method that is not in use are of another load if they are older."""
        fresh = [run for run in record.runs if self.auto.ended - run.number < FRESH]
        if name == self.now:
            fresh = fresh or list(record.runs)[-1:]
        seconds = sum(run.seconds for run in fresh) / sum(run.tokens for run in fresh) if fresh else None
        return Pace(seconds, tuple([run.tokens for run in record.runs]))

    def _next_probe(self, records: Mapping[str, Record]) -> tuple[str, ...]:
        """The next runs, if they are to measure a method: the one that was not measured for the longest time."""
        others = [name for name in records if name != self.now]
        steps = [run.steps for run in records[self.now].runs]
        length = min(LONGEST, ceil(STEPS / fmean(steps))) if steps else 1
        due = [name for name in others if self._due(name, len(others) * length)]
        return (min(due, key=lambda name: self._probed.get(name, 0)),) * length if due else ()

    def _due(self, name: str, cost: int) -> bool:
        """Whether to probe a method: the rarer, the more runs the probes of all *cost*, and the longer its own take."""
        last = self._probed.get(name)
        if last is None:
            return self.runs > FIRST * (1 + len(self._probed))
        return self.runs - last >= cost * max(1 / SHARE, self._excess.get(name, 0.0) / EXTRA)
