"""The figures of each arm of a run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.ledger import COUNTED, Account

from ..arms import LARGE, PLAIN, SMALL
from ..results import ORACLE, ArmSummary, Result, compare_arms, complete, oracle
from ..sample import Arm, Sample
from ..store import Place

PARTIES: tuple[Party, ...] = ("small", "large", "critic")


@dataclass(frozen=True, slots=True)
class MeanAccount:
    """The mean, over the samples of an arm, of each field of a party's `Account`."""

    kept: float
    discarded: float
    judging: float
    prompt: float
    cached: float
    requests: float
    failed: float
    writing: float
    judged: float

    @property
    def hits(self) -> float | None:
        """The share of the prompt tokens that were in the server's prefix cache."""
        return self.cached / self.prompt if self.prompt else None


@dataclass(frozen=True, slots=True)
class MeanSteps:
    """
    Mean steps of a sample: kept steps by author, drafts rejected by a verdict, bets lost with a
    rejected draft.
    """

    small: float
    large: float
    rejected: float
    lost: float

    @property
    def share_small(self) -> float | None:
        """The share of the kept steps that the small model wrote."""
        kept = self.small + self.large
        return self.small / kept if kept else None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """
    The figures of one arm. *median* and *tail* (95th percentile) are of the seconds of a sample.

    *first* is the median of the seconds to the first step; None if no sample has it. *rejections*
    counts rejected drafts by reason, over all samples. *busy* is the mean of the seconds of a
    sample with a request of the party open.
    """

    arm: Arm
    standing: ArmSummary
    median: float
    tail: float
    first: float | None
    steps: MeanSteps
    spent: Mapping[Party, MeanAccount]
    busy: Mapping[Party, float]
    rejections: Mapping[str, int]

    @property
    def result(self) -> Result:
        return self.standing.result

    @property
    def bound(self) -> bool:
        """
        Whether this is the oracle, which is computed from the samples of both models alone and
        never ran.
        """
        return self.arm.name == ORACLE

    @property
    def alone(self) -> bool:
        """Whether one model does everything."""
        return self.arm.name in (PLAIN.name, LARGE.name, SMALL.name)

    @property
    def method(self) -> bool:
        """Whether this is a method: neither a model alone nor a control nor a bound."""
        return not (self.bound or self.alone or self.arm.like)


def compute_figures(
    done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int = 1, baseline: str = ""
) -> list[ArmFigures]:
    """
    Compute the figures of all *arms*, and of the oracle if both models ran alone.

    Return an empty list if no problem has all samples of all arms.
    """
    by_arm = complete(done, arms, repeats)
    if bound := oracle(by_arm):
        by_arm[ORACLE] = bound
    known = {arm.name: arm for arm in (*arms, Arm.of(ORACLE, ""))}
    standings = compare_arms(done, arms, repeats, baseline)
    return [_arm_figures(known[s.result.name], s, by_arm[s.result.name]) for s in standings]


def by_time(arms: Iterable[ArmFigures]) -> list[ArmFigures]:
    """Return the arms that ran, the fastest first."""
    return sorted((f for f in arms if not f.bound), key=lambda f: f.result.ratio)


def samples_by_number(
    done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int
) -> dict[str, dict[int, Sample]]:
    """Return the samples that the figures are computed from, by arm and number."""
    numbers = {id(sample): number for (number, _), sample in done.items()}
    by_arm = complete(done, arms, repeats)
    return {
        name: {numbers[id(sample)]: sample for sample in samples}
        for name, samples in by_arm.items()
    }


def _arm_figures(arm: Arm, standing: ArmSummary, samples: Sequence[Sample]) -> ArmFigures:
    seconds = sorted(sample.seconds for sample in samples)
    accounts: dict[Party, list[Account]] = {
        party: [getattr(s.ledger, party) for s in samples] for party in PARTIES
    }
    firsts = [sample.first for sample in samples if sample.first is not None]
    return ArmFigures(
        arm=arm,
        standing=standing,
        median=median(seconds),
        tail=seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        first=median(firsts) if firsts else None,
        steps=_mean_steps(samples),
        spent={
            party: _mean_account(each)
            for party, each in accounts.items()
            if any(a.requests for a in each)
        },
        busy={party: fmean(map(_busy, samples, each)) for party, each in accounts.items()},
        # A rejected bet on a rejected draft is never repaired.
        rejections=dict(
            Counter(step.reason for sample in samples for step in sample.steps if step.repair)
        ),
    )


def _mean_account(accounts: Sequence[Account]) -> MeanAccount:
    return MeanAccount(
        **{name: fmean(getattr(account, name) for account in accounts) for name in COUNTED}
    )


def _busy(sample: Sample, spent: Account) -> float:
    """
    Seconds with a request open, at most the seconds of the sample: requests of one party may
    overlap.
    """
    return min(sample.seconds, spent.writing + spent.judged)


def _mean_steps(samples: Sequence[Sample]) -> MeanSteps:
    def mean(fate: str, author: str | None = None) -> float:
        return fmean(
            sum(step.fate == fate and author in (None, step.author) for step in one.steps)
            for one in samples
        )

    return MeanSteps(mean("kept", "small"), mean("kept", "large"), mean("rejected"), mean("lost"))
