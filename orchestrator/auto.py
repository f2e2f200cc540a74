"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
events and decides before each step. The same events in the same order give the same decisions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from .admission import Admission
from .chain import Accept, Step, Verdict
from .costs import (
    DISCOUNT_PER_DRAFT,
    MIN_TIMINGS,
    WINDOW_TIMINGS,
    ByCrowd,
    Costs,
    Evidence,
    Timings,
    mean_of,
)
from .events import (
    Called,
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

MARGIN_SHARE = 0.03
"""The share of the time of a step that a change has to save: timings of one world differ by it."""
ASSUMED_ACCEPT_RATE = 0.75
"""The accept rate of a method of which nothing is known: the mean of 25 logged runs is 0.79."""
ASSUMED_DRAFTS = 4
"""
Drafts that an assumed accept rate counts for.

Replayed logs: two rejections in a row lead a run aside, and 2 or 8 drafts are 1% worse.
"""
SHADOW_TIME_SHARE = 0.15
"""
The share of the large model's time in which a method may draft in its shadow.

Where both models share a card, such a draft delays the large model by half of its time, at most.
"""
SHADOW_GAP_STEPS = 6
"""Steps from a rejected shadow draft to the next one of the run: 3 or 12 are worse on the logs."""
SEEN_TOKENS = 16
"""Tokens of a shadow draft after which its pace is seen, and a slow one is given up."""
MAX_METHODS = 64
"""Methods with their options that are remembered; the one that was not used longest is dropped."""


HOPELESS_FACTOR = 8
"""How many times rarer shadow drafts are where the method could not pay at any accept rate."""
ASIDE_AHEAD = 1
"""Steps that the large model works ahead alone: its request stays open, and nothing is lost."""
Lengths: TypeAlias = deque[int]
"""The tokens of the latest steps of a kind."""


def _lengths() -> Lengths:
    return deque[int](maxlen=WINDOW_TIMINGS)


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
    """What a run expects of its method and of the large model alone."""

    method: float | None
    """Seconds of a step of the method; None if nothing of it was measured."""
    alone: float | None
    """Seconds of the same step by the large model alone; None if its pace is not known."""
    accept_rate: float
    """The expected share of accepted drafts."""
    draft: float | None = None
    """Seconds of a draft and its verdict; None if none was measured."""
    hopeless: bool = False
    """Whether the method could not pay even if every draft were accepted."""

    def pays(self, using: bool) -> bool:
        """Return whether the method pays, for a run that is *using* it now or not."""
        if self.method is None or self.alone is None:
            return False
        if using:
            return self.alone >= (1 - MARGIN_SHARE) * self.method
        return self.method < (1 - MARGIN_SHARE) * self.alone


@dataclass(eq=False)
class Record:
    """What all runs of one method with its options measured."""

    prior: Prior
    """What was known before."""
    accepted: Evidence
    """The verdicts of all runs, in which the first ones of each run count most."""
    drafts: ByCrowd = field(default_factory=ByCrowd)
    """Seconds of a token of a draft that did not wait for anything."""
    verdicts: ByCrowd = field(default_factory=ByCrowd)
    """Seconds from a draft to its verdict."""
    repairs: ByCrowd = field(default_factory=ByCrowd)
    """Seconds of a token of a repair."""
    draft_tokens: Lengths = field(default_factory=_lengths)
    """Tokens of drafts."""
    accepted_tokens: Lengths = field(default_factory=_lengths)
    """Tokens of accepted drafts."""
    rejected_tokens: Lengths = field(default_factory=_lengths)
    """Tokens of steps whose draft was rejected: what was kept of it, and the repair."""
    users: int = 0
    """Runs that use the method now."""
    shadows: int = 0
    """Shadow drafts that were started."""
    explained: bool = False
    """Whether the log has the reason why a run stepped aside."""

    @property
    def tried(self) -> bool:
        """Whether enough is known to use the method."""
        return self.prior.known or self.verdicts.count >= MIN_TIMINGS

    def costs(self, token_seconds: float, step_tokens: float, runs: int) -> Costs | None:
        """
        Return what a draft costs with so many runs at once; None if nothing is known of one.

        What was not measured is as in the prior, or as for the large model with *token_seconds*
        and *step_tokens*.
        """
        token = self.drafts.expect(runs)
        verdict = self.verdicts.expect(runs)
        if token is None and not self.prior.known:
            return None
        if token is None:
            token = (self.prior.pace or 0.0) * token_seconds
        if verdict is None:
            verdict = self.prior.verdict_seconds or 0.0
        tokens = mean_of(self.draft_tokens) or step_tokens
        rejected_tokens = mean_of(self.rejected_tokens) or tokens
        return Costs(
            draft=token * tokens,
            verdict=verdict,
            repair=(self.repairs.expect(runs) or token_seconds) * rejected_tokens,
            accepted_tokens=mean_of(self.accepted_tokens) or tokens,
            rejected_tokens=rejected_tokens,
        )


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
    """Seconds that shadow drafts may take."""
    alone: ByCrowd = field(default_factory=ByCrowd)
    """Seconds of a token of the large model while no run uses a method."""
    repairing: Timings = field(default_factory=Timings)
    """Seconds of a token of the large model in repairs."""
    step_tokens: Lengths = field(default_factory=_lengths)
    """Tokens of steps that the large model wrote alone."""
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
        """
        Whether requests wait at the large model's server. One that has just arrived waits briefly
        everywhere.
        """
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
    def token_seconds(self) -> float | None:
        """
        Seconds of a token if the large model wrote all runs of now alone; else those of repairs.
        """
        for runs in (self.runs, self.runs // 2):
            if self.alone.fresh(runs, self.steps):
                return self.alone.at(runs).typical
        return self.repairing.typical if self.repairing.values else self.alone.expect(self.runs)

    def record(self, policy: str, options: Mapping[str, Any]) -> Record:
        """Return what is known of *policy* with its *options*."""
        key = repr((policy, sorted(options.items())))
        found = self._records.pop(key, None)
        if found is None:
            rate = self.prior.accept_rate
            assumed = ASSUMED_ACCEPT_RATE if rate is None else rate
            found = Record(self.prior, Evidence.assume(assumed, ASSUMED_DRAFTS))
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
class Pending:
    """What of a run is under way."""

    free: float | None
    """Since when the small model could draft; None while it drafts."""
    settled: float
    """When the last step was committed."""
    drafts: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    """When each draft came that waits for its verdict, and how many runs used the method then."""
    verdicts: dict[int, tuple[float, Verdict]] = field(
        default_factory=dict[int, tuple[float, Verdict]]
    )
    """When each verdict came that waits for its commit."""
    kept: int = 0
    """Tokens that were kept of a draft that is being repaired."""


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
    """The last decision."""
    given_up: set[int] = field(default_factory=set[int])
    """Steps whose shadow drafts were ended because they were no faster than the large model."""
    using: bool = False
    """Whether the run uses its method."""
    _evidence: Evidence | None = None  # of this run; None before its first verdict
    _verdicts: int = 0  # of this run
    _pending: Pending = field(default_factory=lambda: Pending(0.0, 0.0))
    _by_large: set[int] = field(default_factory=set[int])  # steps that the large model drafted
    _shadow: tuple[float, float] | None = None  # when one began, and the seconds reserved for it
    _next_shadow: int = 0  # the first step that may have one
    _mark: float = 0.0  # when the last whole step was committed

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.most if self.decided is None else self.decided.ahead

    @property
    def hedges(self) -> bool:
        """Whether drafts may be hedged: no other run uses the large model."""
        return self.auto.runs == 1 and not self.auto.busy

    @property
    def accept_rate(self) -> float:
        """The share of its next drafts that the run expects to be accepted."""
        return (self._evidence or self.record.accepted).rate

    def watch(self, until: Until) -> Until:
        """
        End a shadow draft, unless *until* does, once it is seen to be no faster than the large
        model.
        """
        pace = self.auto.token_seconds
        clock = asyncio.get_running_loop().time
        request = REQUEST.get()
        if pace is None or not request.shadow or request.purpose != "draft":
            return until
        seen = list[tuple[float, int]]()

        def ends(step: Step) -> bool:
            seen.append((clock(), len(step.tokens)))
            seconds, tokens = (last - first for first, last in zip(seen[0], seen[-1], strict=True))
            slow = tokens >= SEEN_TOKENS and seconds >= pace * tokens
            if slow:
                self.given_up.add(request.step)
            return slow or (until is not None and until(step))

        return ends

    def policy(self, method: Policy) -> Policy:
        """Return the policy of the next steps: the *method*, or the large model alone."""
        if self.aside is None or self.decided is None or self.decided.choice == "method":
            return method
        return self.aside

    def decide(self, index: int) -> Decided | None:
        """Decide who writes step *index*; None if that is decided, or if nothing changes."""
        before = self.decided
        if self.aside is None or (before is not None and before.index == index):
            return None
        estimate = self.estimate()
        event = replace(
            self._choose(index, estimate), running=self.auto.running, waiting=self.auto.waiting
        )
        if event.choice == "large":
            shadow = self._may_shadow(index, estimate)
            event = replace(event, shadow=shadow, advice=self._advice(estimate))
        if event.shadow or before is None or _outcome(before) != _outcome(event):
            return event
        return None

    def estimate(self) -> Estimate:
        """Return what to expect if all runs of now used the method, or none."""
        pace = self.auto.token_seconds
        if pace is None:
            return Estimate(None, None, self.accept_rate)
        step_tokens = mean_of(self.auto.step_tokens) or 0.0
        costs = self.record.costs(pace, step_tokens, self.auto.runs)
        if costs is None:
            return Estimate(None, pace * step_tokens, self.accept_rate)
        rate = self.accept_rate
        ahead = self._depth
        return Estimate(
            method=costs.method(rate, ahead),
            alone=costs.alone(rate, pace),
            accept_rate=rate,
            draft=costs.draft + costs.verdict,
            hopeless=costs.method(1.0, ahead) >= costs.alone(1.0, pace),
        )

    @property
    def _depth(self) -> int:
        return 0 if self.auto.busy else self.most

    def _choose(self, index: int, estimate: Estimate) -> Decided:
        """Return the decision about step *index*, without a shadow draft and advice."""
        candidates = {f"method {self._depth} ahead": estimate.method, "large alone": estimate.alone}
        seconds = tuple((name, each) for name, each in candidates.items() if each is not None)
        aside = Decided(index, "large", ASIDE_AHEAD, seconds)
        if self.auto.against:
            return replace(aside, reason=self.auto.against)
        if not self.record.tried or estimate.method is None or estimate.alone is None:
            return replace(aside, reason="the method is not known yet")
        reason = (
            f"method: {estimate.method:.3g} s a step, large alone: {estimate.alone:.3g} s;"
            f" {estimate.accept_rate:.0%} of drafts accepted"
        )
        if self.auto.busy:
            reason += ", the large model has a queue"
        if not estimate.pays(self.using):
            return replace(aside, reason=reason)
        crowd = self.record.users + (not self.using)
        if not self.using and crowd.bit_length() > self.record.verdicts.largest + 1:
            unknown = f"verdicts of more than {self.record.users} runs at once are not known yet"
            return replace(aside, reason=f"{unknown}; {reason}")
        return Decided(index, "method", self._depth, seconds, reason)

    def _may_shadow(self, index: int, estimate: Estimate) -> bool:
        """Return whether the method drafts step *index* in the shadow of the large model."""
        early = index < max(self.lead, self._next_shadow)
        if early or self._shadow is not None or estimate.alone is None or self.auto.against:
            return False
        if not self.record.shadows:
            return True
        needed = self._shadow_seconds(estimate)
        if estimate.hopeless:
            needed *= HOPELESS_FACTOR
        return self.auto.credit >= needed

    def _shadow_seconds(self, estimate: Estimate) -> float:
        """Seconds of a shadow draft: as measured, or of a step of the large model."""
        return estimate.alone or 0.0 if estimate.draft is None else estimate.draft

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
                f"a draft and its verdict take {estimate.draft:.2g} s, and the large model writes a"
                f" step in {estimate.alone:.2g} s: run `stepspec tune`"
            )
        return f"{estimate.accept_rate:.0%} of drafts are accepted: run `stepspec tune`"

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at, event = round(moment.at, 6), moment.event
        match event:
            case Started(policy=policy):
                self._mark = at
                self._pending = Pending(at, at)
                if policy != "small":  # which does not use the large model
                    self.auto.admission.grow(self, 0)
                self._use(self.aside is None and policy != "large")
            case Decided():
                self._change(at, event)
            case Called():
                self._called(event)
            case Shadowed():
                self._shadowed(event)
            case Drafted(index, draft):
                self._drafted(at, index, draft)
            case Judged(index, _, verdict) if index in self._pending.drafts:
                since, users = self._pending.drafts.pop(index)
                self.record.verdicts.add(at - since, users, self.auto.steps)
                self._pending.verdicts[index] = at, verdict
            case Repaired(index, step, _):
                self._repaired(at, index, step)
            case Lost(index):
                self._pending.drafts.pop(index, None)
                self._pending.verdicts.pop(index, None)
            case Degraded(path=""):
                self._use(False)
            case Chosen():
                self._pending.free = at
            case Committed():
                self._committed(at, event)
            case Finished():
                self.auto.admission.finish(self)
                self.close()
            case _:
                pass

    def close(self) -> None:
        """The run is over: its chain takes no more room, and its shadow drafts have ended."""
        self.auto.admission.leave(self)
        self._use(False)
        if self._shadow is not None:
            self._end_shadow(max(0.0, self._mark - self._shadow[0]))

    def _use(self, using: bool) -> None:
        """Count the run among those that use the method, or no longer."""
        self.record.users += using - self.using
        self.auto.using += using - self.using
        self.using = using

    def _change(self, at: float, event: Decided) -> None:
        """Take in the decision of the run itself."""
        if self.decided is None or self.decided.choice != event.choice:
            self._pending = Pending(at, at)
            self._mark = at
        self.decided = event
        self._use(event.choice == "method")
        if event.shadow:
            reserved = self._shadow_seconds(self.estimate())
            self._shadow = at, reserved
            self.record.shadows += 1
            self.auto.credit -= reserved

    def _called(self, event: Called) -> None:
        """The pace of the large model shows in repairs, whose requests end with the step."""
        if event.role != "large" or event.fate == "failed":
            return
        self.auto.admission.grow(self, event.prompt + event.written)
        repair = event.verb == "write" and event.purpose in ("repair", "hedge")
        if repair and event.fate == "done" and event.first is not None and event.written > 1:
            seconds = (event.seconds - event.first) / (event.written - 1)
            self.auto.repairing.add(seconds, self.auto.steps)

    def _end_shadow(self, seconds: float) -> None:
        """Take in that the shadow draft has ended after so many seconds."""
        if self._shadow is not None:
            self.auto.credit += self._shadow[1] - seconds
        self._shadow = None

    def _shadowed(self, event: Shadowed) -> None:
        self._end_shadow(event.drafting + event.judging)
        steps = self.auto.steps
        tokens = max(1, len(event.draft.tokens))
        self.record.drafts.add(event.drafting / tokens, 1, steps)
        accepted = False
        if event.verdict is not None:
            self.record.draft_tokens.append(tokens)
            self.record.verdicts.add(event.judging, 1, steps)
            accepted = _accepts(event.verdict)
            self._judge(accepted)
        if not accepted:
            self._next_shadow = event.index + SHADOW_GAP_STEPS

    def _judge(self, accepted: bool) -> None:
        """Add a verdict to the evidence of the run, and of the method."""
        weight = DISCOUNT_PER_DRAFT**self._verdicts
        if self._evidence is None:
            self._evidence = Evidence.assume(self.record.accepted.rate, ASSUMED_DRAFTS)
        self._evidence.add(accepted)
        self.record.accepted.add(accepted, weight, keep=1 - weight / WINDOW_TIMINGS)
        self._verdicts += 1

    def _drafted(self, at: float, index: int, draft: Step) -> None:
        pending = self._pending
        if draft.author == "large":
            self._by_large.add(index)
        else:
            self._by_large.discard(index)
            tokens = max(1, len(draft.tokens))
            users = max(1, self.record.users)
            if pending.free is not None:
                seconds = (at - pending.free) / tokens
                self.record.drafts.add(seconds, users, self.auto.steps)
            self.record.draft_tokens.append(tokens)
            pending.drafts[index] = at, users
        pending.free = None

    def _repaired(self, at: float, index: int, step: Step) -> None:
        pending = self._pending
        judged = pending.verdicts.pop(index)[0] if index in pending.verdicts else at
        tokens = max(1, len(step.tokens))
        seconds = at - max(judged, pending.settled)
        self.record.repairs.add(seconds / tokens, max(1, self.record.users), self.auto.steps)
        self.record.rejected_tokens.append(pending.kept + tokens)
        self._judge(False)
        pending.kept = 0
        pending.free = at

    def _committed(self, at: float, event: Committed) -> None:
        pending = self._pending
        tokens = len(event.step.tokens)
        judged = pending.verdicts.get(event.index)
        if event.step.author == "small" and judged is not None:
            if _accepts(judged[1]):
                del pending.verdicts[event.index]
                self.record.accepted_tokens.append(tokens)
                self._judge(True)
            else:  # the repair follows
                pending.kept = tokens
                pending.verdicts[event.index + 1] = judged
        pending.settled = at
        if not pending.kept:
            self.auto.steps += 1
            self._complete(at, event.index, tokens)

    def _complete(self, at: float, index: int, tokens: int) -> None:
        """Measure the large model alone by a whole step."""
        auto, seconds = self.auto, at - self._mark
        self._mark = at
        if self.using or index not in self._by_large or not tokens:
            return
        runs_alone = max(1, auto.runs - auto.using)
        auto.credit += SHADOW_TIME_SHARE * seconds / runs_alone
        auto.credit = min(auto.credit, 2 * HOPELESS_FACTOR * seconds)
        auto.step_tokens.append(tokens)
        if not auto.using and index - 1 in self._by_large:
            auto.alone.add(seconds / tokens, auto.runs, auto.steps)


def _accepts(verdict: Verdict) -> bool:
    """Return whether the draft, or a rival in its place, became a step."""
    return isinstance(verdict, Accept) or verdict.chosen is not None


def _outcome(event: Decided) -> tuple[object, ...]:
    return event.choice, event.ahead, bool(event.advice)
