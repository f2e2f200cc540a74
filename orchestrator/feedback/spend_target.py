"""A target for the large model's share of the tokens, which the threshold follows from run to run. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from ..errors import ConfigurationError
from ..events import Targeted
from ..ledger import Ledger
from ..run_options import RunOptions
from ..stats import Z
from .adaptation import Adaptable, Threshold
from .calibration_monitor import Calibration

WINDOW = 64  # runs that the reported share covers
LEAST = 5  # runs with the loosest threshold, before the target is called out of reach
PACE = 0.25  # of all places: how far a run moves that the large model wrote in full, with a target of 0
TOGETHER = 4  # runs under way at once that may each make a full step
MOST = 64  # policies with options and targets that are followed; the oldest is dropped first


@dataclass(frozen=True, slots=True)
class Tokens:
    """The kept tokens of a run: those of the large model, and all."""

    large: int
    total: int


@dataclass(eq=False)
class ShareControl:
    """
    Decides between runs, never during one: all drafts of a chain are judged by one threshold.

    It is integral control of the large model's share of the kept tokens, as adaptive conformal inference controls the
    share of errors (Gibbs and Candes, 2021, arXiv 2106.00170): after each run a *place* among the *thresholds*, the
    strictest first, moves towards the looser end by the *pace* times how far the run exceeded the *target*, or towards
    the stricter end by how far it fell short. Runs count by their tokens. While the place is at neither end, the errors
    add up to no more than the way between the ends, whatever the problems are: over *n* runs the share differs from the
    target by that way over *n* times the pace. The nearest threshold is used, so that runs alternate between the two
    around a target that lies between them. So the policy is as strict as the target allows, and no stricter.

    Of more than `TOGETHER` runs that are under way at once, each moves the place by so much less: they began before the
    others could teach them anything, and full steps would overshoot.

    The target is out of reach if, at the loosest threshold, the share of at least `LEAST` runs exceeds it by more than
    chance: by the 95% interval of a ratio of sums over runs.
    """

    option: str
    target: float
    thresholds: tuple[float, ...]
    place: float
    runs: int = 0
    _tokens: int = 0
    _under_way: int = 0
    _recent: deque[Tokens] = field(default_factory=lambda: deque[Tokens](maxlen=WINDOW))
    _loosest: deque[Tokens] = field(default_factory=lambda: deque[Tokens](maxlen=WINDOW))

    @property
    def value(self) -> float:
        """The threshold of the next run."""
        return self.thresholds[int(self.place + 0.5)]

    @property
    def share(self) -> float | None:
        """The large model's share of the tokens of the last runs; None before the first one."""
        return _share(self._recent) if self._recent else None

    @property
    def out_of_reach(self) -> bool:
        """Whether even the loosest threshold exceeds the target, and is in use."""
        runs = self._loosest
        if self.value != self.thresholds[-1] or len(runs) < LEAST:
            return False
        share, total = _share(runs), sum(run.total for run in runs)
        squares = sum((run.large - share * run.total) ** 2 for run in runs)
        error = sqrt(squares * len(runs) / (len(runs) - 1)) / total
        return share - Z * error > self.target

    def begin(self) -> Targeted:
        """Return what the run that begins now uses, as the event of its trace. `learn` or `forget` has to follow."""
        self._under_way += 1
        return Targeted(self.option, self.value, self.target, self.runs, self.share, self.out_of_reach)

    def forget(self) -> None:
        """A run has ended that says nothing: it failed, was cancelled, or kept no token."""
        self._under_way -= 1

    def learn(self, value: float, run: Tokens) -> None:
        """Learn from a *run* with the threshold *value*."""
        crowd, self._under_way = max(1.0, self._under_way / TOGETHER), self._under_way - 1
        self.runs, self._tokens = self.runs + 1, self._tokens + run.total
        self._recent.append(run)
        if value == self.thresholds[-1]:
            self._loosest.append(run)
        excess = (run.large - self.target * run.total) * self.runs / self._tokens
        last = len(self.thresholds) - 1
        self.place = min(float(last), max(0.0, self.place + PACE * len(self.thresholds) * excess / crowd))


def _share(runs: deque[Tokens]) -> float:
    return sum(run.large for run in runs) / sum(run.total for run in runs)


class SpendTargets:
    """
    The targets that runs follow, for every policy with its options and target apart.

    *adaptable* returns what may be adapted of a policy with its options. No threshold is looser than that of the
    *calibration* in force, if a run has its value; without one all of the policy's are allowed.
    """

    def __init__(
        self,
        adaptable: Callable[[str, Mapping[str, Any]], Adaptable | None],
        calibration: Calibration | None = None,
    ) -> None:
        self._adaptable, self._calibration = adaptable, calibration
        self._known: dict[str, ShareControl] = {}

    def check(self, run: RunOptions) -> None:
        """Raise `ConfigurationError` if *run* has a target that nothing could follow."""
        if run.max_large_share is not None:
            self._threshold(run)

    def of(self, run: RunOptions) -> ShareControl | None:
        """Return the control that *run* follows; None without a target. Raise `ConfigurationError` as `check` does."""
        target = run.max_large_share
        if target is None:
            return None
        threshold, default = self._threshold(run)
        key = repr((run.policy, sorted(run.options.items()), target))
        if key not in self._known:
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            start = float(run.options.get(threshold.option, default))
            allowed = self._allowed(run, threshold, start)
            self._known[key] = ShareControl(threshold.option, target, allowed, float(allowed.index(start)))
        return self._known[key]

    def _threshold(self, run: RunOptions) -> tuple[Threshold, float]:
        if run.adapt:
            raise ConfigurationError(
                "max_large_share and adapt both decide about the threshold: leave out one of them (adapt = 0)"
            )
        adaptable = self._adaptable(run.policy, run.options)
        if adaptable is None or adaptable.threshold is None:
            raise ConfigurationError(
                f"max_large_share: {run.policy} with these options has no threshold that could follow it: leave it "
                "out, or choose a method with a threshold, such as specreason"
            )
        return adaptable.threshold, adaptable.default

    def _allowed(self, run: RunOptions, threshold: Threshold, start: float) -> tuple[float, ...]:
        """The values that the threshold may have, the strictest first."""
        descending = threshold.values[0] > threshold.values[-1]
        values = sorted({float(value) for value in threshold.values} | {start}, reverse=descending)
        made, own = self._calibration, (run.policy, threshold.option, start)
        calibrated = made is not None and (made.policy, made.option, made.value) == own
        return tuple(values[: values.index(start) + 1] if calibrated else values)


def follow(control: ShareControl, targeted: Targeted, ledger: Ledger | None) -> None:
    """Let *control* learn from a run that began with *targeted*; *ledger* is None if it did not end by itself."""
    kept = ledger.small.kept + ledger.large.kept if ledger is not None else 0
    if ledger is None or not kept:
        control.forget()
    else:
        control.learn(targeted.value, Tokens(ledger.large.kept, kept))
