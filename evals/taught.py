"""What the arms that adapt are taught: it comes from what is on disk, and not from a solver that may be gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from stepspec.learning import Learning, Learnings
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Adapted
from stepspec.orchestrator.feedback.run_stats import RunStats
from stepspec.settings import Settings

from .sample import FAILED, Arm, Sample
from .store import Place

log = logging.getLogger("stepspec")


class Taught:
    """
    The *arms* that adapt, each taught by its own runs alone, in the order of the problems.

    A run begins with what all taught that come *behind* or more places before it, and with nothing of those in between:
    they may go on at the same time, and which of them ends first is chance. What is *done* already is learnt again in
    the same order, so that whoever goes on from there gives every run what it would have been given anyway. Raise
    `ConfigurationError` if a sample that is done does not tell what its run taught.

    *settings* are those of the solver that an arm is run by.
    """

    def __init__(
        self,
        arms: Iterable[Arm],
        settings: Callable[[Arm], Settings],
        done: Mapping[Place, Sample],
        *,
        behind: int = 1,
    ) -> None:
        adapting = [arm for arm in arms if arm.adapt]
        found = {arm.name: _learning(arm, settings(arm)) for arm in adapting}
        self._pupils = {name: _Pupil(name, known, behind) for name, known in found.items() if known is not None}
        for (number, name), sample in done.items():
            if name in self._pupils and sample.lesson is None and sample.finish != FAILED:
                raise ConfigurationError(
                    f"problem {number} was solved as {name!r} by a version that did not keep what a run teaches: "
                    "begin anew with --fresh, or choose another place with --output"
                )
            self.learn(number, sample)

    def ready(self, place: Place) -> bool:
        """Whether all that teaches the run at *place* is known."""
        number, name = place
        return name not in self._pupils or number < len(self._pupils[name].given)

    def given(self, place: Place) -> Adapted | None:
        """What the run at *place* begins with, once it is `ready`; None if its arm does not adapt."""
        number, name = place
        return self._pupils[name].given[number] if name in self._pupils else None

    def learn(self, number: int, sample: Sample) -> None:
        """Note what the run with this *number* taught its arm."""
        if sample.arm in self._pupils:
            self._pupils[sample.arm].learn(number, sample.lesson)


def _learning(arm: Arm, settings: Settings) -> Learning | None:
    told = settings.told({"policy": arm.policy, "options": arm.options, "ahead": arm.ahead, "adapt": arm.adapt})
    return Learnings(settings).of(told, limited=True)


class _Pupil:
    """One arm: what each of its runs is *given*, as far as that is known."""

    def __init__(self, name: str, learning: Learning, behind: int) -> None:
        self._name, self._learning = name, learning
        self._early: dict[int, RunStats | None] = {}  # lessons whose turn has not come
        self._learnt = 0
        self._warned = False
        self.given = [learning.begin()] * behind

    def learn(self, number: int, lesson: RunStats | None) -> None:
        self._early[number] = lesson
        while self._learnt in self._early:
            self._take(self._early.pop(self._learnt))
            self._learnt += 1
            self.given.append(self._learning.begin())

    def _take(self, lesson: RunStats | None) -> None:
        if lesson is None:  # The problem was too long to begin.
            return
        adaptation = self._learning.adaptation
        adaptation.add(lesson)
        if adaptation.hopeless and not self._warned:
            self._warned = True
            log.warning(
                "%s: nothing that accepts anything keeps the share of bad steps at %g, as the judge's grades tell, so "
                "that nothing is going to be accepted; allow a larger share with `adapt`",
                self._name,
                adaptation.limit,
            )
