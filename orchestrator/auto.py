"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
own events, and decides before each step. The same events in the same order give the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .chain import Rollback, Verdict, accepts
from .costs import (
    MIN_STEPS,
    WINDOW_STEPS,
    Evidence,
    Kind,
    Steps,
    Timings,
    accepted_seconds,
    rejected_seconds,
)
from .events import (
    Called,
    Committed,
    Decided,
    Degraded,
    Finished,
    Judged,
    Lost,
    Repaired,
    Shadowed,
    Started,
)
from .interfaces import Policy
from .prior import Prior
from .server_load import ServerLoad
from .trace import Moment

ASSUMED_DRAFTS = 2.5
"""Drafts that an assumed accept rate counts for: with 4 the worst logged run takes 1.08."""
KEPT_SHARE_PER_STEP = 0.9
"""The weight that verdicts keep at each step: bursts of rejections last 2 to 7 logged steps."""
MARGIN_TIME_SHARE = 0.03
"""The share of the time of a step that a change has to save: two measurements differ by that."""
SHADOW_TIME_SHARE = 0.15
"""
The share of the large model's time that shadow drafts may take.

On a shared card a draft and a verdict delay the large model by a third to a half of their seconds.
"""
CHANGED_PACE_RATIO = 2.0
"""
How many times as fast as the large model alone its repairs are before it is measured again.

With 2, a run stays within 1.1 of the better choice after the large model became ten times as fast.
"""
MAX_METHODS = 64
"""Methods with their options that are remembered; the one that was not used longest is dropped."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run expects of its next step, in seconds."""

    accept_rate: float
    """The share of accepted drafts."""
    method: float
    """Seconds by the method, if all runs of now used it."""
    best: float
    """The same if the draft is accepted."""
    aside: float
    """Seconds by the large model alone, beside the runs that use a method now."""
    alone: float
    """Seconds by the large model alone, if no run used a method."""

    def __str__(self) -> str:
        return (
            f"method {self.method:.3g} s a step, large alone {self.alone:.3g} s,"
            f" {self.accept_rate:.0%} of drafts accepted"
        )


@dataclass(eq=False)
class Record:
    """What all runs of one method with its options measured."""

    evidence: Evidence = field(default_factory=Evidence)
    """The verdicts of all runs: the first ones of each run count most."""
    timings: Timings = field(default_factory=Timings)
    """Accepted and rejected steps, by the number of runs that used a method."""
    repair_seconds: float = 0.0
    """Seconds of the large model's repairs from their first tokens on; older ones weigh less."""
    repair_tokens: float = 0.0
    """Tokens of the repairs after their first ones, with the same weights."""
    explained: bool = False
    """Whether the log has the reason why a run stepped aside."""


@dataclass(eq=False)
class Auto:
    """What all runs of one solver measured."""

    prior: Prior = field(default_factory=Prior)
    """What was known before the first run."""
    server_load: ServerLoad = field(default_factory=ServerLoad)
    """The large model's server, and the runs that use it."""
    steps: float = 0.0
    """Steps that each run has committed so far, on average."""
    timings: Timings = field(default_factory=Timings)
    """Steps of the large model, by the number of all runs."""
    using: int = 0
    """Runs that use a method now."""
    load: float = 1.0
    """
    The mean time of a step, if each run does what is best for itself.

    It is divided by the time if no run used a method.
    """
    shadow: AutoRun | None = None
    """The run that has a shadow draft under way; None if there is none."""
    debt: float = 0.0
    """Seconds of shadow drafts that the large model's steps have not made up for yet."""
    _records: dict[str, Record] = field(default_factory=dict[str, Record])

    @property
    def crowded(self) -> bool:
        """Whether the runs that use a method slow the others down by more than they gain."""
        return self.load > (1 + MARGIN_TIME_SHARE if self.using else 1)

    def large(self, kind: Literal["alone", "beside"]) -> Steps | None:
        """Return the large model's steps for as many runs as now; None if there are none."""
        return self.timings.mean(kind, self.server_load.runs.bit_length())

    def run(
        self,
        policy: str,
        options: Mapping[str, Any],
        most: int,
        aside: Policy | None = None,
        lead: int = 0,
    ) -> AutoRun:
        """
        Begin a run of *policy* with its *options*, at most *most* drafts ahead.

        The large model drafts the first *lead* steps. With *aside*, the large model alone, the run
        may decide.
        """
        key = repr((policy, sorted(options.items())))
        self._records[key] = record = self._records.pop(key, None) or Record()
        if len(self._records) > MAX_METHODS:
            del self._records[next(iter(self._records))]
        return AutoRun(self, record, most, aside, lead)


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
    """First steps, which the large model drafts."""
    decided: Decided | None = None
    """The last decision that was read."""
    using: bool = False
    """Whether the run uses its method."""
    _evidence: Evidence = field(default_factory=Evidence)
    _verdicts: int = 0
    _judged: dict[int, Verdict] = field(default_factory=dict[int, Verdict])  # not committed yet
    _mark: float = 0.0  # when the last whole step was committed
    _users: int = 0  # of methods then
    _tokens: int = 0  # committed since then
    _settled: bool = False  # whether the large model wrote the last step alone, too
    _shadow: float = 0.0  # when the last shadow draft began

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.most if self.decided is None else self.decided.ahead

    @property
    def may_hedge(self) -> bool:
        """Whether drafts may be hedged: no other run uses the large model."""
        server = self.auto.server_load
        return server.runs == 1 and not server.busy

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
        event = self._choose(index)
        if before is None or event.shadow or _outcome(before) != _outcome(event):
            return event
        return None

    def estimate(self) -> Estimate | None:
        """Return what to expect of the next step; None if too little is known."""
        timings = self.record.timings
        size = timings.largest(self.auto.server_load.runs, self.auto.steps)
        accepted = timings.mean("accepted", size)
        rejected = timings.mean("rejected", size)
        alone = self.auto.large("alone")
        if accepted is None or rejected is None or alone is None:
            return None
        beside = self.auto.large("beside") or alone
        rate = self._evidence.rate(self._usual_rate, ASSUMED_DRAFTS)
        tokens = rate * accepted.tokens + (1 - rate) * rejected.tokens
        return Estimate(
            accept_rate=rate,
            method=rate * accepted.seconds + (1 - rate) * rejected.seconds,
            best=accepted.pace * tokens,
            aside=beside.pace * tokens,
            alone=alone.pace * tokens,
        )

    @property
    def _usual_rate(self) -> float:
        """The accept rate of a run of the method."""
        return self.record.evidence.rate(self.auto.prior.accept_rate, ASSUMED_DRAFTS)

    def _choose(self, index: int) -> Decided:
        server = self.auto.server_load
        estimate = self.estimate()
        against = self._against(estimate)
        decided = Decided(
            index,
            choice="method",
            ahead=0 if server.busy else self.most,
            reason=str(estimate),
            running=server.running,
            waiting=server.waiting,
        )
        if not against:
            return decided
        reason = f"{against}: {estimate}" if estimate else against
        return replace(
            decided,
            choice="large",
            ahead=1,  # so that the large model's request stays open
            reason=reason,
            advice=server.advice or (f"{reason}: run `stepspec tune`" if estimate else ""),
            shadow=self._may_shadow(index, estimate),
        )

    def _against(self, estimate: Estimate | None) -> str:
        """Say why the large model writes alone now; empty if it does not."""
        auto = self.auto
        server = auto.server_load
        if server.full:  # verdicts read whole chains again
            return "the chains of all runs fill the large model's cache"
        if auto.prior.runs is not None and server.runs > auto.prior.runs:
            return f"the prior knows no gain with more than {auto.prior.runs} runs at once"
        if estimate is None:
            return "the method is not known yet"
        margin = MARGIN_TIME_SHARE if self.using else -MARGIN_TIME_SHARE
        if estimate.method >= (1 + margin) * estimate.aside:
            return "the method is slower"
        if auto.crowded:
            return "the method slows other runs down"
        largest = self.record.timings.largest(server.runs, auto.steps)
        if not self.using and auto.using + 1 >= 2 ** (largest + 1):
            return f"more than {auto.using} runs at once are not known yet"
        return ""

    def _may_shadow(self, index: int, estimate: Estimate | None) -> bool:
        """Return whether the method may draft step *index* in the shadow of the large model."""
        auto = self.auto
        if index < self.lead or auto.large("alone") is None or auto.server_load.strained:
            return False
        if auto.shadow or auto.debt > 0:
            return False
        return estimate is None or not (auto.crowded or estimate.best >= estimate.alone)

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at = round(moment.at, 6)
        event = moment.event
        match event:
            case Started(policy=policy):
                if policy != "small":  # which does not use the large model
                    self.auto.server_load.grow(self, 0)
                self._use(self.aside is None and policy not in ("small", "large"))
                self._begin(at)
            case Decided():
                self._decided(at, event)
            case Called(role="large"):
                self.auto.server_load.grow(self, event.prompt + event.written)
                self._compare_pace(event)
            case Shadowed():
                self._shadowed(event)
            case Judged(index, draft, verdict) if draft.author == "small":
                self._judged[index] = verdict
            case Repaired(index, _, rollback):
                self._judged[index] = replace(rollback, keep=0)
            case Lost(index):
                self._judged.pop(index, None)
            case Committed():
                self._committed(at, event)
            case Degraded():
                self._use(False)
            case Finished():
                self.auto.server_load.finish(self)
                self.close()
            case _:
                pass

    def close(self) -> None:
        """The run is over: its chain takes no more room."""
        self.auto.server_load.leave(self)
        self._use(False)
        self._end_shadow(self._mark - self._shadow)

    def _use(self, using: bool) -> None:
        """Count the run among those that use a method, or no longer."""
        self.auto.using += using - self.using
        self.using = using

    def _begin(self, at: float) -> None:
        """Measure the next step from now on."""
        self._mark = at
        self._users = self.auto.using
        self._tokens = 0

    def _decided(self, at: float, event: Decided) -> None:
        if self.decided is None or self.decided.choice != event.choice:
            self._use(event.choice == "method")
            self._begin(at)
            self._settled = False
        self.decided = event
        if event.shadow:
            self.auto.shadow = self
            self._shadow = at

    def _end_shadow(self, seconds: float) -> None:
        """
        Charge the *seconds* of the shadow draft that is under way, if it is this run's.

        While requests wait at the server, a draft that takes longer than a method that pays has
        waited, too: the rest of its seconds is free. Of a method that is not known yet, the time of
        a step is free.
        """
        if self.auto.shadow is not self:
            return
        self.auto.shadow = None
        alone = self.auto.large("alone")
        if alone is None:
            return
        if self.auto.server_load.waiting:
            seconds = min(seconds, (self.most + 1) * alone.seconds)
        if self.estimate() is None:
            seconds -= alone.seconds
        self.auto.debt = max(0.0, seconds)

    def _shadowed(self, event: Shadowed) -> None:
        self._end_shadow(event.drafting + event.judging)
        self._judge(accepts(event.verdict))
        self._learn(event.drafting, event.judging, max(1, len(event.draft.tokens)))

    def _learn(self, draft: float, verdict: float, tokens: float) -> None:
        """Take in the seconds of a draft that was made while the large model wrote alone."""
        alone = self.auto.large("alone")
        if alone is None:
            return
        timings = self.record.timings
        accepted = accepted_seconds(draft, verdict, self.most)
        rejected = rejected_seconds(draft, verdict, tokens * alone.pace)
        timings.add("accepted", 1, accepted, tokens, self.auto.steps)
        timings.add("rejected", 1, rejected, tokens, self.auto.steps)

    def _compare_pace(self, call: Called) -> None:
        """
        Forget how long the large model takes alone once its repairs are much faster.

        Only a lone run compares: in a crowd, the large model's pace depends on who uses it.
        """
        alone = self.auto.large("alone")
        if not self.using or alone is None or self.auto.server_load.runs > 1:
            return
        if call.first is None or call.written < 2:
            return
        record = self.record
        record.repair_seconds *= KEPT_SHARE_PER_STEP
        record.repair_seconds += call.seconds - call.first
        record.repair_tokens *= KEPT_SHARE_PER_STEP
        record.repair_tokens += call.written - 1
        if CHANGED_PACE_RATIO * record.repair_seconds < alone.pace * record.repair_tokens:
            self.auto.timings.forget("alone", "beside")

    def _judge(self, accepted: bool) -> None:
        """Add a verdict to the evidence of the run, and to that of the method."""
        self._evidence.add(accepted)
        weight = KEPT_SHARE_PER_STEP**self._verdicts
        self.record.evidence.fade(1 - weight / WINDOW_STEPS)
        self.record.evidence.add(accepted, weight)
        self._verdicts += 1

    def _committed(self, at: float, event: Committed) -> None:
        auto = self.auto
        self._tokens += len(event.step.tokens)
        verdict = self._judged.pop(event.index, None)
        if isinstance(verdict, Rollback) and verdict.keep and not verdict.chosen:
            return  # a part of the draft: its repair follows
        auto.steps += 1 / auto.server_load.runs
        self._evidence.fade(KEPT_SHARE_PER_STEP)
        seconds = at - self._mark
        if verdict is not None:
            accepted = accepts(verdict)
            self._judge(accepted)
            kind: Kind = "accepted" if accepted else "rejected"
            self.record.timings.add(kind, max(1, self._users), seconds, self._tokens, auto.steps)
        elif event.step.author == "large" and not self.using:
            self._wrote_alone(seconds)
        self._begin(at)
        if estimate := self.estimate():
            load = min(estimate.method, estimate.aside) / estimate.alone
            auto.load += (load - auto.load) / auto.server_load.runs

    def _wrote_alone(self, seconds: float) -> None:
        auto = self.auto
        prior = auto.prior
        if self._settled:
            kind: Kind = "beside" if self._users or auto.using else "alone"
            runs = auto.server_load.runs
            auto.timings.add(kind, runs, seconds, self._tokens, auto.steps)
            auto.debt = max(0.0, auto.debt - SHADOW_TIME_SHARE * seconds / runs)
        self._settled = True
        alone = auto.large("alone")
        if alone and prior.verdict_seconds is not None and not self.record.timings.means:
            for _ in range(MIN_STEPS):
                self._learn(prior.pace * alone.seconds, prior.verdict_seconds, alone.tokens)


def _outcome(event: Decided) -> tuple[object, ...]:
    return event.choice, event.ahead, bool(event.advice)
