"""
Choose between a method at some depth and the large model alone, by what a committed step takes now.
No I/O.

`Auto` keeps what all runs of a solver measured. `AutoRun` reads the events of one run into it and
decides for that run; `decide` compares. The same events in the same order give the same decisions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import fmean, median_low
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from .chain import Accept, Rollback, Step, Verdict
from .events import (
    Called,
    Choice,
    Chosen,
    Committed,
    Decided,
    Degraded,
    Drafted,
    Finished,
    Judged,
    Lost,
    Repaired,
    Shadowed,
    Started,
)
from .interfaces import REQUEST, Policy, Until
from .trace import Moment

MARGIN = 0.03  # of the time of a step, which a change has to save
CAUTION = 0.2  # the same for a change to a method of which few verdicts are known
SPAN = 64  # committed steps of all runs for which a measurement counts, if there are newer ones
# timings that are used however old they are, and without which nothing is decided; shadow drafts at
# once
LEAST = 3
OUTCOMES = 16  # the same for verdicts
LENGTHS = 256  # steps of all runs, whose mean length counts: runs that began together are alike
EVERY = 8  # steps after which a run decides again, if no draft was rolled back
USUAL = 0.75  # the share of accepted drafts that is assumed beforehand
WEIGHT = 8  # the number of drafts that an assumed share counts for
STREAK = 2  # rejections in a row, after which the assumed share counts for one draft only
# drafts of a method, and steps of the large model, that measure it while it is not in use
SHADOWS, PROBE = 4, 2
SHARE = 0.2  # of the steps, that may be such ones
EXTRA = 0.015  # of the time, that they may take in addition
# of the time of a shadow draft and its verdict, by which they delay the large model on one card
SHARED = 0.5
DELAY = 0.15  # of the time of a run, by which shadow drafts may delay it
MOST = 64  # methods with their options that a solver keeps records of; the oldest is dropped first
FEW = 8  # verdicts below which the evidence is thin, and decisions are frequent
SLOW = 0.8  # of the large model's seconds per token, above which a small model cannot pay
SIGHT = 16  # tokens of a draft after which its pace is seen
HEDGED = 0.75  # the share of accepted drafts up to which hedges pay (docs/results.md)
FULL = 0.85  # the share of the large server's cache that the chains of all runs may take

T = TypeVar("T")


class Prior(BaseModel):
    """
    What is known of the method before the first run, as ``stepspec tune`` measures
    it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    accept_rate: float | None = Field(default=None, ge=0, le=1)
    """The share of the small model's drafts that the method accepts; none: 0.75 is assumed."""
    verdict_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds of a verdict; none: it is measured."""
    pace: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """
    The small model's seconds per token, over those of the large one; none: drafts are assumed to
    take no time.
    """
    runs: int | None = Field(default=None, ge=1)
    """
    Runs at once up to which the method saves time; with more the large model writes alone; none: no
    limit.
    """


@dataclass(frozen=True, slots=True)
class Costs:
    """
    Seconds to *draft*, *judge* and *repair* a step. From these follows the time of a committed
    step.

    A share *a* of the drafts is accepted. *k* drafts ahead, a step is committed every max(draft,
    (draft + judge)/(k + 1)) seconds: the small model writes one draft after the other, and k + 1
    are under way. A rejected draft is drafted and judged in full, because nothing overlaps with it,
    and then repaired. Before its verdict is known, min(k, judge/draft) bets are made on it; each
    costs the *toll*, a share of the seconds of a draft.
    """

    draft: float
    judge: float
    repair: float
    toll: float = 0.1

    def step(self, accepted: float, ahead: int) -> float:
        """
        Expected seconds per committed step if a share *accepted* of the drafts is accepted, *ahead*
        drafts ahead.
        """
        pace = max(self.draft, (self.draft + self.judge) / (ahead + 1))
        lost = min(ahead, self.judge / self.draft) if self.draft > 0 else ahead
        rejected = self.draft + self.judge + self.repair + lost * self.toll * self.draft
        return accepted * pace + (1 - accepted) * rejected


@dataclass(frozen=True, slots=True)
class Estimate:
    """
    What is known of a method and of the large model alone when a run decides.

    *costs* are those of one draft; None while too little is known. *accepted* is the share of the
    drafts that is accepted. *large* is the time in which the large model alone writes a step, in
    seconds; None if it is not known. A large model that is *busy* has a queue of requests.
    *against* says why a method is not used whatever it takes. *caution* is the share of the time
    that the method has to save before it takes over: all of it while `LEAST` verdicts are not
    known, and `CAUTION` while they are few.
    """

    costs: Costs | None = None
    accepted: float = USUAL
    large: float | None = None
    busy: bool = False
    against: str = ""
    caution: float = 0.0

    @property
    def delay(self) -> float:
        """
        By how much a shadow draft delays the large model, as a share of a step; if unknown, it
        takes a step.
        """
        if self.costs is None or not self.large:
            return SHARED
        return SHARED * (self.costs.draft + self.costs.judge) / self.large

    def method(self, ahead: int) -> float | None:
        """Seconds that the method takes for a committed step, *ahead* drafts ahead."""
        return None if self.costs is None else self.costs.step(self.accepted, ahead)


@dataclass(frozen=True, slots=True)
class Mode:
    """Who writes: the method, working *ahead*, or the large model alone."""

    choice: Choice
    ahead: int


# one step ahead keeps the large model's request open; without verdicts nothing is lost
ASIDE = Mode("large", 1)
ALONE = "large alone"


def decide(estimate: Estimate, now: Mode | None, most: int) -> tuple[Mode, dict[str, float], str]:
    """
    Choose a mode with at most *most* drafts ahead; return it, the seconds of every candidate, and
    the reason in words.

    The mode *now* stays unless another one saves a share of `MARGIN` of the time, or of the
    estimate's caution. Of depths that differ by less, the deepest is chosen. Without an estimate,
    and where something is *against* a method, the large model writes alone.
    """
    depths = (0,) if estimate.busy else range(most + 1)
    modes = {f"method {ahead} ahead": Mode("method", ahead) for ahead in depths}
    expected = {name: estimate.method(mode.ahead) for name, mode in modes.items()}
    modes[ALONE], expected[ALONE] = ASIDE, estimate.large
    known = {name: seconds for name, seconds in expected.items() if seconds is not None}
    if estimate.against:
        return ASIDE, known, estimate.against
    if len(known) < len(expected):
        missing = "large model's pace" if estimate.costs else "method's pace"
        return ASIDE, known, f"the {missing} is not known yet"
    fastest = min(known, key=known.__getitem__)
    near = [name for name in known if known[fastest] >= (1 - MARGIN) * known[name]]
    alike = [name for name in near if modes[name].choice == modes[fastest].choice]
    # The formula knows no jitter, which drafts further ahead hide: of depths as good as equal, the
    # deepest is the best.
    best = next((name for name in near if modes[name] == now), alike[-1])
    few = now == ASIDE and known[ALONE] > known[best] > (1 - estimate.caution) * known[ALONE]
    best = ALONE if few else best
    other = min(
        (name for name in known if modes[name].choice != modes[best].choice), key=known.__getitem__
    )
    reason = (
        f"{best}: {known[best]:.3g} s a step, {other}: {known[other]:.3g} s;"
        f" {estimate.accepted:.0%} of drafts accepted"
    )
    reason += ", of which few are known" * few + ", the large model has a queue" * estimate.busy
    return modes[best], known, reason


@dataclass(eq=False)
class Recent(Generic[T]):
    """The latest values, each with the number of steps that all runs had committed by then."""

    entries: deque[tuple[int, T]] = field(default_factory=lambda: deque[tuple[int, T]](maxlen=SPAN))

    def add(self, step: int, value: T) -> None:
        self.entries.append((step, value))

    def values(self, least: int = LEAST) -> list[T]:
        """
        The values no more than a `SPAN` older than the newest, and in any case the last *least*.
        """
        fresh = sum(self.newest - step <= SPAN for step, _ in self.entries)
        return [value for _, value in self.entries][-max(fresh, least) :]

    @property
    def newest(self) -> int:
        return self.entries[-1][0] if self.entries else 0


@dataclass(eq=False)
class Record:
    """
    What the runs of one method with its options measured, and which mode they are in.

    *drafts* are the seconds of drafts that did not wait for anything: the first after the start or
    a repair, and *paces* the same for each token. *judged* are those from a draft to its verdict,
    by the size of the crowd: how many bits the number of runs had that used the method, as *users*
    do now. *repairs* are those from a rollback to its repair. *tokens* are the lengths of the
    method's steps, *alone* those of the steps that the large model wrote alone. *steps* counts the
    steps of the runs that decide, and *probed* is their number at the last probe or change of mode;
    *spent* counts the shadow drafts since then, *shadows* those under way, and *made* all others,
    which took the seconds *shadowed*. *explained* says whether the log has the reason why runs step
    aside.
    """

    prior: Prior = field(default_factory=Prior)
    drafts: Recent[float] = field(default_factory=Recent[float])
    paces: Recent[float] = field(default_factory=Recent[float])
    judged: defaultdict[int, Recent[float]] = field(
        default_factory=lambda: defaultdict(Recent[float])
    )
    repairs: Recent[float] = field(default_factory=Recent[float])
    accepted: Recent[bool] = field(default_factory=Recent[bool])
    tokens: deque[int] = field(default_factory=lambda: deque[int](maxlen=LENGTHS))
    alone: deque[int] = field(default_factory=lambda: deque[int](maxlen=LENGTHS))
    now: Mode | None = None
    users: int = 0
    steps: int = 0
    probed: int = 0
    spent: int = 0
    shadows: int = 0
    shadowed: float = 0.0
    made: int = 0
    explained: bool = False

    @property
    def lengths(self) -> Sequence[int]:
        """
        Tokens of the method's steps; where few are known also of the large model's, which may be
        longer.
        """
        return self.tokens if len(self.tokens) >= SPAN else [*self.tokens, *self.alone]

    def known(self, size: int) -> bool:
        """Whether as many verdicts in a crowd of this *size* are known as it has runs."""
        return len(self.judged[size].entries) >= max(LEAST, min(SPAN, 1 << size >> 1))

    def verdicts(self, size: int) -> list[float]:
        """
        The seconds of verdicts in a crowd of this *size*. Where few are known, they grow as they
        last did.

        A crowd of twice as many runs takes at most twice as long. If few are known of any size,
        those of all sizes.
        """
        sizes = [of for of in sorted(self.judged) if of <= size and self.known(of)]
        *smaller, last = sizes or [0]
        values = [
            value for of in sizes[-1:] or sorted(self.judged) for value in self.judged[of].values()
        ]
        if not smaller or last == size:
            return values
        growth = median_low(values) / max(median_low(self.judged[smaller[-1]].values()), 1e-9)
        return [value * min(2.0, max(1.0, growth)) ** (size - last) for value in values]

    def estimate(
        self, pace: float | None, *, busy: bool = False, against: str = "", size: int = 1
    ) -> Estimate:
        large = pace * fmean(lengths) if (lengths := self.lengths) and pace is not None else None
        outcomes = self.accepted.values(OUTCOMES)
        streak = sum(1 for _ in takewhile(lambda accepted: not accepted, reversed(outcomes)))
        share = USUAL if self.prior.accept_rate is None else self.prior.accept_rate
        weight = max(1, WEIGHT - len(self.accepted.entries) // 8) if streak < STREAK else 1
        accepted = (share * weight + sum(outcomes)) / (weight + len(outcomes))
        costs = self._costs(large, pace, self.verdicts(size), 1 if streak >= STREAK else LEAST)
        caution = 1.0 if len(outcomes) < LEAST else CAUTION if len(outcomes) < FEW else 0.0
        return Estimate(
            costs,
            accepted,
            large,
            busy,
            against,
            caution if self.prior.accept_rate is None else 0.0,
        )

    def _costs(
        self, large: float | None, pace: float | None, judged: list[float], least: int
    ) -> Costs | None:
        """
        The medians of the timings. Before the first repair, one is assumed to take the *large*
        model's time.

        No verdict is needed if a token of a draft took about as long as the large model's *pace*;
        one is enough if it took longer than the large model takes for a step: no accept rate pays
        then.

        Without any timing of a draft, the prior says what it and its verdict take.
        """
        drafts, repairs = self.drafts.values(), self.repairs.values()
        repair = median_low(repairs) if repairs else large or 0.0
        outpaced = (
            pace is not None and bool(paces := self.paces.values()) and min(paces) > SLOW * pace
        )
        slow = large is not None and bool(judged) and min(judged) > large
        needed = 0 if outpaced else 1 if slow else least
        if drafts and len(judged) >= needed:
            return Costs(median_low(drafts), median_low(judged) if judged else 0.0, repair)
        if (
            self.prior.accept_rate is not None
            and self.prior.verdict_seconds is not None
            and not drafts
        ):
            return Costs(
                (self.prior.pace or 0.0) * (large or 0.0), self.prior.verdict_seconds, repair
            )
        return None


@dataclass(eq=False)
class Auto:
    """
    What all runs of one solver measured. The queue and the *cache*, in tokens, are those of the
    large model's server.

    *steps* counts the committed steps. *chains* are the tokens of the chains that finished,
    *resident* those of the chains of all runs that use the large model. *repairing* has the large
    model's seconds per token.
    """

    prior: Prior = field(default_factory=Prior)
    steps: int = 0
    running: int = 0
    waiting: int = 0
    cache: int | None = None
    repairing: Recent[float] = field(default_factory=Recent[float])
    chains: Recent[int] = field(default_factory=Recent[int])
    resident: dict[AutoRun, int] = field(default_factory=dict["AutoRun", int])
    # as repairing, by the crowd
    _alone: dict[int, Recent[float]] = field(default_factory=dict[int, Recent[float]])
    _records: dict[str, Record] = field(default_factory=dict[str, Record])
    _placed: int = 0  # runs that hold a place
    _places: deque[asyncio.Future[None]] = field(default_factory=deque[asyncio.Future[None]])

    def queue(self, running: int, waiting: int, cache: int | None = None) -> None:
        """Learn from the gauges of the large model's server."""
        self.running, self.waiting, self.cache = running, waiting, cache
        self._admit()

    @property
    def busy(self) -> bool:
        """
        Whether requests wait at the large model's server. One that has just arrived waits briefly
        everywhere.
        """
        return self.waiting > max(1, self.running // 4)

    @property
    def full(self) -> bool:
        """Whether the chains of all runs take more than the large model's cache holds."""
        return self.cache is not None and sum(self.resident.values()) > FULL * self.cache

    @property
    def against(self) -> str:
        """Why the large model writes alone now, whatever a method takes; empty if it need not."""
        if self.full:  # verdicts read whole chains again
            return "the chains of all runs fill the large model's cache"
        crowd = self.prior.runs is not None and len(self.resident) > self.prior.runs
        return (
            f"the prior knows no gain with more than {self.prior.runs} runs at once"
            if crowd
            else ""
        )

    @property
    def fits(self) -> int | None:
        """How many runs fit into the large model's cache; None if that is not known."""
        lengths = self.chains.values()
        return max(1, int(FULL * self.cache / fmean(lengths))) if self.cache and lengths else None

    @property
    def pace(self) -> float | None:
        """
        Seconds per token of the large model if it wrote all runs of now alone; else as in repairs.
        """
        size = len(self.resident).bit_length()
        alone = [self._alone[of] for of in (size, size - 1) if of in self._alone]
        fresh = [each for each in alone if not self.outdated(each)]
        return next(
            (
                median_low(each.values())
                for each in (*fresh, self.repairing, *alone)
                if each.entries
            ),
            None,
        )

    def wrote_alone(self, seconds_per_token: float) -> None:
        alone = sum(not each.using for each in self.resident)
        self._alone.setdefault(alone.bit_length(), Recent()).add(self.steps, seconds_per_token)

    def outdated(self, recent: Recent[float]) -> bool:
        """Whether the runs of now would have committed many steps each since the newest value."""
        return self.steps - recent.newest > 2 * SPAN * max(1, len(self.resident))

    def stale(self) -> bool:
        """Whether nothing has shown the large model's pace for a while."""
        newest = max(
            (recent.newest for recent in (self.repairing, *self._alone.values())), default=0
        )
        return self.steps - newest > 4 * SPAN

    def record(self, policy: str, options: Mapping[str, Any]) -> Record:
        """What is known of *policy* with its *options*."""
        key = repr((policy, sorted(options.items())))
        if key not in self._records:
            if len(self._records) >= MOST:
                del self._records[next(iter(self._records))]
            known = None not in (self.prior.accept_rate, self.prior.verdict_seconds)
            self._records[key] = Record(self.prior, spent=SHADOWS if known else 0)
        self._records[key] = self._records.pop(key)  # the last used is dropped last
        return self._records[key]

    def run(
        self,
        policy: str,
        options: Mapping[str, Any],
        most: int,
        aside: Policy | None = None,
        lead: int = 0,
    ) -> AutoRun:
        """
        Begin a run of *policy*, at most *most* drafts ahead. With *aside*, the large model alone,
        it may decide.
        """
        return AutoRun(self, self.record(policy, options), most, aside, lead)

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """
        Hold a place of one run: wait, first come, first served, while the chains of more runs would
        not fit.
        """
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.append(place)
        self._admit()
        try:
            await place
            yield
        finally:
            if place in self._places:
                self._places.remove(place)
            else:
                self._placed -= 1
                self._admit()

    def _admit(self) -> None:
        fits = self.fits
        while self._places and (fits is None or self._placed < fits):
            place = self._places.popleft()
            self._placed += 1
            if not place.done():
                place.set_result(None)


@dataclass(eq=False)
class Pending:
    """
    What of a run is not decided yet: since when drafts and verdicts are under way.

    *free* is the time since which the small model could draft; None while it drafts. *settled* is
    the time of the last commit. *drafts* have the time of each draft of the small model that waits
    for its verdict, with the size of the crowd, *verdicts* the time of each that waits for its
    commit.
    """

    free: float | None = None
    settled: float = 0.0
    drafts: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    verdicts: dict[int, tuple[float, Verdict]] = field(
        default_factory=dict[int, tuple[float, Verdict]]
    )


@dataclass(eq=False)
class AutoRun:
    """
    One run: it reads the run's events into the *record* of its method, and decides who writes the
    next steps.

    *given_up* are the steps whose shadow drafts were ended because the large model is as fast.
    """

    auto: Auto
    record: Record
    most: int
    aside: Policy | None = None
    lead: int = 0  # first steps, which the large model drafts
    decided: Decided | None = None
    given_up: set[int] = field(default_factory=set[int])
    using: bool = False  # whether it is one of the users of the method
    _choice: Choice | None = None  # what the events say
    _unsure: bool = False  # whether it decided by what is known of smaller crowds
    _pending: Pending = field(default_factory=Pending)
    _by_large: set[int] = field(default_factory=set[int])  # the steps that the large model drafted
    _shadow: float | None = None  # the time since which a shadow draft is under way
    _shadowed_for: float = 0.0  # seconds, by drafts that have ended
    _mark: float = 0.0  # when the last whole step was committed
    _tokens: int = 0  # of the step that is being completed

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.most if self.decided is None else self.decided.ahead

    @property
    def hedges(self) -> bool:
        """
        Whether drafts may be hedged: many are rejected, and no other run uses the large model.
        """
        auto, outcomes = self.auto, self.record.accepted.values(OUTCOMES)
        return (
            len(auto.resident) < 2
            and not auto.busy
            and sum(outcomes) <= HEDGED * max(1, len(outcomes))
        )

    def watch(self, until: Until) -> Until:
        """
        End a shadow draft, unless *until* does, once it is seen to be no faster than the large
        model.
        """
        pace, clock, request = self.auto.pace, asyncio.get_running_loop().time, REQUEST.get()
        if pace is None or not request.shadow or request.purpose != "draft":
            return until
        seen = list[tuple[float, int]]()

        def ends(step: Step) -> bool:
            seen.append((clock(), len(step.tokens)))
            seconds, tokens = (last - first for first, last in zip(seen[0], seen[-1], strict=True))
            slow = tokens >= SIGHT and seconds >= pace * tokens
            self.given_up |= {request.step} if slow else set()
            return slow or (until is not None and until(step))

        return ends

    def due(self, index: int) -> bool:
        """
        Whether the run has to decide again before step *index*, although no draft was rolled back.
        """
        decided = self.decided
        if decided is None:
            return True
        if decided.probe:
            return index - decided.index >= PROBE
        thin = self._unsure or len(self.record.accepted.entries) < FEW
        measuring = decided.choice == "large" and self.record.spent < SHADOWS
        return index - decided.index >= (1 if thin or measuring else EVERY)

    def policy(self, method: Policy) -> Policy:
        """The policy of the next steps: the *method*, or the large model alone."""
        return (
            self.aside if self.aside and self.decided and self.decided.choice == "large" else method
        )

    def decide(self, index: int) -> Decided | None:
        """
        Decide who writes from step *index* on; None if that is decided, or if nothing changes.
        """
        if self.aside is None or (self.decided is not None and self.decided.index == index):
            return None
        record, auto = self.record, self.auto
        size = (record.users + (not self.using)).bit_length()
        for outdated in [
            of for of, each in record.judged.items() if of >= max(3, size) and auto.outdated(each)
        ]:
            del record.judged[outdated]
        estimate = record.estimate(auto.pace, busy=auto.busy, against=auto.against, size=size)
        mode, seconds, reason = decide(estimate, record.now, self.most)
        if record.now is not None and record.now.choice != mode.choice:
            record.probed, record.spent = record.steps, SHADOWS
        record.now, self._unsure = mode, not record.known(size)
        largest = max(filter(record.known, record.judged), default=1)
        if mode.choice == "method" and not self.using and size > largest + 1:
            mode, reason = (
                ASIDE,
                f"verdicts of more than {record.users} runs at once are not known yet; {reason}",
            )
        self._use(mode.choice == "method")
        event = self._probe(
            Decided(index, mode.choice, mode.ahead, tuple(seconds.items()), reason), estimate
        )
        if event.choice == "large" and not event.probe:
            event = replace(event, advice=self._advice(estimate))
        before, self.decided = (
            self.decided,
            replace(event, running=auto.running, waiting=auto.waiting),
        )
        return (
            self.decided
            if event.shadow or before is None or _outcome(before) != _outcome(event)
            else None
        )

    def _use(self, using: bool) -> None:
        """Count the run among those that use the method, or no longer."""
        self.record.users += using - self.using
        self.using = using

    def _advice(self, estimate: Estimate) -> str:
        """Say in a sentence why the large model writes alone, and what the user can do about it."""
        auto, outcomes = self.auto, self.record.accepted.values(OUTCOMES)
        if auto.full:
            return (
                f"the chains of {len(auto.resident)} runs fill the large model's cache: lower"
                " `max_running`, or give its server more memory (--gpu-memory-utilization)"
            )
        if estimate.busy:
            return (
                f"{auto.waiting} requests wait at the large model's server: lower `max_running`, or"
                " add a replica"
            )
        expected = estimate.method(self.most)
        if estimate.costs is None or estimate.large is None or (expected or 0.0) < estimate.large:
            return ""  # The method is not known yet, or not well enough.
        if outcomes and sum(outcomes) < len(outcomes) / 2:
            return f"{sum(outcomes)} of {len(outcomes)} drafts accepted: run `stepspec tune`"
        if not (outcomes or self.record.drafts.entries or self.record.prior.pace):
            return "drafts are rarely accepted, as measured before: run `stepspec tune`"
        verdict = f" and its verdict {estimate.costs.judge:.2g} s" if estimate.costs.judge else ""
        return (
            f"a draft takes {estimate.costs.draft:.2g} s{verdict}, and the large model writes a"
            f" step in {estimate.large:.2g} s: run `stepspec tune`"
        )

    def _probe(self, event: Decided, estimate: Estimate) -> Decided:
        """
        Measure the mode that is not in use if nothing is known about it, or nothing recent.

        The large model writes a few steps. The method drafts in the shadow: the chain does not wait
        for it.
        """
        record, alone = self.record, event.choice == "large"
        extra = min(estimate.delay, _excess(event)) if alone else _excess(event)
        due = record.steps - record.probed >= (SHADOWS if alone else PROBE) * max(
            1 / SHARE, extra / EXTRA
        )
        if estimate.against or (estimate.busy and estimate.costs is not None):
            return event
        if not alone:
            if not (due and self.auto.stale()):
                return event
            record.probed = record.steps
            return replace(
                event,
                choice="large",
                ahead=ASIDE.ahead,
                probe=True,
                reason=f"a probe; {event.reason}",
            )
        crowded = record.users or record.shadows >= LEAST
        if crowded or self.auto.pace is None or self._shadow is not None or event.index < self.lead:
            return event
        # a rejected draft ends a probe
        accepted = record.accepted.entries and record.accepted.entries[-1][1]
        costs, judged = estimate.costs, record.judged[1].entries
        last = replace(costs, judge=judged[-1][1]) if costs and judged else costs
        # all accepted
        quick = (
            last is None or estimate.large is None or last.step(1.0, self.most) <= estimate.large
        )
        wanted = record.spent < SHADOWS and (costs is None or (accepted and quick))
        if not due and not (wanted and (estimate.caution == 0 or self._affords(event.index))):
            return event
        if due:
            record.probed, record.spent = record.steps, 0
        record.spent += 1
        return replace(event, shadow=True)

    def _affords(self, index: int) -> bool:
        """
        Whether a further shadow draft should delay the run by no more than `DELAY`; the first may
        take a step.
        """
        record = self.record
        expected = record.shadowed / record.made if record.made else self._mark / max(1, index)
        return SHARED * (self._shadowed_for + expected) < DELAY * self._mark

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at, event, pending = round(moment.at, 6), moment.event, self._pending
        match event:
            case Started(policy=policy):
                self._mark = pending.free = at
                if policy != "small":  # a baseline, as is large: it does not use the large model
                    self.auto.resident[self] = 0
                self._use(self.aside is None and policy != "large")
            case Decided(choice=choice):
                if event.shadow:
                    self._shadow = at
                    self.record.shadows += 1
                if self._choice not in (None, choice):
                    self._pending, self._mark = Pending(free=at, settled=at), at
                self._choice = choice
            case Called():
                self._called(event)
            case Shadowed():
                self._shadowed(event)
            case Drafted(index, draft):
                self._drafted(at, index, draft)
            case Judged(index, _, verdict) if index in pending.drafts:
                since, size = pending.drafts.pop(index)
                self.record.judged[size].add(self.auto.steps, at - since)
                pending.verdicts[index] = at, verdict
            case Repaired(index, _, rollback):
                judged, _ = pending.verdicts.get(index, (pending.settled, rollback))
                self.record.repairs.add(self.auto.steps, at - max(judged, pending.settled))
                self.record.accepted.add(self.auto.steps, False)
                pending.free = at
            case Lost(index):
                pending.drafts.pop(index, None)
                pending.verdicts.pop(index, None)
            case Degraded(path=""):
                self._use(False)
            case Chosen():
                pending.free = at
            case Committed():
                self._committed(at, event)
            case Finished():
                if tokens := self.auto.resident.get(self):
                    self.auto.chains.add(self.auto.steps, tokens)
                self.close()
            case _:
                pass

    def close(self) -> None:
        """The run is over: its chain takes no more room, and its shadow drafts have ended."""
        self.auto.resident.pop(self, None)
        self._use(False)
        if self._shadow is not None:
            self._end_shadow(max(0.0, self._mark - self._shadow))

    def _end_shadow(self, seconds: float) -> None:
        """Count the shadow draft, which has ended after so many *seconds*."""
        self._shadow = None
        self.record.shadows -= 1
        self.record.made += 1
        self.record.shadowed += seconds
        self._shadowed_for += seconds

    def _called(self, event: Called) -> None:
        """The pace of the large model shows in repairs, whose requests end with the step."""
        if event.role != "large" or event.fate == "failed":
            return
        self.auto.resident[self] = max(
            self.auto.resident.get(self, 0), event.prompt + event.written
        )
        repairs = event.verb == "write" and event.purpose in ("repair", "hedge")
        if repairs and event.fate == "done" and event.first is not None and event.written > 1:
            self.auto.repairing.add(
                self.auto.steps, (event.seconds - event.first) / (event.written - 1)
            )

    def _shadowed(self, event: Shadowed) -> None:
        record, steps, verdict = self.record, self.auto.steps, event.verdict
        self._end_shadow(event.drafting + event.judging)
        pace, usual = event.drafting / max(1, len(event.draft.tokens)), record.lengths
        record.paces.add(steps, pace)
        if verdict is None:
            record.drafts.add(steps, pace * fmean(usual) if usual else event.drafting)
            return
        record.drafts.add(steps, event.drafting)
        record.judged[1].add(steps, event.judging)
        record.accepted.add(steps, isinstance(verdict, Accept) or bool(verdict.chosen))

    def _drafted(self, at: float, index: int, draft: Step) -> None:
        pending = self._pending
        if draft.author == "large":
            self._by_large.add(index)
        else:
            self._by_large.discard(index)
            if pending.free is not None:
                self.record.drafts.add(self.auto.steps, at - pending.free)
                self.record.paces.add(
                    self.auto.steps, (at - pending.free) / max(1, len(draft.tokens))
                )
            pending.drafts[index] = at, max(1, self.record.users).bit_length()
        pending.free = None

    def _committed(self, at: float, event: Committed) -> None:
        pending = self._pending
        _, verdict = pending.verdicts.pop(event.index, (at, None))
        self._tokens += len(event.step.tokens)
        partial = isinstance(verdict, Rollback) and bool(verdict.keep) and verdict.chosen is None
        if not partial or self._choice == "large":
            self._complete(at, event)
        if (
            event.step.author == "small"
            and verdict is not None
            and (isinstance(verdict, Accept) or verdict.chosen)
        ):
            self.record.accepted.add(self.auto.steps, True)
        pending.settled = at

    def _complete(self, at: float, event: Committed) -> None:
        """Measure a whole step."""
        auto, record = self.auto, self.record
        auto.steps += 1
        if {event.index, event.index - 1} <= self._by_large and event.step.tokens:
            auto.wrote_alone((at - self._mark) / len(event.step.tokens))
        if self._tokens:
            (record.alone if self._choice == "large" else record.tokens).append(self._tokens)
        record.steps += self.decided is not None
        self._mark, self._tokens = at, 0


def _outcome(event: Decided) -> tuple[object, ...]:
    return event.choice, event.ahead, event.probe, bool(event.advice)


def _excess(event: Decided) -> float:
    """How much longer a step takes in the other mode, as a share of the time in that of *event*."""
    known = dict(event.seconds)
    alone = known.pop(ALONE, None)
    if alone is None or not known:
        return 1.0  # not known yet
    method = min(known.values())
    used, other = (alone, method) if event.choice == "large" else (method, alone)
    return other / used - 1 if used > 0 else 0.0
