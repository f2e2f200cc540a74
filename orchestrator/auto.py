"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
events and decides before each step. The same events in the same order give the same decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .admission import Admission
from .chain import Accept, Step, Verdict
from .costs import DISCOUNT_PER_DRAFT, MIN_STEPS, WINDOW_STEPS, ByCrowd, Costs, Evidence, Sample
from .events import (
    Called,
    Committed,
    Decided,
    Degraded,
    Drafted,
    Finished,
    Judged,
    Lost,
    Shadowed,
    Started,
)
from .interfaces import REQUEST, Policy, Until
from .trace import Moment

ASSUMED_ACCEPT_RATE = 0.75
"""The accept rate of a method of which nothing is known: the mean of 25 logged runs is 0.79."""
ASSUMED_DRAFTS = 4
"""Drafts that an assumed accept rate counts for: with 2 or 8 the replayed logs take 1% longer."""
MARGIN_SHARE = 0.03
"""The share of the time of a step that a change has to save: two measurements differ by that."""
SHADOW_TIME_SHARE = 0.15
"""
The share of the large model's time that shadow drafts may take.

On a shared card a draft and a verdict delay the large model by a third to a half of their seconds.
"""
SHADOW_GAP_STEPS = 6
"""Steps from a rejected shadow draft to the next one: on the logs 3 and 12 take 1% longer."""
SEEN_TOKENS = 16
"""Tokens of a shadow draft after which its pace is seen, and a slow one is given up."""
MAX_METHODS = 64
"""Methods with their options that are remembered; the one that was not used longest is dropped."""
ALONE = Decided(0, "large", ahead=1)
"""The large model alone works one step ahead, so that its request stays open."""


class Prior(BaseModel):
    """What is known of the method before the first run, as ``stepspec tune`` measures it."""

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

    @property
    def known(self) -> bool:
        """Whether a method can be used without measuring it first."""
        return self.accept_rate is not None and self.verdict_seconds is not None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run expects of its next steps."""

    accept_rate: float
    """The share of accepted drafts."""
    method: float | None = None
    """Seconds of a step of the method; None if nothing of it was measured."""
    alone: float | None = None
    """Seconds of the same step by the large model alone; None if its pace is not known."""
    hopeless: bool = False
    """Whether the method would be slower even if every draft were accepted."""

    def pays(self, using: bool) -> bool:
        """Return whether the method pays for a run that is *using* it, or not."""
        if self.method is None or self.alone is None:
            return False
        margin = -MARGIN_SHARE if using else MARGIN_SHARE
        return self.method < (1 - margin) * self.alone


@dataclass(eq=False)
class Record:
    """What all runs of one method with its options measured."""

    evidence: Evidence
    """The verdicts of all runs: the first ones of each run count most."""
    accepted: ByCrowd = field(default_factory=ByCrowd)
    """Steps whose draft was accepted."""
    rejected: ByCrowd = field(default_factory=ByCrowd)
    """Steps whose draft was rejected, or repaired in part."""
    users: int = 0
    """Runs that use the method now."""
    shadow_seconds: float | None = None
    """Seconds of the last shadow draft and its verdict; None before the first one."""
    explained: bool = False
    """Whether the log has the reason why a run stepped aside."""


@dataclass(eq=False)
class Auto:
    """What all runs of one solver measured."""

    prior: Prior = field(default_factory=Prior)
    """What was known before the first run."""
    admission: Admission = field(default_factory=Admission)
    """The chains of all runs, and the room for them."""
    running: int = 0
    """Requests that the large model's server runs, as last polled."""
    waiting: int = 0
    """Requests that wait there, as last polled."""
    steps: int = 0
    """Steps that all runs have committed."""
    using: int = 0
    """Runs that use a method now."""
    credit: float = 0.0
    """Seconds that shadow drafts may take now."""
    alone: ByCrowd = field(default_factory=ByCrowd)
    """Steps of the large model while no run uses a method."""
    repairs: ByCrowd = field(default_factory=ByCrowd)
    """Repairs without the time to their first token."""
    _records: dict[str, Record] = field(default_factory=dict[str, Record])

    def queue(self, running: int, waiting: int, cache: int | None = None) -> None:
        """Take in the gauges of the large model's server."""
        self.running = running
        self.waiting = waiting
        self.admission.learn(cache)

    def place(self) -> AbstractAsyncContextManager[None]:
        """Hold the place of one run; see `Admission`."""
        return self.admission.place()

    @property
    def runs(self) -> int:
        """How many runs use the large model now, at least one."""
        return max(1, len(self.admission.resident))

    @property
    def busy(self) -> bool:
        """Whether requests wait at the large model's server, and not only since they came."""
        return self.waiting > max(1, self.running // 4)

    @property
    def against(self) -> str:
        """Why the large model writes alone now, whatever a method takes; empty if it need not."""
        if self.admission.full:  # verdicts read whole chains again
            return "the chains of all runs fill the large model's cache"
        if self.prior.runs is not None and self.runs > self.prior.runs:
            return f"the prior knows no gain with more than {self.prior.runs} runs at once"
        return ""

    @property
    def step_alone(self) -> Sample | None:
        """The mean step of the large model if it wrote all runs of now alone; None if not known."""
        alone = self.alone.mean(self.runs, self.steps)
        repair = self.repairs.mean(1, self.steps)
        known = self.alone.known(self.alone.largest(self.runs, self.steps), self.steps)
        return alone if known or repair is None else repair

    def record(self, policy: str, options: Mapping[str, Any]) -> Record:
        """Return what is known of *policy* with its *options*."""
        key = repr((policy, sorted(options.items())))
        found = self._records.pop(key, None)
        if found is None:
            rate = self.prior.accept_rate
            rate = ASSUMED_ACCEPT_RATE if rate is None else rate
            found = Record(Evidence.assume(rate, ASSUMED_DRAFTS))
        if len(self._records) >= MAX_METHODS:
            del self._records[next(iter(self._records))]
        self._records[key] = found
        return found

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


@dataclass(eq=False)
class AutoRun:
    """One run: it reads its own events, and decides who writes its next steps."""

    auto: Auto
    """What all runs measured."""
    record: Record
    """What all runs of its method measured."""
    most: int
    """The most drafts ahead."""
    aside: Policy | None = None
    """The large model alone; None if the run may not decide."""
    lead: int = 0
    """First steps, which the large model writes."""
    decided: Decided | None = None
    """The last decision that was read."""
    given_up: set[int] = field(default_factory=set[int])
    """Steps whose shadow drafts were ended because they were no faster than the large model."""
    using: bool = False
    """Whether the run uses its method."""
    _evidence: Evidence | None = None  # None before the first verdict
    _judged: dict[int, Verdict] = field(default_factory=dict[int, Verdict])  # not committed yet
    _verdicts: int = 0  # that the evidence has
    _by_large: int = 0  # steps in a row that the large model drafted
    _mark: float = 0.0  # when the last whole step was committed
    _users: int = 0  # of the method then
    _tokens: int = 0  # since then
    _shadow: float | None = None  # since when one is under way
    _next_shadow: int = 0  # the first step that may have one

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.most if self.decided is None else self.decided.ahead

    @property
    def hedges(self) -> bool:
        """Whether drafts may be hedged: no other run uses the large model."""
        return self.auto.runs == 1 and not self.auto.busy

    def policy(self, method: Policy) -> Policy:
        """Return the policy of the next steps: the *method*, or the large model alone."""
        if self.aside is None or self.decided is None or self.decided.choice == "method":
            return method
        return self.aside

    def watch(self, until: Until) -> Until:
        """End a shadow draft, unless *until* does, once it is seen to be too slow to pay."""
        alone = self.auto.step_alone
        request = REQUEST.get()
        if alone is None or not request.shadow or request.purpose != "draft":
            return until
        pace = alone.seconds / alone.tokens
        clock = asyncio.get_running_loop().time
        first: tuple[float, int] | None = None

        def ends(step: Step) -> bool:
            nonlocal first
            now = clock()
            first = first or (now, len(step.tokens))
            tokens = len(step.tokens) - first[1]
            slow = tokens >= SEEN_TOKENS and now - first[0] >= pace * tokens
            if slow:
                self.given_up.add(request.step)
            return slow or (until is not None and until(step))

        return ends

    # Decide.

    def decide(self, index: int) -> Decided | None:
        """Decide who writes step *index*; None if that is decided, or if nothing changes."""
        before = self.decided
        if self.aside is None or (before is not None and before.index == index):
            return None
        event = self._choose(index, self.estimate())
        alike = before is not None and _outcome(before) == _outcome(event)
        return None if alike and not event.shadow else event

    @property
    def _depth(self) -> int:
        return 0 if self.auto.busy else self.most

    def estimate(self) -> Estimate:
        """Return what to expect if all runs of now used the method, or none."""
        auto, rate = self.auto, (self._evidence or self.record.evidence).rate
        alone = auto.step_alone
        if alone is None:
            return Estimate(rate)
        pace = alone.seconds / alone.tokens
        accepted = self.record.accepted.mean(auto.runs, auto.steps)
        rejected = self.record.rejected.mean(auto.runs, auto.steps)
        if auto.prior.verdict_seconds is not None and accepted is None:
            draft = (auto.prior.pace or 0.0) * alone.seconds
            costs = Costs(draft, auto.prior.verdict_seconds, alone.tokens, pace)
            accepted, rejected = costs.accepted(self._depth), costs.rejected()
        if accepted is None or rejected is None:
            return Estimate(rate, alone=alone.seconds)
        return Estimate(
            accept_rate=rate,
            method=rate * accepted.seconds + (1 - rate) * rejected.seconds,
            alone=pace * (rate * accepted.tokens + (1 - rate) * rejected.tokens),
            hopeless=accepted.seconds >= pace * accepted.tokens,
        )

    def _choose(self, index: int, estimate: Estimate) -> Decided:
        auto, record = self.auto, self.record
        named = {f"method {self._depth} ahead": estimate.method, "large alone": estimate.alone}
        alone = replace(
            ALONE,
            index=index,
            seconds=tuple((name, each) for name, each in named.items() if each is not None),
            running=auto.running,
            waiting=auto.waiting,
            reason=auto.against or "the method is not known yet",
            advice=self._advice(estimate),
            shadow=self._may_shadow(index, estimate),
        )
        tried = sum(len(steps.samples) for steps in record.accepted.sizes.values()) >= MIN_STEPS
        if auto.against or estimate.method is None or estimate.alone is None:
            return alone
        if not tried and auto.prior.verdict_seconds is None:
            return alone
        reason = (
            f"method: {estimate.method:.3g} s a step, large alone: {estimate.alone:.3g} s;"
            f" {estimate.accept_rate:.0%} of drafts accepted"
        )
        largest = record.accepted.largest(auto.runs, auto.steps)
        crowded = not self.using and (record.users + 1).bit_length() > largest + 1
        if crowded:
            reason = f"more than {record.users} runs at once are not known yet; {reason}"
        if crowded or not estimate.pays(self.using):
            return replace(alone, reason=reason)
        return replace(
            alone, choice="method", ahead=self._depth, reason=reason, advice="", shadow=False
        )

    def _may_shadow(self, index: int, estimate: Estimate) -> bool:
        """Return whether the method may draft step *index* in the shadow of the large model."""
        early = index < max(self.lead, self._next_shadow)
        if early or self._shadow is not None or estimate.alone is None or self.auto.against:
            return False
        rarer = 8 if estimate.hopeless else 1
        seconds = self.record.shadow_seconds
        return seconds is None or self.auto.credit >= rarer * seconds

    def _advice(self, estimate: Estimate) -> str:
        """Say in a sentence why the large model writes alone, and what the user can do about it."""
        auto = self.auto
        if auto.admission.full:
            return (
                f"the chains of {auto.runs} runs fill the large model's cache: lower"
                " `max_running`, or give its server more memory (--gpu-memory-utilization)"
            )
        if auto.busy:
            return (
                f"{auto.waiting} requests wait at the large model's server: lower `max_running`, or"
                " add a replica"
            )
        if estimate.method is None or estimate.alone is None or estimate.pays(using=True):
            return ""
        if estimate.hopeless:
            return (
                f"drafts and verdicts take longer than the {estimate.alone:.2g} s in which the"
                " large model writes a step: run `stepspec tune`"
            )
        return f"{estimate.accept_rate:.0%} of drafts are accepted: run `stepspec tune`"

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at, event = round(moment.at, 6), moment.event
        match event:
            case Started(policy=policy):
                self._begin(at)
                if policy != "small":  # which does not use the large model
                    self.auto.admission.grow(self, 0)
                self._use(self.aside is None and policy != "large")
            case Decided():
                if self.decided is None or self.decided.choice != event.choice:
                    self._begin(at)
                self.decided = event
                self._use(event.choice == "method")
                if event.shadow:
                    self._shadow = at
                    self.auto.credit -= self.record.shadow_seconds or 0.0
            case Called():
                self._called(event)
            case Shadowed():
                self._shadowed(event)
            case Drafted(_, draft):
                self._by_large = self._by_large + 1 if draft.author == "large" else 0
            case Judged(index, draft, verdict) if draft.author == "small":
                self._judged[index] = verdict
            case Lost(index):
                self._judged.pop(index, None)
            case Committed():
                self._committed(at, event)
            case Degraded(path=""):
                self._use(False)
            case Finished():
                self.auto.admission.finish(self)
                self.close()
            case _:
                pass

    def close(self) -> None:
        """The run is over: its chain takes no more room."""
        self.auto.admission.leave(self)
        self._use(False)
        if self._shadow is not None:
            self._end_shadow(self._mark - self._shadow)

    def _use(self, using: bool) -> None:
        """Count the run among those that use the method, or no longer."""
        self.record.users += using - self.using
        self.auto.using += using - self.using
        self.using = using

    def _begin(self, at: float) -> None:
        """Measure the next step from now on."""
        self._mark, self._users, self._tokens = at, max(1, self.record.users), 0

    def _called(self, event: Called) -> None:
        if event.role != "large" or event.fate == "failed":
            return
        self.auto.admission.grow(self, event.prompt + event.written)
        repair = event.purpose in ("repair", "hedge") and event.fate == "done"
        if repair and event.first is not None and event.written > 1:
            sample = Sample(event.seconds - event.first, event.written - 1)
            self.auto.repairs.add(sample, 1, self.auto.steps)

    def _end_shadow(self, seconds: float) -> None:
        """Pay for the shadow draft, which took so many *seconds*."""
        self.auto.credit += (self.record.shadow_seconds or 0.0) - seconds
        self.record.shadow_seconds = seconds
        self._shadow = None

    def _shadowed(self, event: Shadowed) -> None:
        self._end_shadow(event.drafting + event.judging)
        alone, record, now = self.auto.step_alone, self.record, self.auto.steps
        accepted = event.verdict is not None and _accepts(event.verdict)
        if event.verdict is not None:
            self._judge(accepted)
        if not accepted:
            self._next_shadow = event.index + SHADOW_GAP_STEPS
        if alone is not None:
            pace = alone.seconds / alone.tokens
            tokens = max(1, len(event.draft.tokens))
            costs = Costs(event.drafting, event.judging, tokens, pace)
            record.accepted.add(costs.accepted(self.most), 1, now)
            record.rejected.add(costs.rejected(), 1, now)

    def _judge(self, accepted: bool) -> None:
        """Add a verdict to the evidence of the run, and to that of the method."""
        shared = self.record.evidence
        if self._evidence is None:
            self._evidence = Evidence.assume(shared.rate, ASSUMED_DRAFTS)
        self._evidence.add(accepted, 1.0, DISCOUNT_PER_DRAFT)
        weight = DISCOUNT_PER_DRAFT**self._verdicts
        shared.add(accepted, weight, keep=1 - weight / WINDOW_STEPS)
        self._verdicts += 1

    def _committed(self, at: float, event: Committed) -> None:
        auto, record = self.auto, self.record
        self._tokens += len(event.step.tokens)
        verdict = self._judged.pop(event.index, None)
        if verdict is not None and not isinstance(verdict, Accept) and verdict.chosen is None and verdict.keep:
            self._judged[event.index + 1] = replace(verdict, keep=0)  # the repair follows
            return
        auto.steps += 1
        sample = Sample(at - self._mark, self._tokens)
        if verdict is not None and self._tokens:
            self._judge(_accepts(verdict))
            kind = record.accepted if _accepts(verdict) else record.rejected
            kind.add(sample, self._users, auto.steps)
        elif not self.using and self._by_large and self._tokens:
            self._wrote_alone(sample)
        self._begin(at)

    def _wrote_alone(self, sample: Sample) -> None:
        auto = self.auto
        earned = SHADOW_TIME_SHARE * sample.seconds / max(1, auto.runs - auto.using)
        auto.credit = min(auto.credit + earned, 16 * sample.seconds)
        if not auto.using and self._by_large > 1:
            auto.alone.add(sample, auto.runs, auto.steps)


def _accepts(verdict: Verdict) -> bool:
    """Return whether the draft, or a rival in its place, became a step."""
    return isinstance(verdict, Accept) or verdict.chosen is not None


def _outcome(event: Decided) -> tuple[object, ...]:
    return event.choice, event.ahead, bool(event.advice)
