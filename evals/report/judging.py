"""
How far the scores of a judge separate right from wrong: ROC curves of the scored verdicts of a run.

Whether a step is right is known only for the miniature pair's arithmetic, from the traces of a run. For other
benchmarks, the correctness of the answer stands for that of its steps.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from typing import Literal, TypeAlias

from stepspec.orchestrator.chain import Accept
from stepspec.orchestrator.events import Committed, Drafted, Event, Judged
from stepspec.orchestrator.trace import read

from ..benchmarks.arithmetic import ARITHMETIC
from ..results import Interval, wilson
from ..sample import Sample, StepRecord
from ..testbed.problems import (
    Problem,
    State,
    advance,
    begin,
    expected,
    generate,
    is_right,
    paragraphs,
)
from .figures import is_repair
from .run_folder import Run

SEARCH_LIMIT = 20_000  # generated problems among which those of a run are searched


def known_verdicts(run: Run, samples: Mapping[int, Sample]) -> list[ScoredVerdict] | None:
    """
    Return the verdicts on steps that are known to be right or wrong, from the traces of one arm's *samples*.

    None if the benchmark is another one than arithmetic, or if there are no traces.
    """
    if run.about["benchmark"] != ARITHMETIC.name:
        return None
    traces = {number: run.trace(number, sample) for number, sample in samples.items()}
    problems = _problems(run) if any(traces.values()) else {}
    verdicts: list[ScoredVerdict] = []
    for number, path in traces.items():
        index = number // run.repeats
        problem = problems.get(run.problems[index])
        if path is not None and problem is not None:
            verdicts += checked_verdicts((moment.event for moment in read(path)), problem, index)
    return verdicts or None


def _problems(run: Run) -> dict[str, Problem]:
    """Generate the problems of *run* again, by their text."""
    wanted, problems = set(run.problems), dict[str, Problem]()
    for problem in islice(generate(int(run.about["seed"]), "test"), SEARCH_LIMIT):
        if problem.text in wanted:
            problems[problem.text] = problem
        if len(problems) == len(wanted):
            break
    return problems


def checked_verdicts(events: Iterable[Event], problem: Problem, index: int) -> list[ScoredVerdict]:
    """
    Return the scored verdicts of one run of *problem*, which has the number *index*, with whether the draft is right.

    Drafts that follow a mistake are left out: neither right nor wrong is defined for them.
    """
    verdicts: list[ScoredVerdict] = []
    committed: list[str] = []
    drafts: dict[int, str] = {}  # the latest draft by step index
    for event in events:
        match event:
            case Drafted(step, draft):
                drafts[step] = draft.text
            case Judged(step, draft, verdict) if verdict.score is not None and math.isfinite(verdict.score):
                before = [*committed, *(drafts[earlier] for earlier in range(len(committed), step))]
                known = _is_right(problem, "".join(before), draft.text)
                if known is not None:
                    decided = isinstance(verdict, Accept) or verdict.reason not in UNSCORED_REASONS
                    verdicts.append(ScoredVerdict(verdict.score, isinstance(verdict, Accept), known, index, decided))
            case Committed(_, step):
                committed.append(step.text)
            case _:
                pass
    return verdicts


def _is_right(problem: Problem, before: str, draft: str) -> bool | None:
    """Whether *draft* is a right continuation of *before*; None if *before* is wrong already or *draft* is empty."""
    return is_right_prefix(problem, before + draft) if draft and is_right_prefix(problem, before) else None


def is_right_prefix(problem: Problem, text: str) -> bool:
    """Whether *text* is the beginning of right reasoning. Its last paragraph may be unfinished."""
    state = begin(problem)
    *complete, last = paragraphs(text) or [""]
    for paragraph in complete:
        if state.index > len(problem.operations) or not is_right(problem, state, paragraph):
            return False
        state = advance(problem, state, paragraph)
    if state.index > len(problem.operations):  # the end of the thinking was written, and nothing may follow it
        return not last.strip()
    unchecked = State(state.index, state.value)  # the check of the last operation is optional
    return any(expected(problem, option).startswith(last) for option in (state, unchecked))


DOUBT_POLICIES = frozenset({"bild", "glimpse", "reading"})  # their scores measure doubt: lower is better
RESAMPLES = 200
UNSCORED_REASONS = frozenset({"fallback", "words", "mean"})  # rollbacks that their score did not decide
MIN_EACH = 3  # right and wrong verdicts that a separation needs at least

Level: TypeAlias = Literal["step", "answer"]
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScoredVerdict:
    """
    The *score* of a draft or an answer, and whether it was *accepted*.

    *right* is None where it is unknown. *problem* is the number of the problem. *decided* is whether the verdict
    depended on the score: a draft may be rejected for another reason.
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
    accepted, share of the right ones accepted) at a threshold, from strict to loose. *passed* is the point of the
    method's own verdicts; None for answers, which are not accepted or rejected one by one.
    """

    level: Level
    right: int
    wrong: int
    area: Interval
    curve: tuple[Point, ...]
    passed: Point | None


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


def assess_judge(
    arm: str, policy: str, samples: Mapping[int, Sample], known: Sequence[ScoredVerdict] | None, repeats: int
) -> JudgeReport | None:
    """
    Assess the judge of an *arm* from its samples; *known* are verdicts on steps that are known to be right or wrong.

    Without *known*, the answer stands for its steps: the worst accepted score of a sample is compared with whether its
    answer is right. Return None for an arm without scores.
    """
    verdicts = [verdict for number, sample in samples.items() for verdict in scored_verdicts(sample, number // repeats)]
    if not verdicts:
        return None
    doubt = policy in DOUBT_POLICIES
    if known:
        return JudgeReport(arm, policy, tuple(known), separate(known, "step", doubt=doubt))
    worst = [_worst(sample, number // repeats, doubt=doubt) for number, sample in samples.items()]
    answers = [verdict for verdict in worst if verdict is not None]
    return JudgeReport(arm, policy, tuple(verdicts), separate(answers, "answer", doubt=doubt))


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


def separate(verdicts: Sequence[ScoredVerdict], level: Level, *, doubt: bool) -> Separation | None:
    """Compute how far the scores separate right from wrong; None if there are too few of either."""
    right, wrong = ([v for v in verdicts if v.right is value] for value in (True, False))
    ranked = sorted((v for v in (*right, *wrong) if v.decided), key=lambda v: v.score, reverse=not doubt)
    fewer = min(sum(v.right is value for v in ranked) for value in (True, False))
    if fewer < MIN_EACH:
        return None
    passed = None
    if level == "step":
        passed = sum(v.accepted for v in wrong) / len(wrong), sum(v.accepted for v in right) / len(right)
    return Separation(level, len(right), len(wrong), _area(ranked, fewer), _curve(ranked), passed)


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
