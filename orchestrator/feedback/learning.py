"""Runs whose threshold and depth follow what the runs before them taught, and what was learnt as a settings file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..events import Adapted
from ..run_options import RunOptions
from ..toml import document
from ..trace import Moment
from .adaptation import Adaptable, Adaptation, Choice
from .calibration_monitor import Calibration

MOST = 64  # policies with options, depths and limits that a solver learns about; the oldest is dropped first

log = logging.getLogger("stepspec")


class Learning:
    """One *policy* with its *options* that are adapted as runs go by; *option* is the one that moves, if any does."""

    def __init__(self, policy: str, options: Mapping[str, Any], option: str, adaptation: Adaptation) -> None:
        self.policy, self.option, self.adaptation = policy, option, adaptation
        self._options = dict(options)
        self._warned = False

    def begin(self) -> Adapted:
        """The values for the next run, an event of its trace."""
        return self.adaptation.begin(self.option)

    def options(self, adapted: Adapted) -> dict[str, Any]:
        """The policy's options for a run with the values of *adapted*."""
        return self._options if adapted.value is None else {**self._options, self.option: adapted.value}

    def learn(self, moments: Iterable[Moment]) -> None:
        """Learn from the trace of a run that is over; say once if the limit cannot be kept."""
        self.adaptation.learn(moments)
        if self.adaptation.hopeless and not self._warned:
            self._warned = True
            log.warning(
                "no %s of %s that accepts anything keeps the share of bad steps at %g, as the judge's grades tell: "
                "nothing is going to be accepted; allow a larger share with `adapt`, or turn it off",
                self.option,
                self.policy,
                self.adaptation.limit,
            )

    def frozen(self) -> dict[str, Any]:
        """The current threshold and depth, as settings of a solver that does not adapt."""
        now = self.adaptation.standing(self.option)
        return {"policy": self.policy, "ahead": now.ahead, "options": self.options(now)}

    def toml(self) -> str:
        """Write `frozen` as a settings file that `solve`, `serve` and `eval` accept."""
        settings = {name: value for name, value in self.frozen().items() if value != {}}
        return f"# {self.summary()}\n{document(settings)}"

    def summary(self) -> str:
        """One sentence: the runs that were learnt from, the bound on bad steps, and the expected time of a step."""
        now = self.adaptation.standing(self.option)
        bad = (
            "too few grades to bound the share of bad steps" if now.bad is None else f"at most {now.bad:.1%} bad steps"
        )
        bad = bad if self.adaptation.thresholds else "only the depth is adapted"
        seconds = "" if now.seconds is None else f", {now.seconds:.3g} s expected to a committed step"
        return f"Learnt from {now.runs} {'run' if now.runs == 1 else 'runs'} of {self.policy}: {bad}{seconds}."


class Learnings:
    """
    What a solver learns, for every policy with its options, depth and limit apart.

    *defaults* are the options of runs that override none. *adaptable* returns what may be adapted of a policy with
    its options, None for nothing. *calibration* is the one in force, if any.
    """

    def __init__(
        self,
        defaults: RunOptions,
        adaptable: Callable[[str, Mapping[str, Any]], Adaptable | None],
        calibration: Calibration | None = None,
    ) -> None:
        self._defaults, self._adaptable, self._calibration = defaults, adaptable, calibration
        self._known: dict[str, Learning] = {}

    def of(self, run: RunOptions, *, limited: bool = False) -> Learning | None:
        """
        Return what earlier runs taught about the policy of *run*; None if the run does not adapt.

        A run with its own value for the option that would move, and is not *limited* on its own, keeps its value.
        """
        policy, options = run.policy, run.options
        adaptable = self._adaptable(policy, options)
        if not run.adapt or adaptable is None:
            return None
        own = self._defaults.options if policy == self._defaults.policy else {}
        threshold = adaptable.threshold
        pinned = threshold is None or (not limited and options.get(threshold.option) != own.get(threshold.option))
        key = repr((policy, sorted(options.items()), run.ahead, run.adapt, pinned))
        if key not in self._known:
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            adaptable, promised = (Adaptable(), None) if pinned else (adaptable, self._promised(policy, options))
            self._known[key] = start_learning(policy, options, run.ahead, run.adapt, adaptable, promised=promised)
        return self._known[key]

    def _promised(self, policy: str, options: Mapping[str, Any]) -> float | None:
        """The calibrated value, if the *options* have it: no looser value may be used then. Otherwise None."""
        calibration = self._calibration
        if calibration is None or calibration.policy != policy or options.get(calibration.option) != calibration.value:
            return None
        return calibration.value


def start_learning(
    policy: str,
    options: Mapping[str, Any],
    most: int,
    limit: float,
    adaptable: Adaptable,
    *,
    promised: float | None = None,
) -> Learning:
    """
    Start to adapt what is *adaptable* of *policy* with its *options*.

    At most a share *limit* of the accepted steps may be bad, and at most *most* drafts are made ahead.

    Only the depth is adapted if there is no threshold, or if it is not compared with scores: the scores then do not say
    what another threshold would accept. No threshold is looser than *promised*.
    """
    threshold = adaptable.threshold
    if threshold is None or not threshold.compared:
        return Learning(policy, options, "", Adaptation(limit, most, Choice(None, most)))
    start = float(options.get(threshold.option, adaptable.default))
    values = {float(value) for value in threshold.values} | {start}
    thresholds = sorted((v for v in values if promised is None or v >= promised), reverse=True)
    adaptation = Adaptation(limit, most, Choice(start, most), tuple(thresholds), top=float(threshold.values[0]))
    return Learning(policy, options, threshold.option, adaptation)
