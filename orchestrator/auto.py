"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
own events, and decides before each step. The same events in the same order give the same decisions.

While the large model writes a step alone, the method can draft the same step. This is a shadow
draft. It is never committed, and only measures the method.
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

With 0.9, about the last ten verdicts count. In the logged runs, rejections come in bursts of 2 to 7
steps.
"""
MARGIN_TIME_SHARE = 0.03
"""
A change of the writer has to save at least this share of a step's time.

Smaller differences are noise. Two measurements of the same step differ by about 3%.
"""
SHADOW_TIME_SHARE = 0.15
"""
The share of the large model's time that shadow drafts may take.

If both models share a GPU, a shadow draft of 1 s delays the large model by 0.3 to 0.5 s.
"""
CHANGED_PACE_RATIO = 2.0
"""
If repairs are this many times as fast as the steps of the large model alone, forget these steps.

In a simulation, the large model suddenly became ten times as fast. With this ratio, runs took at
most 1.1 times as long as if the better writer had been chosen at once.
"""
MAX_METHODS = 64
"""How many methods are remembered. A method with other options counts as another method."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run expects of its next step. A pace is in seconds per token."""

    accept_rate: float
    """The share of accepted drafts."""
    method_pace: float
    """The pace of the method, if every run used it."""
    best_method_pace: float
    """The pace of the method, if every run used it and every draft was accepted."""
    beside_pace: float
    """The pace if the large model writes this run, and the other runs go on as now."""
    alone_pace: float
    """The pace of the large model alone, if no run used a method."""

    def __str__(self) -> str:
        method_ms = 1000 * self.method_pace
        alone_ms = 1000 * self.alone_pace
        return (
            f"method {method_ms:.3g} ms a token, large alone {alone_ms:.3g} ms,"
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
    """The mean of the large model's latest repairs. Each is measured from its first token on."""
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
    """
    A clock in steps. With n runs, each committed step adds 1/n.

    Old measurements are forgotten by this clock.
    """
    timings: Timings = field(default_factory=Timings)
    """Steps of the large model, by the number of all runs."""
    method_runs: set[AutoRun] = field(default_factory=set["AutoRun"])
    """The runs that use a method now."""
    slowdown: float = 1.0
    """
    How much longer a step takes than if no run used a method, as a mean over all runs.

    For one run it is the pace of its better choice, min(method_pace, beside_pace), divided by
    alone_pace (`Estimate`).
    Above 1, the runs that use a method cost the other runs more than they gain.
    """
    shadow_run: AutoRun | None = None
    """The run that has a shadow draft under way. None: there is no shadow draft."""
    shadow_debt: float = 0.0
    """
    Seconds of the last shadow draft that are not paid back.

    Each step of the large model alone pays back `SHADOW_TIME_SHARE` of its seconds.
    """
    # By the method with its options. The method that was used last is at the end.
    _records: dict[str, Record] = field(default_factory=dict[str, Record])

    @property
    def crowded(self) -> bool:
        """Whether the runs that use a method slow the others down by more than they gain."""
        limit = 1.0
        if self.method_runs:
            limit += MARGIN_TIME_SHARE
        return self.slowdown > limit

    def large(self, kind: Literal["alone", "beside"]) -> MeanStep | None:
        """Return the large model's mean step with the present number of runs. None: unknown."""
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

        The large model drafts the first *lead* steps. *large_policy* is the policy of the large
        model alone. The run decides between this policy and the method. None: the run does not
        decide.
        """
        key = repr((policy, sorted(options.items())))
        record = self._records.pop(key, None) or Record()
        self._records[key] = record  # at the end; the first record is the one to forget
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
    """How many drafts the run makes ahead at most."""
    large_policy: Policy | None = None
    """The policy with which the large model writes alone; None if the run does not decide."""
    lead: int = 0
    """The number of first steps that the large model drafts."""
    last_decision: Decided | None = None
    """The last decision that was read from the events. None: there was none."""
    _evidence: Evidence = field(default_factory=Evidence)  # the verdicts of this run
    _verdicts: int = 0  # the number of these verdicts
    _accepted: dict[int, bool] = field(default_factory=dict[int, bool])  # by the step's index
    _step_began: float = 0.0  # when the last step was committed, or the writer changed
    _step_tokens: int = 0  # tokens that were committed since the step began
    _step_runs: int = 0  # runs that used a method when the step began
    _alone_steps: int = 0  # steps that the large model has written alone without a break
    _shadow_began: float = 0.0  # when the last shadow draft began

    # Decide.

    @property
    def ahead(self) -> int:
        """How many drafts may be made ahead now."""
        return self.max_ahead if self.last_decision is None else self.last_decision.ahead

    @property
    def may_hedge(self) -> bool:
        """
        Whether hedges are allowed. A hedge is a repair that starts before the verdict on its draft.

        They are allowed if no other run uses the large model, and no requests queue at its server.
        """
        server = self.auto.server_load
        return server.runs == 1 and not server.busy

    @property
    def _uses_method(self) -> bool:
        return self in self.auto.method_runs

    def policy(self, method: Policy) -> Policy:
        """Return the policy of the next steps: the *method*, or the large model alone."""
        decision = self.last_decision
        if self.large_policy is None or decision is None or decision.choice == "method":
            return method
        return self.large_policy

    def decide(self, index: int) -> Decided | None:
        """
        Decide who writes step *index*. None: this was decided before, or nothing changes.

        A decision takes effect when `read` gets it back as an event.
        """
        before = self.last_decision
        if self.large_policy is None or (before is not None and before.index == index):
            return None
        decision = self._choose(index)
        if before is None or decision.shadow or _reported(before) != _reported(decision):
            return decision
        return None

    def estimate(self) -> Estimate | None:
        """Return what to expect of the next step. None: too little is measured."""
        auto = self.auto
        timings = self.record.timings
        runs = timings.measured_runs(auto.server_load.runs, auto.steps)
        accepted_step = timings.mean("accepted", runs)
        rejected_step = timings.mean("rejected", runs)
        alone_step = auto.large("alone")
        if accepted_step is None or rejected_step is None or alone_step is None:
            return None
        beside_step = auto.large("beside") or alone_step
        # The method's rate starts at the prior's rate. The run's rate starts at the method's rate.
        method_rate = self.record.evidence.rate(auto.prior.accept_rate)
        rate = self._evidence.rate(method_rate)
        method_step = MeanStep(
            seconds=rate * accepted_step.seconds + (1 - rate) * rejected_step.seconds,
            tokens=rate * accepted_step.tokens + (1 - rate) * rejected_step.tokens,
        )
        return Estimate(
            accept_rate=rate,
            method_pace=method_step.pace,
            best_method_pace=accepted_step.pace,
            beside_pace=beside_step.pace,
            alone_pace=alone_step.pace,
        )

    def _choose(self, index: int) -> Decided:
        """Return the decision about step *index*, even if the decision changes nothing."""
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
        advice = server.advice
        if estimate and not advice:
            advice = f"{reason}: run `stepspec tune`"
        return replace(
            decision,
            choice="large",
            ahead=1,  # with 0, a model cannot keep its request open between steps (`OPEN_REQUESTS`)
            reason=reason,
            advice=advice,
            shadow=self._may_shadow(index, estimate),
        )

    def _objection(self, estimate: Estimate | None) -> str:
        """Say why the method must not write the next step. Empty: the method may write it."""
        auto = self.auto
        server = auto.server_load
        if server.full:  # the cache would lose chains, and verdicts would read them again
            return "the chains of all runs fill the large model's cache"
        if auto.prior.runs is not None and server.runs > auto.prior.runs:
            return f"by `prior.runs`, more than {auto.prior.runs} runs at once save no time"
        if estimate is None:
            return "the method is not measured yet"
        # Leave the method only if it is clearly slower. Take it only if it is clearly faster.
        margin = MARGIN_TIME_SHARE if self._uses_method else -MARGIN_TIME_SHARE
        if estimate.method_pace >= (1 + margin) * estimate.beside_pace:
            return "the method is slower"
        if auto.crowded:
            return "the method slows other runs down"
        users = len(auto.method_runs)
        measured = self.record.timings.measured_runs(server.runs, auto.steps)
        # If n runs at once are measured, this run may join up to 2n runs that use a method.
        if not self._uses_method and users > 2 * measured:
            return f"more than {users} runs at once are not measured yet"
        return ""

    def _may_shadow(self, index: int, estimate: Estimate | None) -> bool:
        """Return whether the method may make a shadow draft of step *index*."""
        auto = self.auto
        if index < self.lead or auto.large("alone") is None or auto.server_load.strained:
            return False
        if auto.shadow_run or auto.shadow_debt > 0:
            return False
        if estimate is None:
            return True
        # Test the method only if it would win with all drafts accepted.
        return not auto.crowded and estimate.best_method_pace < estimate.alone_pace

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        # A trace on disk has rounded times. With the same rounding, a replay decides the same.
        at = round(moment.at, 6)
        event = moment.event
        match event:
            case Started(policy=policy):
                if policy != "small":  # the policy "small" does not use the large model
                    self.auto.server_load.enter(self)
                if self.large_policy is None and policy not in ("small", "large"):
                    self.auto.method_runs.add(self)
                self._begin_step(at)
            case Decided():
                self._follow(at, event)
            case Called(role="large"):
                self.auto.server_load.grow(self, event.prompt + event.written)
                self._compare_pace(event)
            case Shadowed():
                self._end_shadow(at)
                # A draft that the large model completed says nothing about the small model.
                if event.draft.author == "small":
                    self._judge(accepts(event.verdict))
                    self._add_steps(event.drafting, event.judging, max(1, len(event.draft.tokens)))
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
        """Forget the run, because it is over."""
        self.auto.server_load.leave(self)
        self.auto.method_runs.discard(self)
        self._end_shadow(self._step_began)

    def _begin_step(self, at: float) -> None:
        """Measure the next step from *at* on."""
        self._step_began = at
        self._step_tokens = 0
        self._step_runs = len(self.auto.method_runs)

    def _follow(self, at: float, decision: Decided) -> None:
        """Follow the *decision*. If the writer changes, a new step begins."""
        if self.last_decision is None or self.last_decision.choice != decision.choice:
            if decision.choice == "method":
                self.auto.method_runs.add(self)
            else:
                self.auto.method_runs.discard(self)
            self._begin_step(at)
            self._alone_steps = 0
        self.last_decision = decision
        if decision.shadow:
            self.auto.shadow_run = self
            self._shadow_began = at

    def _end_shadow(self, at: float) -> None:
        """
        End the shadow draft of this run, if it has one, at the time *at*.

        Its duration becomes the debt (`Auto.shadow_debt`). If requests wait at the server, the
        draft spent most of its time in the queue. Then the debt is at most the time of
        `max_ahead` + 1 steps of the large model. Until the method is measured, the time of one step
        is not added to the debt, so that the method is measured soon.
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

    def _add_steps(self, draft: float, verdict: float, tokens: float) -> None:
        """
        Compute what an accepted and a rejected step would take, and add both to the timings.

        *draft* is the seconds of the draft, which has *tokens* tokens. *verdict* is the seconds of
        its verdict.
        """
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

        Only a single run compares. With several runs, the pace depends on what the others do.
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
        Add a verdict to the evidence of the run and to the evidence of the method.

        In the method's evidence the first verdicts of a run have the most weight. The weights of
        all runs together stay at most `WINDOW_STEPS`.
        """
        self._evidence.add(accepted)
        weight = KEPT_SHARE_PER_STEP**self._verdicts
        # If the sum of all weights is WINDOW_STEPS, `fade` takes *weight* away, and less from a
        # smaller sum. `add` adds *weight*. So the sum never exceeds WINDOW_STEPS.
        self.record.evidence.fade(1 - weight / WINDOW_STEPS)
        self.record.evidence.add(accepted, weight)
        self._verdicts += 1

    def _committed(self, at: float, event: Committed) -> None:
        """Measure the step that ends with *event*."""
        auto = self.auto
        self._step_tokens += len(event.step.tokens)
        accepted = self._accepted.pop(event.index, None)
        if accepted is None and event.step.author == "small":
            return  # This is the beginning of a rejected draft. The step ends with its repair.
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
            slowdown = min(estimate.method_pace, estimate.beside_pace) / estimate.alone_pace
            # This is a running mean. With n runs, each run has 1/n of the weight.
            auto.slowdown += (slowdown - auto.slowdown) / auto.server_load.runs

    def _wrote_alone(self, seconds: float) -> None:
        """
        Measure a step of the large model that took *seconds*.

        The first step after a change of the writer is not measured, because its request also reads
        the whole chain. If no step of the method is measured yet, add the steps that the prior
        expects.
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
            for _ in range(MIN_STEPS):  # with fewer steps, the method would not count as measured
                self._add_steps(prior.pace * alone.seconds, prior.verdict_seconds, alone.tokens)


def _reported(decision: Decided) -> tuple[object, ...]:
    """Return the fields of the decision whose change has to be reported."""
    return decision.choice, decision.ahead, bool(decision.advice)
