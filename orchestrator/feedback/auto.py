"""
Choose between a method at some depth and the large model alone, by what a committed step takes now. No I/O.

`Auto` keeps what all runs of a solver measured, `AutoRun` reads the events of one run and decides for it, and `decide`
compares. The same events in the same order give the same decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low
from typing import Any, Generic, TypeVar

from ..chain import Rollback
from ..events import Called, Choice, Committed, Decided, Drafted, Finished, Started
from ..interfaces import Policy
from ..trace import Moment
from .run_stats import Reading

MARGIN = 0.03  # of the time of a step, which a change has to save
SPAN = 64  # committed steps of all runs for which a measurement counts, if there are newer ones
LEAST = 3  # timings that are used however old they are, and without which nothing is decided
OUTCOMES = 16  # the same for verdicts
EVERY = 8  # steps after which a run decides again, if no draft was rolled back
PRIOR = 0.75, 8  # the share of accepted drafts that is assumed beforehand, and how many drafts it counts for
PROBE: Mapping[Choice, int] = {"method": 4, "large": 2}  # steps written to measure what is not in use
SHARE = 0.02  # of the steps, that may be written so
EXTRA = 0.015  # of the time, that they may take in addition
FACTOR = 0.8, 1.5  # the bounds of what is measured over what is expected
MOST = 64  # methods with their options that a solver keeps records of; the oldest is dropped first

T = TypeVar("T")


@dataclass(eq=False)
class Recent(Generic[T]):
    """The latest values, each with the number of steps that all runs had committed by then."""

    entries: deque[tuple[int, T]] = field(default_factory=lambda: deque[tuple[int, T]](maxlen=SPAN))

    def add(self, step: int, value: T) -> None:
        self.entries.append((step, value))

    def values(self, least: int = LEAST) -> list[T]:
        """The values no more than a `SPAN` older than the newest, and in any case the last *least*."""
        newest = self.newest
        fresh = sum(newest - step <= SPAN for step, _ in self.entries)
        return [value for _, value in self.entries][-max(fresh, least) :]

    @property
    def newest(self) -> int:
        return self.entries[-1][0] if self.entries else 0


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
class Estimate:
    """
    What is known of a method and of the large model alone when a run decides.

    *costs* are those of one draft; None while too little is known. *accepted* is the share of the drafts that is
    accepted. *large* is the time in which the large model alone writes a step, in seconds; None if it is not known.
    *factor* is what the method's steps took, over what they should have taken by the formula. A large model that is
    *busy* has a queue of requests.
    """

    costs: Costs | None = None
    accepted: float = PRIOR[0]
    large: float | None = None
    factor: float = 1.0
    busy: bool = False

    def method(self, ahead: int) -> float | None:
        """Seconds that the method takes for a committed step, *ahead* drafts ahead."""
        return None if self.costs is None else self.factor * self.costs.step(self.accepted, ahead)


@dataclass(frozen=True, slots=True)
class Mode:
    """Who writes: the method, working *ahead*, or the large model alone."""

    choice: Choice
    ahead: int


ASIDE = Mode("large", 1)  # one step ahead keeps the large model's request open; without verdicts nothing is lost


def decide(estimate: Estimate, now: Mode | None, most: int) -> tuple[Mode, dict[str, float], str]:
    """
    Choose a mode with at most *most* drafts ahead; return it, the seconds of every candidate, and the reason in words.

    The mode *now* stays unless another one saves a `MARGIN` of the time. Of depths that differ by less, the deepest is
    chosen. Without an estimate the method is used.
    """
    depths = (0,) if estimate.busy else range(most + 1)
    modes = {f"method {ahead} ahead": Mode("method", ahead) for ahead in depths}
    usual = list(modes.values())[-1]
    expected = {name: estimate.method(mode.ahead) for name, mode in modes.items()}
    modes["large alone"], expected["large alone"] = ASIDE, estimate.large
    known = {name: seconds for name, seconds in expected.items() if seconds is not None}
    if len(known) < len(expected):
        missing = "large model's pace" if estimate.costs else "method's pace"
        return (now if now in modes.values() and now else usual), known, f"the {missing} is not known yet"
    fastest = min(known, key=known.__getitem__)
    near = [name for name in known if known[fastest] > (1 - MARGIN) * known[name]]
    alike = [name for name in near if modes[name].choice == modes[fastest].choice]
    # The formula knows no jitter, which drafts further ahead hide: of depths as good as equal, the deepest is the best.
    best = next((name for name in near if modes[name] == now), alike[-1])
    other = min((name for name in known if modes[name].choice != modes[best].choice), key=known.__getitem__)
    reason = (
        f"{best}: {known[best]:.3g} s a step, {other}: {known[other]:.3g} s; {estimate.accepted:.0%} of drafts accepted"
    )
    return modes[best], known, reason + (", the large model has a queue" if estimate.busy else "")


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What a run took; *number* is that of the runs of its solver that had finished by then."""

    number: int
    seconds: float
    tokens: int
    steps: int


@dataclass(eq=False)
class Record:
    """
    What the runs of one method with its options measured, and which mode they are in.

    *steps* counts the steps of the runs that decide, and *probed* is their number at the last probe or change of mode.
    *runs* are the last ones that finished.
    """

    drafts: Recent[float] = field(default_factory=Recent[float])
    judged: Recent[float] = field(default_factory=Recent[float])
    repairs: Recent[float] = field(default_factory=Recent[float])
    accepted: Recent[bool] = field(default_factory=Recent[bool])
    elapsed: Recent[tuple[float, int]] = field(default_factory=Recent[tuple[float, int]])
    tokens: Recent[int] = field(default_factory=Recent[int])
    runs: deque[FinishedRun] = field(default_factory=lambda: deque[FinishedRun](maxlen=SPAN))
    now: Mode | None = None
    steps: int = 0
    probed: int = 0

    def estimate(self, seconds_per_token: float | None, *, busy: bool) -> Estimate:
        tokens = self.tokens.values()
        large = seconds_per_token * fmean(tokens) if tokens and seconds_per_token is not None else None
        share, weight = PRIOR
        outcomes = self.accepted.values(OUTCOMES)
        accepted = (share * weight + sum(outcomes)) / (weight + len(outcomes))
        costs = self._costs(large)
        return Estimate(costs, accepted, large, self._factor(costs), busy)

    def _costs(self, large: float | None) -> Costs | None:
        """The medians of the timings. Before the first repair, one is assumed to take the large model's time."""
        drafts, judged, repairs = self.drafts.values(), self.judged.values(), self.repairs.values()
        if not drafts or len(judged) < LEAST:
            return None
        repair = median_low(repairs) if repairs else large or 0.0
        return Costs(median_low(drafts), median_low(judged), repair)

    def _factor(self, costs: Costs | None) -> float:
        elapsed, outcomes = self.elapsed.values(), self.accepted.values(OUTCOMES)
        if costs is None or len(elapsed) < 4 * LEAST or not outcomes:
            return 1.0
        share = fmean(outcomes)
        expected = sum(costs.step(share, ahead) for _, ahead in elapsed)
        least, most = FACTOR
        return min(most, max(least, sum(seconds for seconds, _ in elapsed) / expected)) if expected > 0 else 1.0


@dataclass(eq=False)
class Auto:
    """
    What all runs of one solver measured. The *queue* is the large model's.

    *steps* counts the committed steps, and *ended* the runs that finished.
    """

    steps: int = 0
    ended: int = 0
    running: int = 0
    waiting: int = 0
    large: Recent[float] = field(default_factory=Recent[float])  # seconds per token that it writes
    _records: dict[str, Record] = field(default_factory=dict[str, Record])

    def queue(self, running: int, waiting: int) -> None:
        """Learn from the gauges of the large model's server."""
        self.running, self.waiting = running, waiting

    @property
    def busy(self) -> bool:
        """Whether requests wait at the large model's server. One that has just arrived waits briefly everywhere."""
        return self.waiting > max(1, self.running // 4)

    def record(self, policy: str, options: Mapping[str, Any]) -> Record:
        """What is known of *policy* with its *options*."""
        key = repr((policy, sorted(options.items())))
        if key not in self._records:
            if len(self._records) >= MOST:
                del self._records[next(iter(self._records))]
            self._records[key] = Record()
        return self._records[key]

    def run(self, policy: str, options: Mapping[str, Any], most: int, aside: Policy | None = None) -> AutoRun:
        """Begin a run of *policy*, at most *most* drafts ahead. With *aside*, the large model alone, it may decide."""
        return AutoRun(self, self.record(policy, options), most, aside)


@dataclass(eq=False)
class AutoRun:
    """One run: it reads the run's events into the *record* of its method, and decides who writes the next steps."""

    auto: Auto
    record: Record
    most: int
    aside: Policy | None = None
    decided: Decided | None = None
    _choice: Choice | None = None  # what the events say
    _reading: Reading = field(default_factory=Reading)
    _by_large: set[int] = field(default_factory=set[int])  # the steps that the large model drafted
    _mark: float = 0.0  # when the last whole step was committed
    _tokens: int = 0  # of the step that is being completed
    _began: float = 0.0
    _length: int = 0  # tokens that were committed
    _steps: int = 0  # with these tokens

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.most if self.decided is None else self.decided.ahead

    @property
    def calm(self) -> bool:
        """Whether there is room for hedges, which cost the large model's tokens."""
        return not self.auto.busy

    def due(self, index: int) -> bool:
        """Whether the run has to decide again before step *index*, although no draft was rolled back."""
        decided = self.decided
        return decided is None or index - decided.index >= (PROBE[decided.choice] if decided.probe else EVERY)

    def policy(self, method: Policy) -> Policy:
        """The policy of the next steps: the *method*, or the large model alone."""
        return self.aside if self.aside and self.decided and self.decided.choice == "large" else method

    def decide(self, index: int) -> Decided | None:
        """Decide who writes from step *index* on; None if that is decided."""
        if self.aside is None or (self.decided is not None and self.decided.index == index):
            return None
        record, auto = self.record, self.auto
        spt = median_low(auto.large.values()) if auto.large.entries else None
        estimate = record.estimate(spt, busy=auto.busy)
        mode, seconds, reason = decide(estimate, record.now, self.most)
        if record.now is None or record.now.choice != mode.choice:
            record.probed = record.steps
        record.now = mode
        event = Decided(index, mode.choice, mode.ahead, tuple(seconds.items()), reason)
        event = self._probe(event, estimate)
        self.decided = replace(event, running=auto.running, waiting=auto.waiting)
        return self.decided

    def _probe(self, event: Decided, estimate: Estimate) -> Decided:
        """Let the mode that is not in use write a few steps if nothing is known about it, or nothing recent."""
        other: Choice = "large" if event.choice == "method" else "method"
        age = self.record.steps - self.record.probed
        if other == "large" and estimate.large is None:
            wanted = age >= EVERY and bool(self.record.tokens.entries)
        else:
            stale = other == "method" or self.auto.steps - self.auto.large.newest > 4 * SPAN
            wanted = stale and not estimate.busy and age >= PROBE[other] * max(1 / SHARE, self._excess(event) / EXTRA)
        if not wanted:
            return event
        self.record.probed = self.record.steps
        depth = ASIDE.ahead if other == "large" else min(range(self.most + 1), key=lambda k: estimate.method(k) or 0.0)
        return replace(event, choice=other, ahead=depth, probe=True, reason=f"a probe; {event.reason}")

    def _excess(self, event: Decided) -> float:
        """How much longer a step takes in the other mode, as a share of the time in that of *event*."""
        known = dict(event.seconds)
        alone = known.pop("large alone", None)
        if alone is None or not known:
            return 0.0
        method = min(known.values())
        used, other = (alone, method) if event.choice == "large" else (method, alone)
        return other / used - 1 if used > 0 else 0.0

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at, event = round(moment.at, 6), moment.event
        match event:
            case Started():
                self._mark = self._began = at
            case Decided(choice=choice):
                self._begin(at, choice)
            case Called():
                self._called(event)
            case Drafted(index, draft) if draft.author == "large":
                self._by_large.add(index)
            case Committed():
                self._committed(at, event)
            case Finished():
                self._finished(at)
            case _:
                pass
        if self._choice != "large":
            self._reading.read(at, Moment(at, event))
            self._collect()

    def _begin(self, at: float, choice: Choice) -> None:
        if self._choice is not None and self._choice != choice:
            self._reading, self._mark = Reading(free=at, settled=at), at
        self._choice = choice

    def _called(self, event: Called) -> None:
        """The pace of the large model shows in repairs, whose requests end with the step."""
        repairs = event.role == "large" and event.verb == "write" and event.purpose in ("repair", "hedge")
        if repairs and event.fate == "done" and event.first is not None and event.written > 1:
            self.auto.large.add(self.auto.steps, (event.seconds - event.first) / (event.written - 1))

    def _committed(self, at: float, event: Committed) -> None:
        verdict = self._reading.verdicts.get(event.index, (at, None))[1]
        partial = isinstance(verdict, Rollback) and bool(verdict.keep) and verdict.chosen is None
        self._tokens += len(event.step.tokens)
        self._length += len(event.step.tokens)
        self._steps += 1
        if partial and self._choice != "large":
            return
        self.auto.steps += 1
        alone = event.index in self._by_large
        if alone and event.index - 1 in self._by_large and event.step.tokens:
            self.auto.large.add(self.auto.steps, (at - self._mark) / len(event.step.tokens))
        if self._tokens:
            self.record.tokens.add(self.auto.steps, self._tokens)
        if self.decided is not None:
            self.record.steps += 1
            if self._choice == "method":
                self.record.elapsed.add(self.auto.steps, (at - self._mark, self.decided.ahead))
        self._mark, self._tokens = at, 0

    def _finished(self, at: float) -> None:
        if self._length:
            self.auto.ended += 1
            self.record.runs.append(FinishedRun(self.auto.ended, at - self._began, self._length, self._steps))

    def _collect(self) -> None:
        """Move what the reading found into the record."""
        reading, record, step = self._reading, self.record, self.auto.steps
        pairs = ((reading.drafts, record.drafts), (reading.judged, record.judged), (reading.repairs, record.repairs))
        for found, recent in pairs:
            for seconds in found:
                recent.add(step, seconds)
            found.clear()
        for _, accepted in reading.decided:
            record.accepted.add(step, accepted)
        reading.decided.clear()
