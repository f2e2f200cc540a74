"""What the servers counted while a run went on: prefix caches, and speculation token by token. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.ledger import COUNTED, Account

from ..experiments.arms import LARGE, SMALL
from ..results import ORACLE, ArmSummary, complete, oracle, stand
from ..sample import Arm, Sample, Written
from ..store import Place

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
DRAFTS, DRAFTED, ACCEPTED = (
    f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers of one role counted in *sessions* sessions of a run, all arms and warm-ups together."""

    role: str
    sessions: int
    queried: int
    hit: int
    speculation: Acceptance | None

    @property
    def hits(self) -> float | None:
        return self.hit / self.queried if self.queried else None


def counted(sessions: Iterable[Mapping[str, Any]]) -> list[Counted]:
    """Add up what was counted in each session. One that was killed did not look at the end, and counts for nothing."""
    found: dict[str, list[dict[str, float]]] = {}
    for session in sessions:
        afters: list[Mapping[str, float]] = session.get("counters") or []
        for server, after in zip(session["servers"], afters, strict=False):
            grown: dict[str, float] = {name: after[name] - server["counters"].get(name, 0.0) for name in after}
            if grown and min(grown.values()) >= 0:  # else the server began anew, and its counters with it
                found.setdefault(server["role"], []).append(grown)
    return [_counted(role, each) for role, each in found.items()]


def _counted(role: str, sessions: list[dict[str, float]]) -> Counted:
    def total(name: str) -> int:
        return int(sum(session.get(name, 0.0) for session in sessions))

    drafted = Acceptance(total(DRAFTS), total(DRAFTED), total(ACCEPTED))
    return Counted(role, len(sessions), total(QUERIES), total(HITS), drafted if drafted.drafted else None)


PARTIES: tuple[Party, ...] = ("small", "large", "critic")


@dataclass(frozen=True, slots=True)
class Spent:
    """What one party spent on a sample, in the mean; the fields are those of `Account`."""

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
        """The share of the prompt tokens that the server found in its prefix cache."""
        return self.cached / self.prompt if self.prompt else None


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a sample, in the mean: kept by author, rejected by a verdict, lost as bets on a rejected one."""

    small: float
    large: float
    rejected: float
    lost: float

    @property
    def share_small(self) -> float | None:
        """The small model's share of the steps that were kept."""
        kept = self.small + self.large
        return self.small / kept if kept else None


@dataclass(frozen=True, slots=True)
class Figures:
    """
    One arm. *first* is the median of the seconds to the first step, *tail* the 95th percentile of all.

    *accept_rate* counts drafts that were judged; None for methods that judge none. *rejections* are rejected drafts by
    reason, of all samples, and *busy* the seconds that each party was at work for a sample: never more than it took.
    """

    arm: Arm
    standing: ArmSummary
    median: float
    tail: float
    first: float | None
    steps: Steps
    spent: Mapping[Party, Spent]
    busy: Mapping[Party, float]
    accept_rate: float | None
    rejections: Mapping[str, int]
    degraded: int

    @property
    def bound(self) -> bool:
        """Whether this is the oracle, which is worked out and never ran."""
        return self.arm.name == ORACLE

    @property
    def baseline(self) -> bool:
        return self.arm.name in (LARGE.name, SMALL.name)

    @property
    def method(self) -> bool:
        """Whether this is a method, and no baseline, control or bound."""
        return not (self.bound or self.baseline or self.arm.like)

    @property
    def kept(self) -> float:
        return sum(spent.kept for spent in self.spent.values())


def figures(done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int = 1) -> list[Figures]:
    """Work out the figures of all *arms*, and of the oracle where both models ran alone; none without a problem."""
    by_arm = complete(done, arms, repeats)
    if SMALL.name in by_arm:
        by_arm[ORACLE] = oracle(by_arm[SMALL.name], by_arm[LARGE.name])
    known = {arm.name: arm for arm in (*arms, Arm(ORACLE, ""))}
    standings = stand(done, arms, repeats)
    return [_figures(known[s.result.name], s, by_arm[s.result.name]) for s in standings]


def numbered(done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int) -> dict[str, dict[int, Sample]]:
    """The samples that figures are made of, by arm and number."""
    numbers = {id(sample): number for (number, _), sample in done.items()}
    by_arm = complete(done, arms, repeats)
    return {name: {numbers[id(sample)]: sample for sample in samples} for name, samples in by_arm.items()}


def _figures(arm: Arm, standing: ArmSummary, samples: Sequence[Sample]) -> Figures:
    seconds = sorted(sample.seconds for sample in samples)
    firsts = [sample.first for sample in samples if sample.first is not None]
    return Figures(
        arm=arm,
        standing=standing,
        median=median(seconds),
        tail=seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        first=median(firsts) if firsts else None,
        steps=_steps(samples),
        spent={party: _spent(party, samples) for party in PARTIES if _called(party, samples)},
        busy={party: fmean(_busy(party, sample) for sample in samples) for party in PARTIES},
        accept_rate=_accept_rate(samples),
        rejections=_rejections(samples),
        degraded=sum(sample.degraded for sample in samples),
    )


def account(party: Party, sample: Sample) -> Account:
    accounts: Mapping[Party, Account] = {
        "small": sample.ledger.small,
        "large": sample.ledger.large,
        "critic": sample.ledger.critic,
    }
    return accounts[party]


def _called(party: Party, samples: Sequence[Sample]) -> bool:
    return any(account(party, sample).requests for sample in samples)


def _spent(party: Party, samples: Sequence[Sample]) -> Spent:
    return Spent(**{name: fmean(getattr(account(party, sample), name) for sample in samples) for name in COUNTED})


def _busy(party: Party, sample: Sample) -> float:
    """Seconds with a request open; requests of one party overlap, hence at most what the sample took."""
    spent = account(party, sample)
    return min(sample.seconds, spent.writing + spent.judged)


def _steps(samples: Sequence[Sample]) -> Steps:
    def mean(fate: str, author: str | None = None) -> float:
        return fmean(
            sum(step.fate == fate and author in (None, step.author) for step in sample.steps) for sample in samples
        )

    return Steps(mean("kept", "small"), mean("kept", "large"), mean("rejected"), mean("lost"))


def _accept_rate(samples: Sequence[Sample]) -> float | None:
    """Accepted over judged drafts; where nothing was ever read to judge, nor rejected, nobody judged."""
    judging = any(account(party, sample).judging for sample in samples for party in PARTIES)
    drafts = sum(sample.ledger.drafts for sample in samples)
    if not drafts or not (judging or _rejections(samples)):
        return None
    return sum(sample.ledger.accepted for sample in samples) / drafts


def _rejections(samples: Sequence[Sample]) -> dict[str, int]:
    """Repairs by the reason of the rollback; a rejected bet on a step that fell itself was never repaired."""
    found: dict[str, int] = {}
    for step in (step for sample in samples for step in sample.steps if repairs(step)):
        found[step.reason] = found.get(step.reason, 0) + 1
    return found


def repairs(step: Written) -> bool:
    return step.fate == "kept" and bool(step.reason)
