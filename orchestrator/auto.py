"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
own events, and decides before each step. The same events in the same order give the same decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .chain import accepts
from .costs import (
    MIN_STEPS,
    WINDOW_STEPS,
    Evidence,
    Kind,
    MeanStep,
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

KEPT_SHARE_PER_STEP = 0.9
"""
At each step, the weights of a run's older verdicts are multiplied by this.

About ten verdicts count, because rejections come in bursts of 2 to 7 steps in the logged runs.
"""
MARGIN_TIME_SHARE = 0.03
"""
A change of the writer has to save at least this share of a step's time.

Smaller differences are noise: two measurements of the same step differ by about as much.
"""
SHADOW_TIME_SHARE = 0.15
"""
The share of the large model's time that shadow drafts may take.

On a shared card a draft and a verdict delay the large model by a third to a half of their seconds.
"""
CHANGED_PACE_RATIO = 2.0
"""
If repairs are this many times as fast as the steps of the large model alone, forget these steps.

With 2, a run stays within 1.1 of the better choice after the large model became ten times as fast.
"""
MAX_METHODS = 64
"""The number of methods with their options that are remembered."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run expects of its next step."""

    accept_rate: float
    """The share of accepted drafts."""
    method: float
    """Seconds by the method, if every run used it."""
    accepted: float
    """Seconds by the method, if every run used it and the draft is accepted."""
    beside: float
    """Seconds by the large model alone, while the other runs go on with what they use now."""
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
    """The verdicts of all runs. The first verdicts of each run have the most weight."""
    timings: Timings = field(default_factory=Timings)
    """Accepted and rejected steps, by the number of runs that used a method."""
    repairs: MeanStep = field(default_factory=lambda: MeanStep(window=10))
    """The mean of the large model's latest repairs, each from its first token on."""
    explained: bool = False
    """Whether the log says why a run went on with the large model alone."""


@dataclass(eq=False)
class Auto:
    """What all runs of one solver measured."""

    prior: Prior = field(default_factory=Prior)
    """What was known before the first run."""
    server_load: ServerLoad = field(default_factory=ServerLoad)
    """The large model's server, and the runs that use it."""
    steps: float = 0.0
    """The clock of all measurements: steps that each run has committed so far, on average."""
    timings: Timings = field(default_factory=Timings)
    """Steps of the large model, by the number of all runs."""
    method_runs: set[AutoRun] = field(default_factory=set["AutoRun"])
    """The runs that use a method now."""
    load: float = 1.0
    """
    How much longer a step takes because runs use the method, as a mean over all runs.

    It is the time of a step if each run chooses what is best for itself, divided by the time if no
    run uses a method. Above 1 the runs that use a method cost the others more than they gain.
    """
    shadow_run: AutoRun | None = None
    """The run that has a shadow draft under way; None if there is none."""
    shadow_debt: float = 0.0
    """Seconds of shadow drafts that the large model's steps have not made up for yet."""
    _records: dict[str, Record] = field(default_factory=dict[str, Record])

    @property
    def crowded(self) -> bool:
        """Whether the runs that use a method slow the others down by more than they gain."""
        limit = 1.0
        if self.method_runs:
            limit += MARGIN_TIME_SHARE
        return self.load > limit

    def large(self, kind: Literal["alone", "beside"]) -> MeanStep | None:
        """Return the large model's mean step with as many runs as now; None if not measured."""
        return self.timings.mean(kind, self.server_load.runs)

    def run(
        self,
        policy: str,
        options: Mapping[str, Any],
        max_ahead: int,
        large_policy: Policy | None = None,
        lead: int = 0,
    ) -> AutoRun:
        """
        Begin a run of the method *policy* with its *options*, at most *max_ahead* drafts ahead.

        The large model drafts the first *lead* steps. The run may switch to *large_policy*, with
        which the large model writes alone. None: the run does not decide.
        """
        key = repr((policy, sorted(options.items())))
        record = self._records.pop(key, None) or Record()
        self._records[key] = record  # moves to the end, so that the first is the oldest
        if len(self._records) > MAX_METHODS:
            del self._records[next(iter(self._records))]
        return AutoRun(self, record, max_ahead, large_policy, lead)


@dataclass(eq=False)
class AutoRun:
    """One run: it reads its own events, and decides who writes its next steps."""

    auto: Auto
    """What all runs measured."""
    record: Record
    """What all runs of its method measured."""
    max_ahead: int
    """The most drafts ahead."""
    large_policy: Policy | None = None
    """The policy with which the large model writes alone; None if the run does not decide."""
    lead: int = 0
    """The number of first steps that the large model drafts."""
    decided: Decided | None = None
    """The last decision that was read."""
    _evidence: Evidence = field(default_factory=Evidence)
    _verdicts: int = 0  # how many verdicts the evidence took in
    _accepted: dict[int, bool] = field(default_factory=dict[int, bool])  # of uncommitted steps
    _step_began: float = 0.0  # when the last step was committed
    _step_tokens: int = 0  # tokens that were committed since the step began
    _step_runs: int = 0  # runs that used a method when the step began
    _alone_steps: int = 0  # steps that the large model has written alone without a break
    _shadow_began: float = 0.0  # when the last shadow draft began

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.max_ahead if self.decided is None else self.decided.ahead

    @property
    def may_hedge(self) -> bool:
        """Whether drafts may be hedged: no other run uses the large model."""
        server = self.auto.server_load
        return server.runs == 1 and not server.busy

    @property
    def _uses_method(self) -> bool:
        return self in self.auto.method_runs

    def policy(self, method: Policy) -> Policy:
        """Return the policy of the next steps: the *method*, or the large model alone."""
        if self.large_policy is None or self.decided is None or self.decided.choice == "method":
            return method
        return self.large_policy

    def decide(self, index: int) -> Decided | None:
        """Decide who writes step *index*; None if this was decided, or if nothing changes."""
        before = self.decided
        if self.large_policy is None or (before is not None and before.index == index):
            return None
        decision = self._choose(index)
        if before is None or decision.shadow or _outcome(before) != _outcome(decision):
            return decision
        return None

    def estimate(self) -> Estimate | None:
        """Return what to expect of the next step; None if too little is measured."""
        auto = self.auto
        timings = self.record.timings
        runs = timings.measured_runs(auto.server_load.runs, auto.steps)
        accepted = timings.mean("accepted", runs)
        rejected = timings.mean("rejected", runs)
        alone = auto.large("alone")
        if accepted is None or rejected is None or alone is None:
            return None
        beside = auto.large("beside") or alone
        rate = self._evidence.rate(self.record.evidence.rate(auto.prior.accept_rate))
        # All seconds are those of a step that is as long as the method's mean step.
        tokens = rate * accepted.tokens + (1 - rate) * rejected.tokens
        return Estimate(
            accept_rate=rate,
            method=rate * accepted.seconds + (1 - rate) * rejected.seconds,
            accepted=accepted.pace * tokens,
            beside=beside.pace * tokens,
            alone=alone.pace * tokens,
        )

    def _choose(self, index: int) -> Decided:
        """Return the decision about step *index*, whether it changes anything or not."""
        server = self.auto.server_load
        estimate = self.estimate()
        objection = self._objection(estimate)
        decision = Decided(
            index,
            choice="method",
            ahead=0 if server.busy else self.max_ahead,
            reason=str(estimate),
            running=server.running,
            waiting=server.waiting,
        )
        if not objection:
            return decision
        reason = f"{objection}: {estimate}" if estimate else objection
        return replace(
            decision,
            choice="large",
            ahead=1,  # above 0, a model may keep its request open between steps: `OPEN_REQUESTS`
            reason=reason,
            advice=server.advice or (f"{reason}: run `stepspec tune`" if estimate else ""),
            shadow=self._may_shadow(index, estimate),
        )

    def _objection(self, estimate: Estimate | None) -> str:
        """Say why the method must not write the next step; empty if it may."""
        auto = self.auto
        server = auto.server_load
        if server.full:  # each verdict would read its whole chain again
            return "the chains of all runs fill the large model's cache"
        if auto.prior.runs is not None and server.runs > auto.prior.runs:
            return f"by `prior.runs`, more than {auto.prior.runs} runs at once save no time"
        if estimate is None:
            return "the method is not measured yet"
        # Leave the method only if it is clearly slower. Take it only if it is clearly faster.
        margin = MARGIN_TIME_SHARE if self._uses_method else -MARGIN_TIME_SHARE
        if estimate.method >= (1 + margin) * estimate.beside:
            return "the method is slower"
        if auto.crowded:
            return "the method slows other runs down"
        users = len(auto.method_runs)
        measured = self.record.timings.measured_runs(server.runs, auto.steps)
        # A run may join a measured crowd, and a crowd of the next size: after 1 run, 2 to 3 runs.
        if not self._uses_method and users > 2 * measured:
            return f"more than {users} runs at once are not measured yet"
        return ""

    def _may_shadow(self, index: int, estimate: Estimate | None) -> bool:
        """Return whether the method may draft step *index* in the shadow of the large model."""
        auto = self.auto
        if index < self.lead or auto.large("alone") is None or auto.server_load.strained:
            return False
        if auto.shadow_run or auto.shadow_debt > 0:
            return False
        if estimate is None:
            return True
        # Otherwise the method would not be used even if all its drafts were accepted.
        return not auto.crowded and estimate.accepted < estimate.alone

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        at = round(moment.at, 6)  # as in a trace on disk, which gives the same decisions
        event = moment.event
        match event:
            case Started(policy=policy):
                if policy != "small":  # the policy "small" does not use the large model
                    self.auto.server_load.enter(self)
                if self.large_policy is None and policy not in ("small", "large"):
                    self.auto.method_runs.add(self)
                self._begin_step(at)
            case Decided():
                self._decided(at, event)
            case Called(role="large"):
                self.auto.server_load.grow(self, event.prompt + event.written)
                self._compare_pace(event)
            case Shadowed():
                self._end_shadow(at)
                self._judge(accepts(event.verdict))
                self._learn(event.drafting, event.judging, max(1, len(event.draft.tokens)))
            case Judged(index, draft, verdict) if draft.author == "small" and accepts(verdict):
                self._accepted[index] = True
            case Repaired(index):
                self._accepted[index] = False
            case Lost(index):
                self._accepted.pop(index, None)
            case Committed():
                self._committed(at, event)
            case Degraded():
                self.auto.method_runs.discard(self)
            case Finished():
                self.auto.server_load.finish(self)
                self.close()
            case _:
                pass

    def close(self) -> None:
        """The run is over: its chain takes no more room."""
        self.auto.server_load.leave(self)
        self.auto.method_runs.discard(self)
        self._end_shadow(self._step_began)

    def _begin_step(self, at: float) -> None:
        """Measure the next step from *at* on."""
        self._step_began = at
        self._step_tokens = 0
        self._step_runs = len(self.auto.method_runs)

    def _decided(self, at: float, decision: Decided) -> None:
        """Follow the *decision*. If the writer changes, a new step begins."""
        if self.decided is None or self.decided.choice != decision.choice:
            if decision.choice == "method":
                self.auto.method_runs.add(self)
            else:
                self.auto.method_runs.discard(self)
            self._begin_step(at)
            self._alone_steps = 0
        self.decided = decision
        if decision.shadow:
            self.auto.shadow_run = self
            self._shadow_began = at

    def _end_shadow(self, at: float) -> None:
        """
        If this run has a shadow draft under way, it ends *at*: its seconds become a debt.

        If requests wait at the server, at most the time of `max_ahead` + 1 steps of the large
        model is charged: the draft spent the rest in the queue. While the method is not measured,
        the time of one step of the large model is not charged.
        """
        auto = self.auto
        if auto.shadow_run is not self:
            return
        auto.shadow_run = None
        alone = auto.large("alone")
        if alone is None:
            return
        seconds = at - self._shadow_began
        if auto.server_load.waiting:
            seconds = min(seconds, (self.max_ahead + 1) * alone.seconds)
        if self.estimate() is None:
            seconds -= alone.seconds
        auto.shadow_debt = max(0.0, seconds)

    def _learn(self, draft: float, verdict: float, tokens: float) -> None:
        """Add the steps that the seconds of a *draft* and of its *verdict* stand for."""
        alone = self.auto.large("alone")
        if alone is None:
            return
        timings = self.record.timings
        accepted = accepted_seconds(draft, verdict, self.max_ahead)
        rejected = rejected_seconds(draft, verdict, tokens * alone.pace)
        timings.add("accepted", 1, accepted, tokens, self.auto.steps)
        timings.add("rejected", 1, rejected, tokens, self.auto.steps)

    def _compare_pace(self, call: Called) -> None:
        """
        Forget the large model's own steps if its repairs are much faster.

        Only a run without others compares: in a crowd, the pace depends on who uses the server.
        """
        auto = self.auto
        alone = auto.large("alone")
        if not self._uses_method or alone is None or auto.server_load.runs > 1:
            return
        if call.first is None or call.written < 2:
            return
        repairs = self.record.repairs
        repairs.add(call.seconds - call.first, call.written - 1, auto.steps)
        if CHANGED_PACE_RATIO * repairs.pace < alone.pace:
            auto.timings.means.clear()

    def _judge(self, accepted: bool) -> None:
        """
        Add a verdict to the evidence of the run, and to that of the method.

        In the method's evidence the first verdicts of a run have the most weight, and the weights
        of all runs together stay below `WINDOW_STEPS`.
        """
        self._evidence.add(accepted)
        weight = KEPT_SHARE_PER_STEP**self._verdicts
        self.record.evidence.fade(1 - weight / WINDOW_STEPS)
        self.record.evidence.add(accepted, weight)
        self._verdicts += 1

    def _committed(self, at: float, event: Committed) -> None:
        """Measure the step that ends with *event*."""
        auto = self.auto
        self._step_tokens += len(event.step.tokens)
        accepted = self._accepted.pop(event.index, None)
        if accepted is None and event.step.author == "small":
            return  # the beginning of a rejected draft: the step ends with its repair
        auto.steps += 1 / auto.server_load.runs
        self._evidence.fade(KEPT_SHARE_PER_STEP)
        seconds = at - self._step_began
        if accepted is not None:
            self._judge(accepted)
            kind: Kind = "accepted" if accepted else "rejected"
            runs = max(1, self._step_runs)
            self.record.timings.add(kind, runs, seconds, self._step_tokens, auto.steps)
        elif not self._uses_method:
            self._wrote_alone(seconds)
        self._begin_step(at)
        if estimate := self.estimate():
            load = min(estimate.method, estimate.beside) / estimate.alone
            auto.load += (load - auto.load) / auto.server_load.runs

    def _wrote_alone(self, seconds: float) -> None:
        """
        Measure a step of the large model that took *seconds*.

        The first step after a change is not measured, because it reads the chain, too.
        """
        auto = self.auto
        prior = auto.prior
        if self._alone_steps:
            kind: Kind = "beside" if self._step_runs or auto.method_runs else "alone"
            runs = auto.server_load.runs
            auto.timings.add(kind, runs, seconds, self._step_tokens, auto.steps)
            auto.shadow_debt = max(0.0, auto.shadow_debt - SHADOW_TIME_SHARE * seconds / runs)
        self._alone_steps += 1
        alone = auto.large("alone")
        if alone and prior.verdict_seconds is not None and not self.record.timings.means:
            for _ in range(MIN_STEPS):  # so that the prior alone counts as measured
                self._learn(prior.pace * alone.seconds, prior.verdict_seconds, alone.tokens)


def _outcome(decision: Decided) -> tuple[object, ...]:
    """Return what a change of the decision is about."""
    return decision.choice, decision.ahead, bool(decision.advice)
