"""The figures of each arm of a run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal, TypeAlias

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.ledger import COUNTED, Account

from ..arms import LARGE, PLAIN, SMALL
from ..results import ORACLE, ArmSummary, Result, compare_arms, complete, complete_numbers, oracle
from ..sample import Arm, Sample
from ..store import Place

PARTIES: tuple[Party, ...] = ("small", "large", "critic")
ArmKind: TypeAlias = Literal["bound", "small", "large", "control", "method"]


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The figures of one arm."""

    arm: Arm
    """The arm."""
    standing: ArmSummary
    """Its result, and the comparison with the baseline."""
    median: float
    """The median of the seconds of a sample."""
    tail: float
    """The 95th percentile of the seconds of a sample."""
    first: float | None
    """The median of the seconds to the first step. None: no sample has a step."""
    steps: Mapping[str, float]
    """Mean steps of a sample: "small" and "large" are kept ones, "rejected" and "lost" drafts."""
    spent: Mapping[Party, Mapping[str, float]]
    """The mean of each field of a party's `Account`. A party without requests is left out."""
    busy: Mapping[Party, float]
    """The mean of the seconds of a sample with a request of the party open."""

    @property
    def result(self) -> Result:
        return self.standing.result

    @property
    def kind(self) -> ArmKind:
        """What the arm is. A bound is the oracle, which is computed and never ran."""
        known: dict[str, ArmKind] = {
            ORACLE: "bound",
            SMALL.name: "small",
            LARGE.name: "large",
            PLAIN.name: "large",
        }
        if self.arm.name in known:
            return known[self.arm.name]
        return "control" if self.arm.like else "method"

    @property
    def bound(self) -> bool:
        return self.kind == "bound"

    @property
    def method(self) -> bool:
        return self.kind == "method"


def compute_figures(
    done: Mapping[Place, Sample],
    arms: Sequence[Arm],
    repeats: int = 1,
    baseline: str = "",
) -> list[ArmFigures]:
    """
    Compute the figures of all *arms*, and of the oracle if both models ran alone.

    Return an empty list if no problem has all samples of all arms.
    """
    by_arm = complete(done, arms, repeats)
    by_arm[ORACLE] = oracle(by_arm)
    known = {arm.name: arm for arm in (*arms, Arm.of(ORACLE, ""))}
    standings = compare_arms(done, arms, repeats, baseline)
    return [_arm_figures(known[s.result.name], s, by_arm[s.result.name]) for s in standings]


def by_time(arms: Iterable[ArmFigures]) -> list[ArmFigures]:
    """Return the arms that ran, the fastest first."""
    return sorted((f for f in arms if not f.bound), key=lambda f: f.result.ratio)


def samples_by_number(
    done: Mapping[Place, Sample],
    arms: Sequence[Arm],
    repeats: int,
) -> dict[str, dict[int, Sample]]:
    """Return the samples that the figures are computed from, by arm and number."""
    numbers = complete_numbers(done, arms, repeats)
    return {arm.name: {number: done[number, arm.name] for number in numbers} for arm in arms}


def _arm_figures(arm: Arm, standing: ArmSummary, samples: Sequence[Sample]) -> ArmFigures:
    seconds = sorted(sample.seconds for sample in samples)
    accounts: dict[Party, list[Account]] = {
        party: [getattr(sample.ledger, party) for sample in samples] for party in PARTIES
    }
    firsts = [sample.first for sample in samples if sample.first is not None]
    return ArmFigures(
        arm=arm,
        standing=standing,
        median=median(seconds),
        tail=seconds[int(0.95 * len(seconds))],
        first=median(firsts) if firsts else None,
        steps=_mean_steps(samples),
        spent={
            party: _mean_account(spent)
            for party, spent in accounts.items()
            if any(account.requests for account in spent)
        },
        busy={party: fmean(map(_busy, samples, spent)) for party, spent in accounts.items()},
    )


def _mean_account(accounts: Sequence[Account]) -> dict[str, float]:
    return {name: fmean(getattr(account, name) for account in accounts) for name in COUNTED}


def _busy(sample: Sample, spent: Account) -> float:
    """
    Return the seconds with a request open.

    Requests of one party may overlap. The seconds of the sample are an upper bound.
    """
    return min(sample.seconds, spent.writing + spent.judged)


def _mean_steps(samples: Sequence[Sample]) -> dict[str, float]:
    steps = [step for sample in samples for step in sample.steps]
    counts = Counter(step.author if step.fate == "kept" else step.fate for step in steps)
    return {kind: counts[kind] / len(samples) for kind in ("small", "large", "rejected", "lost")}
