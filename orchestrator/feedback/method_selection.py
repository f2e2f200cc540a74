"""
Select the method of a run among several, by the time that a whole run of each takes now. No I/O.

`MethodSelection` selects for one run after the other from what `Auto` measured, and `select` compares. The same events
in the same order give the same selections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean, variance

from ..events import Selected
from .auto import EXTRA, MARGIN, SHARE, Auto, Record

FIRST = 8  # runs before the first probe of another method, and between that one and the next one's
FRESH = 8  # runs that end after a method's last one, as long as what was measured of that method is compared
LEAST = 8  # runs of a method, from which on their length counts
CERTAIN = 2  # standard errors by which the mean lengths of two methods' runs differ, for the difference to count


@dataclass(frozen=True, slots=True)
class Pace:
    """What is known of a method: the *seconds* of a token, None if too little is known, and its runs' *lengths*."""

    seconds: float | None = None
    lengths: tuple[int, ...] = ()


def relative_length(pace: Pace, other: Pace) -> float:
    """The mean length of a run over that of the *other* method, by their logarithms; 1 unless they differ for sure."""
    ours, theirs = ([log(length) for length in each.lengths if length > 0] for each in (pace, other))
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
    if used.seconds is None or not used.lengths:
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
    _probed: dict[str, int] = field(default_factory=dict[str, int])
    _excess: dict[str, float] = field(default_factory=dict[str, float])  # of a run's time, when it was last compared

    def select(self, records: Mapping[str, Record], most: int) -> Selected:
        """
        Select the method of a run that begins, at most *most* drafts ahead, among those with *records*.

        The first of them is in use before anything is known.
        """
        if self.now not in records:
            self.now = next(iter(records))
        self.runs += 1
        paces = {name: self._pace(record, most) for name, record in records.items() if self._compared(name, record)}
        selected = select(paces, self.now)
        if selected.policy != self.now:
            self._probed[self.now], self.now = self.runs, selected.policy
        expected = dict(selected.seconds)
        self._excess |= {name: seconds / expected[self.now] - 1 for name, seconds in expected.items()}
        others = [name for name in records if name != self.now]
        due = [name for name in others if self._due(name, len(others))]
        if not due:
            return selected
        probed = min(due, key=lambda name: self._probed.get(name, 0))
        self._probed[probed] = self.runs
        return replace(selected, policy=probed, probe=True, reason=f"a probe; {selected.reason}")

    def _compared(self, name: str, record: Record) -> bool:
        """Whether what was measured of a method is recent enough to be compared with the one in use."""
        return name == self.now or (bool(record.lengths) and self.auto.ended - record.ended < FRESH)

    def _pace(self, record: Record, most: int) -> Pace:
        """The pace of a method that steps aside where it does not pay."""
        auto, lengths = self.auto, tuple(record.lengths)
        estimate, tokens = auto.estimate(record), record.tokens.values()
        steps = [estimate.method(ahead) for ahead in ((0,) if auto.busy else range(most + 1))]
        known = [seconds for seconds in steps if seconds is not None]
        if not known or not tokens:
            return Pace(None, lengths)
        alone = [estimate.large] if estimate.large is not None else []
        return Pace(min(known + alone) / fmean(tokens), lengths)

    def _due(self, name: str, others: int) -> bool:
        """Whether a method is to be probed, the rarer, the more *others* there are and the longer its runs take."""
        last = self._probed.get(name)
        if last is None:
            return self.runs > FIRST * (1 + len(self._probed))
        return self.runs - last >= others * max(1 / SHARE, self._excess.get(name, 0.0) / EXTRA)
