"""
How far the scores of a judge separate right from wrong: ROC curves of the scored verdicts of a run.

Whether a step is right is not known: the correctness of the answer stands for that of its steps.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

from ..results import Interval, wilson
from ..sample import Sample, StepRecord
from .figures import is_repair

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
