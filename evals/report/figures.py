"""
The figures of each arm of a run, and what its servers counted: prefix caches, token-level speculation. Pure.

`assess_judge` tells how far the scores of a judge separate right from wrong, by the ROC curves of its verdicts. Whether
a step is right is not known: the correctness of the answer stands for that of its steps.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Any, TypeAlias

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.ledger import COUNTED, Account
from stepspec.orchestrator.stats import Acceptance

from ..arms import LARGE, PLAIN, SMALL
from ..results import ORACLE, ArmSummary, Interval, compare_arms, complete, oracle, wilson
from ..sample import Arm, Sample, StepRecord
from ..store import Place

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
DRAFTS, DRAFTED, ACCEPTED = (
    f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")
)


@dataclass(frozen=True, slots=True)
class ServerCounters:
    """
    Counters of the servers of one role in *sessions* sessions of a run, all arms and warm-ups together.

    *queried* prompt tokens were looked up in the prefix cache, *hit* of them were in it. *speculation* is None for
    servers that do not speculate.
    """

    role: str
    sessions: int
    queried: int
    hit: int
    speculation: Acceptance | None

    @property
    def hits(self) -> float | None:
        return self.hit / self.queried if self.queried else None


def server_counters(sessions: Iterable[Mapping[str, Any]]) -> list[ServerCounters]:
    """Add up the counters of all sessions, by role. A session that was killed has no final counters and is left out."""
    increases: dict[str, list[dict[str, float]]] = {}
    for session in sessions:
        afters: list[Mapping[str, float]] = session.get("counters") or []
        for server, after in zip(session["servers"], afters, strict=False):
            increase: dict[str, float] = {name: after[name] - server["counters"].get(name, 0.0) for name in after}
            if increase and min(increase.values()) >= 0:  # otherwise the server was restarted, which resets them
                increases.setdefault(server["role"], []).append(increase)
    return [_add_up(role, sessions) for role, sessions in increases.items()]


def _add_up(role: str, sessions: list[dict[str, float]]) -> ServerCounters:
    def total(name: str) -> int:
        return int(sum(session.get(name, 0.0) for session in sessions))

    speculation = Acceptance(total(DRAFTS), total(DRAFTED), total(ACCEPTED))
    return ServerCounters(
        role, len(sessions), total(QUERIES), total(HITS), speculation if speculation.drafted else None
    )


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
    """Mean steps of a sample: kept steps by author, drafts rejected by a verdict, bets lost with a rejected draft."""

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

    *first* is the median of the seconds to the first step; None if no sample has it. *accept_rate* is the share of the
    judged drafts that were accepted; None for methods that judge none. *rejections* counts rejected drafts by reason,
    over all samples. *busy* is the mean of the seconds of a sample with a request of the party open.
    """

    arm: Arm
    standing: ArmSummary
    median: float
    tail: float
    first: float | None
    steps: MeanSteps
    spent: Mapping[Party, MeanAccount]
    busy: Mapping[Party, float]
    accept_rate: float | None
    rejections: Mapping[str, int]
    degraded: int

    @property
    def bound(self) -> bool:
        """Whether this is the oracle, which is computed from the samples of both models alone and never ran."""
        return self.arm.name == ORACLE

    @property
    def alone(self) -> bool:
        """Whether one model does everything."""
        return self.arm.name in (PLAIN.name, LARGE.name, SMALL.name)

    @property
    def method(self) -> bool:
        """Whether this is a method: neither a model alone nor a control nor a bound."""
        return not (self.bound or self.alone or self.arm.like)

    @property
    def kept(self) -> float:
        """Mean kept tokens of a sample, of all parties."""
        return sum(account.kept for account in self.spent.values())


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
    return sorted((f for f in arms if not f.bound), key=lambda f: f.standing.result.ratio)


def samples_by_number(done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int) -> dict[str, dict[int, Sample]]:
    """Return the samples that the figures are computed from, by arm and number."""
    numbers = {id(sample): number for (number, _), sample in done.items()}
    by_arm = complete(done, arms, repeats)
    return {name: {numbers[id(sample)]: sample for sample in samples} for name, samples in by_arm.items()}


def _arm_figures(arm: Arm, standing: ArmSummary, samples: Sequence[Sample]) -> ArmFigures:
    seconds = sorted(sample.seconds for sample in samples)
    firsts = [sample.first for sample in samples if sample.first is not None]
    return ArmFigures(
        arm=arm,
        standing=standing,
        median=median(seconds),
        tail=seconds[min(len(seconds) - 1, int(0.95 * len(seconds)))],
        first=median(firsts) if firsts else None,
        steps=_mean_steps(samples),
        spent={party: _mean_account(party, samples) for party in PARTIES if _has_requests(party, samples)},
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


def _has_requests(party: Party, samples: Sequence[Sample]) -> bool:
    return any(account(party, sample).requests for sample in samples)


def _mean_account(party: Party, samples: Sequence[Sample]) -> MeanAccount:
    return MeanAccount(**{name: fmean(getattr(account(party, s), name) for s in samples) for name in COUNTED})


def _busy(party: Party, sample: Sample) -> float:
    """Seconds with a request open, at most the seconds of the sample: requests of one party may overlap."""
    spent = account(party, sample)
    return min(sample.seconds, spent.writing + spent.judged)


def _mean_steps(samples: Sequence[Sample]) -> MeanSteps:
    def mean(fate: str, author: str | None = None) -> float:
        return fmean(
            sum(step.fate == fate and author in (None, step.author) for step in sample.steps) for sample in samples
        )

    return MeanSteps(mean("kept", "small"), mean("kept", "large"), mean("rejected"), mean("lost"))


def _accept_rate(samples: Sequence[Sample]) -> float | None:
    """Accepted over judged drafts; None if the arm judges none: no tokens read to judge and no rejections."""
    judging = any(account(party, sample).judging for sample in samples for party in PARTIES)
    drafts = sum(sample.ledger.drafts for sample in samples)
    if not drafts or not (judging or _rejections(samples)):
        return None
    return sum(sample.ledger.accepted for sample in samples) / drafts


def _rejections(samples: Sequence[Sample]) -> dict[str, int]:
    """Count the repairs by the reason of the rollback. A rejected bet on a rejected draft is never repaired."""
    counts: dict[str, int] = {}
    for step in (step for sample in samples for step in sample.steps if is_repair(step)):
        counts[step.reason] = counts.get(step.reason, 0) + 1
    return counts


def is_repair(step: StepRecord) -> bool:
    """Whether *step* replaces the rejected part of a draft."""
    return step.fate == "kept" and bool(step.reason)


DOUBT_POLICIES = frozenset({"bild", "glimpse", "reading"})  # their scores measure doubt: lower is better
RESAMPLES = 200
UNSCORED_REASONS = frozenset({"fallback", "words", "mean"})  # rollbacks that their score did not decide
MIN_EACH = 3  # right and wrong verdicts that a separation needs at least

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScoredVerdict:
    """
    The *score* of a draft or an answer, and whether it was *accepted*.

    *right* is whether the answer is; None for a draft. *problem* is the number of the problem. *decided* is whether the
    verdict depended on the score: a draft may be rejected for another reason.
    """

    score: float
    accepted: bool
    right: bool | None = None
    problem: int = 0
    decided: bool = True


@dataclass(frozen=True, slots=True)
class Separation:
    """
    How far scores separate *right* from *wrong* verdicts, whose numbers these are.

    *area* is the AUROC, its interval a bootstrap over the problems. Each point of *curve* is (share of the wrong ones
    accepted, share of the right ones accepted) at a threshold, from strict to loose.
    """

    right: int
    wrong: int
    area: Interval
    curve: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """The scored verdicts of one arm, and their separation; None if too few are known to be right or wrong."""

    arm: str
    policy: str
    verdicts: tuple[ScoredVerdict, ...]
    separation: Separation | None

    @property
    def doubt(self) -> bool:
        """Whether lower scores are better."""
        return self.policy in DOUBT_POLICIES


def assess_judge(arm: str, policy: str, samples: Mapping[int, Sample], repeats: int) -> JudgeReport | None:
    """
    Assess the judge of an *arm* from its samples: the worst accepted score of one against whether its answer is right.

    Return None for an arm without scores.
    """
    verdicts = [verdict for number, sample in samples.items() for verdict in scored_verdicts(sample, number // repeats)]
    if not verdicts:
        return None
    doubt = policy in DOUBT_POLICIES
    worst = [_worst(sample, number // repeats, doubt=doubt) for number, sample in samples.items()]
    answers = [verdict for verdict in worst if verdict is not None]
    return JudgeReport(arm, policy, tuple(verdicts), separate(answers, doubt=doubt))


def scored_verdicts(sample: Sample, problem: int) -> list[ScoredVerdict]:
    """Return the verdicts of *sample* that have a score, without those of the kept parts of rejected drafts."""
    verdicts: list[ScoredVerdict] = []
    rejected: set[float] = set()
    for step in sample.steps:
        if is_repair(step):
            rejected.clear()
        if step.grade is None or not math.isfinite(step.grade) or _is_remainder(step, rejected):
            continue
        if step.fate == "rejected":
            rejected.add(step.grade)
        decided = step.reason not in UNSCORED_REASONS
        verdicts.append(ScoredVerdict(step.grade, step.fate == "kept", None, problem, decided))
    return verdicts


def _is_remainder(step: StepRecord, rejected: set[float]) -> bool:
    """Whether *step* is the kept part of a rejected draft, which carries the score of that draft."""
    return step.fate == "kept" and step.grade in rejected


def _worst(sample: Sample, problem: int, *, doubt: bool) -> ScoredVerdict | None:
    scores = [verdict.score for verdict in scored_verdicts(sample, problem) if verdict.accepted]
    return ScoredVerdict((max if doubt else min)(scores), True, sample.correct, problem) if scores else None


def separate(verdicts: Sequence[ScoredVerdict], *, doubt: bool) -> Separation | None:
    """Compute how far the scores separate right from wrong; None if there are too few of either."""
    right, wrong = (sum(v.right is value for v in verdicts) for value in (True, False))
    ranked = sorted((v for v in verdicts if v.decided), key=lambda v: v.score, reverse=not doubt)
    fewer = min(sum(v.right is value for v in ranked) for value in (True, False))
    return Separation(right, wrong, _area(ranked, fewer), _curve(ranked)) if fewer >= MIN_EACH else None


def _curve(ranked: Sequence[ScoredVerdict], weights: Mapping[int, int] | None = None) -> tuple[Point, ...]:
    """Return the curve of verdicts that are *ranked* best first; *weights* are by problem, 1 if None."""
    points = [(0.0, 0.0)]
    for _, ties in groupby(ranked, key=lambda verdict: verdict.score):
        wrong, right = points[-1]
        for verdict in ties:
            weight = 1 if weights is None else weights.get(verdict.problem, 0)
            wrong, right = wrong + weight * (not verdict.right), right + weight * bool(verdict.right)
        points.append((wrong, right))
    wrong, right = points[-1]
    return tuple((x / wrong, y / right) for x, y in points) if wrong and right else ()


def area_under(curve: Sequence[Point]) -> float:
    """Return the area: the probability that a right one is scored above a wrong one, ties counting half."""
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(curve))


def _area(ranked: Sequence[ScoredVerdict], fewer: int) -> Interval:
    """
    Return the area with a bootstrap interval.

    If all resamples have the same area, as for scores that never err, the bootstrap interval has no width. Then it is
    Wilson's interval of *fewer* trials, the number of verdicts of the rarer kind.
    """
    value = area_under(_curve(ranked))
    rng, problems = random.Random(0), sorted({verdict.problem for verdict in ranked})
    resamples = (Counter(rng.choices(problems, k=len(problems))) for _ in range(RESAMPLES))
    areas = sorted(area_under(curve) for curve in (_curve(ranked, weights) for weights in resamples) if curve)
    if not areas or math.isclose(areas[0], areas[-1]):
        return wilson(value * fewer, fewer)
    return Interval(value, areas[int(0.025 * len(areas))], areas[int(0.975 * len(areas))])
