"""
Choose who writes the next steps of a run: its method, or the large model alone. No I/O.

`Auto` holds what all runs of a solver measured, `AutoRun` the evidence of one run. A run reads its
own events, and decides before each step. The same events in the same order give the same decisions.

While the large model writes a step alone, the method can draft the same step. This is a shadow
draft. It is never committed, and only measures the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

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

KEPT_SHARE_PER_VERDICT = 0.9
"""
With each verdict of a run, the weights of its older verdicts are multiplied by this.

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
MAX_SLOWDOWN = 1.03
"""
Runs use no method if this is exceeded by `Auto.slowdown`.

Smaller differences are noise, as with `MARGIN_TIME_SHARE`.
"""
MAX_ALONE_STEPS = 128
"""
A method counts as not measured after each run wrote this many steps without a new verdict.

A logged run of an easy problem has 100 steps.
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
        return (
            f"method {1000 * self.method_pace:.3g} ms a token,"
            f" large alone {1000 * self.alone_pace:.3g} ms,"
            f" {self.accept_rate:.0%} of drafts accepted"
        )


@dataclass(eq=False)
class Record:
    """What all runs of one method with its options measured."""

    evidence: Evidence = field(default_factory=Evidence)
    """The verdicts of all runs."""
    timings: Timings = field(default_factory=Timings)
    """Accepted and rejected steps, by the number of runs that used a method."""
    alone_steps: float = 0.0
    """
    Steps that each run has written alone since the last verdict on a draft of the method.

    With n runs, each such step adds 1/n.
    """
    explained: bool = False
    """Whether the log says why a run went on with the large model alone."""


def _new_record(method: str) -> Record:
    """Return an empty record, of which `lru_cache` keeps one for each *method*."""
    return Record()


@dataclass(eq=False)
class Auto:
    """What all runs of one solver measured."""

    prior: Prior = field(default_factory=Prior)
    """What was known before the first run."""
    server_load: ServerLoad = field(default_factory=ServerLoad)
    """The large model's server, and the runs that use it."""
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
    record_of: Callable[[str], Record] = field(
        default_factory=lambda: lru_cache(MAX_METHODS)(_new_record)
    )
    """Returns the record of a method with its options."""

    def large(self, kind: Kind) -> MeanStep | None:
        """Return the large model's mean step with the present number of runs. None: unknown."""
        return self.timings.mean(kind, self.server_load.runs, min_steps=1)

    def run(
        self,
        policy: str,
        options: Mapping[str, Any],
        max_ahead: int,
        large_policy: Policy | None = None,
    ) -> AutoRun:
        """
        Begin a run of the method *policy* with its *options*, at most *max_ahead* drafts ahead.

        *large_policy* is the policy of the large model alone. The run decides between this policy
        and the method. None: the run does not decide.
        """
        record = self.record_of(repr((policy, sorted(options.items()))))
        undecided = Decided(-1, "large", max_ahead)
        return AutoRun(self, record, max_ahead, undecided, large_policy)


@dataclass(eq=False)
class AutoRun:
    """One run: it reads its own events, and decides who writes its next steps."""

    auto: Auto
    """What all runs measured."""
    record: Record
    """What all runs of its method measured."""
    max_ahead: int
    """How many drafts the run makes ahead at most."""
    last_decision: Decided
    """The last decision that was read from the events. Before the first one, its index is -1."""
    large_policy: Policy | None = None
    """The policy with which the large model writes alone; None if the run does not decide."""
    _evidence: Evidence = field(default_factory=Evidence)  # the verdicts of this run
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
        return self.last_decision.ahead

    @property
    def may_hedge(self) -> bool:
        """
        Whether hedges are allowed. A hedge is a repair that starts before the verdict on its draft.

        They are allowed if no other run uses the large model, and no requests queue at its server.
        """
        server = self.auto.server_load
        return server.runs == 1 and not server.busy

    def policy(self, method: Policy) -> Policy:
        """Return the policy of the next steps: the *method*, or the large model alone."""
        if self.large_policy and self.last_decision.choice == "large":
            return self.large_policy
        return method

    def decide(self, index: int) -> Decided | None:
        """
        Decide who writes step *index*. None: this was decided before, or nothing changes.

        A decision takes effect when `read` gets it back as an event.
        """
        before = self.last_decision
        if self.large_policy is None or before.index == index:
            return None
        decision = self._choose(index)
        unchanged = replace(before, index=index, figures=decision.figures, shadow=False)
        if decision == unchanged:
            return None
        return decision

    def estimate(self) -> Estimate | None:
        """Return what to expect of the next step. None: too little is measured."""
        auto = self.auto
        timings = self.record.timings
        runs = auto.server_load.runs
        accepted_step = timings.mean("accepted", runs, MIN_STEPS)
        rejected_step = timings.mean("rejected", runs, MIN_STEPS)
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
        estimate = self.estimate()
        figures = str(estimate or "")
        objection = self._objection(estimate)
        if objection:
            # With ahead=0, a model cannot keep its request open between steps (`OPEN_REQUESTS`).
            shadow = self._may_shadow(estimate)
            return Decided(
                index, "large", ahead=1, reason=objection, figures=figures, shadow=shadow
            )
        ahead = 0 if self.auto.server_load.busy else self.max_ahead
        return Decided(index, "method", ahead, figures=figures)

    def _objection(self, estimate: Estimate | None) -> str:
        """Say why the method must not write the next step. Empty: the method may write it."""
        auto = self.auto
        server = auto.server_load
        if server.full:  # the cache would lose chains, and verdicts would read them again
            return server.advice
        if auto.prior.runs and server.runs > auto.prior.runs:
            return f"by `prior.runs`, more than {auto.prior.runs} runs at once save no time"
        if estimate is None:
            return "the method is not measured yet"
        # Leave the method only if it is clearly slower. Take it only if it is clearly faster.
        uses_method = self in auto.method_runs
        margin = MARGIN_TIME_SHARE if uses_method else -MARGIN_TIME_SHARE
        if estimate.method_pace >= (1 + margin) * estimate.beside_pace:
            return "the method is slower"
        if auto.slowdown > MAX_SLOWDOWN:
            return "the method slows other runs down"
        users = len(auto.method_runs)
        crowd = self.record.timings.means["accepted", users.bit_length()]
        if not uses_method and crowd.count < min(users, MIN_STEPS):
            return "more runs at once are not measured yet"
        return ""

    def _may_shadow(self, estimate: Estimate | None) -> bool:
        """Return whether the method may make a shadow draft of the next step."""
        auto = self.auto
        if auto.large("alone") is None or auto.server_load.strained:
            return False
        if auto.shadow_run or auto.shadow_debt > 0:
            return False
        if estimate is None:
            return True
        # Test the method only if it would win with all drafts accepted.
        return estimate.best_method_pace < estimate.alone_pace and auto.slowdown <= MAX_SLOWDOWN

    # Observe.

    def read(self, moment: Moment) -> None:
        """Learn from the next event of the run."""
        auto = self.auto
        at = moment.at
        event = moment.event
        match event:
            case Started(policy=policy):
                if policy != "small":  # the policy "small" does not use the large model
                    auto.server_load.enter(self)
                if self.large_policy is None and policy not in ("small", "large"):
                    auto.method_runs.add(self)
                self._begin_step(at)
            case Decided():
                self._follow(at, event)
            case Called(role="large"):
                auto.server_load.grow(self, event.prompt + event.written)
            case Shadowed():
                self._end_shadow(at)
                # A draft that the large model completed says nothing about the small model.
                if event.draft.author == "small":
                    self._judge(accepts(event.verdict))
                    self._add_steps(event.drafting, event.judging, max(1, len(event.draft.tokens)))
                if self.estimate() is None:
                    auto.shadow_debt = 0.0  # so that the method is measured soon
            case Judged(index, draft, verdict) if draft.author == "small" and accepts(verdict):
                self._accepted[index] = True
            case Repaired(index):
                self._accepted[index] = False
            case Lost(index):
                self._accepted.pop(index, None)
            case Committed():
                self._committed(at, event)
            case Degraded():
                auto.method_runs.discard(self)
            case Finished():
                auto.server_load.finish(self)
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
        if self.last_decision.choice != decision.choice:
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

        Its duration becomes the debt (`Auto.shadow_debt`).
        """
        auto = self.auto
        if auto.shadow_run is self:
            auto.shadow_run = None
            auto.shadow_debt = at - self._shadow_began

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
        timings.add("accepted", 1, accepted, tokens)
        timings.add("rejected", 1, rejected, tokens)

    def _judge(self, accepted: bool) -> None:
        """Add a verdict to the evidence of the run and to the evidence of the method."""
        self._evidence.add(accepted, KEPT_SHARE_PER_VERDICT)
        self.record.evidence.add(accepted, 1 - 1 / WINDOW_STEPS)
        self.record.alone_steps = 0.0

    def _committed(self, at: float, event: Committed) -> None:
        """Measure the step that ends with *event*."""
        auto = self.auto
        self._step_tokens += len(event.step.tokens)
        accepted = self._accepted.pop(event.index, None)
        if accepted is None and event.step.author == "small":
            return  # This is the beginning of a rejected draft. The step ends with its repair.
        seconds = at - self._step_began
        if accepted is not None:
            self._judge(accepted)
            kind: Kind = "accepted" if accepted else "rejected"
            runs = max(1, self._step_runs)
            self.record.timings.add(kind, runs, seconds, self._step_tokens)
        elif self not in auto.method_runs:
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
        record = self.record
        prior = auto.prior
        if self._alone_steps:
            kind: Kind = "beside" if self._step_runs else "alone"
            runs = auto.server_load.runs
            auto.timings.add(kind, runs, seconds, self._step_tokens)
            auto.shadow_debt = max(0.0, auto.shadow_debt - SHADOW_TIME_SHARE * seconds / runs)
            record.alone_steps += 1 / runs
            if record.alone_steps > MAX_ALONE_STEPS:
                record.alone_steps = 0.0
                record.timings.means.clear()
        self._alone_steps += 1
        alone = auto.large("alone")
        if alone and prior.verdict_seconds and not self.estimate():
            for _ in range(MIN_STEPS):  # with fewer steps, the method would not count as measured
                self._add_steps(prior.pace * alone.seconds, prior.verdict_seconds, alone.tokens)
