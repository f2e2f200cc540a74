"""Which steps are right, where that can be known: in the miniature pair's own arithmetic, from the traces of a run."""

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
from ..sample import Sample, Written
from ..testbed.problems import (
    Problem,
    State,
    advance,
    begin,
    expected,
    generate,
    paragraphs,
    right,
)
from .figures import repairs
from .run_folder import Run

SEARCHED = 20_000  # problems of a seed, the longest that one is looked for


def verdicts(run: Run, numbered: Mapping[int, Sample]) -> list[Graded] | None:
    """The verdicts on steps that are known to be right or wrong, of samples of one arm; None where nobody knows."""
    if run.about["benchmark"] != ARITHMETIC.name:
        return None
    traces = {number: run.trace(number, sample) for number, sample in numbered.items()}
    problems = _problems(run) if any(traces.values()) else {}
    found: list[Graded] = []
    for number, path in traces.items():
        at = number // run.repeats
        problem = problems.get(run.tasks[at].problem)
        if path is not None and problem is not None:
            found += graded((moment.event for moment in read(path)), problem, at)
    return found or None


def _problems(run: Run) -> dict[str, Problem]:
    wanted, found = {task.problem for task in run.tasks}, dict[str, Problem]()
    for problem in islice(generate(int(run.about["seed"]), "test"), SEARCHED):
        if problem.text in wanted:
            found[problem.text] = problem
        if len(found) == len(wanted):
            break
    return found


def graded(events: Iterable[Event], problem: Problem, number: int) -> list[Graded]:
    """The scored verdicts of one run, on drafts that follow nothing wrong; after a mistake, right has no meaning."""
    found: list[Graded] = []
    committed: list[str] = []
    drafts: dict[int, str] = {}  # the latest of each index: those before a draft were drafted after the last repair
    for event in events:
        match event:
            case Drafted(index, draft):
                drafts[index] = draft.text
            case Judged(index, draft, verdict) if verdict.score is not None and math.isfinite(verdict.score):
                before = [*committed, *(drafts[place] for place in range(len(committed), index))]
                known = _right(problem, "".join(before), draft.text)
                if known is not None:
                    decided = isinstance(verdict, Accept) or verdict.reason not in ELSEWHERE
                    found.append(Graded(verdict.score, isinstance(verdict, Accept), known, number, decided))
            case Committed(_, step):
                committed.append(step.text)
            case _:
                pass
    return found


def _right(problem: Problem, before: str, draft: str) -> bool | None:
    """Whether *draft* goes on rightly from *before*; None if that is wrong already, or the draft is empty."""
    return follows(problem, before + draft) if draft and follows(problem, before) else None


def follows(problem: Problem, text: str) -> bool:
    """Whether *text* is how right reasoning begins. Its last paragraph may be unfinished."""
    state = begin(problem)
    *whole, last = paragraphs(text) or [""]
    for paragraph in whole:
        if not right(problem, state, paragraph):
            return False
        state = advance(problem, state, paragraph)
    if state.index > len(problem.deeds):  # the thinking was closed
        return not last.strip()
    without = State(state.index, state.value)  # the check of the last deed left out
    return any(expected(problem, one).startswith(last) for one in (state, without))


DOUBTS = frozenset({"bild", "glimpse"})  # methods whose score is a doubt: the higher, the worse
RESAMPLES = 200
ELSEWHERE = frozenset({"fallback"})  # reasons of rollbacks that no score decided, though they tell one
LEAST = 3  # wrong ones, and right ones, before anything is said of how they are told apart

Level: TypeAlias = Literal["step", "answer"]
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Graded:
    """
    A *score*, whether what it is about stood, whether that is *right* if known, and the problem it belongs to.

    *decided* is whether it was the score that decided: a draft may fall for something else.
    """

    score: float
    accepted: bool
    right: bool | None = None
    problem: int = 0
    decided: bool = True


@dataclass(frozen=True, slots=True)
class Separation:
    """
    How far scores tell right from wrong, of so many *right* and *wrong* ones.

    *area* is the AUROC, its interval by a bootstrap over the problems. *curve* goes through (share of the wrong ones
    that pass, share of the right ones that pass) as the threshold gets looser, and *passed* is where the method was
    working; None where nothing is accepted or rejected by itself.
    """

    level: Level
    right: int
    wrong: int
    area: Interval
    curve: tuple[Point, ...]
    passed: Point | None


@dataclass(frozen=True, slots=True)
class Judge:
    """The scored verdicts of one arm, and how far they tell right from wrong where enough of both are known."""

    arm: str
    policy: str
    graded: tuple[Graded, ...]
    separation: Separation | None

    @property
    def doubt(self) -> bool:
        """Whether a high score is a bad one."""
        return self.policy in DOUBTS


def judge(
    arm: str, policy: str, numbered: Mapping[int, Sample], known: Sequence[Graded] | None, repeats: int
) -> Judge | None:
    """
    Judge the judge of an *arm* by its samples; *known* are verdicts on steps that are known to be right or wrong.

    Without these, an answer stands for its steps: is the worst score that was accepted lower where it is wrong? None
    for an arm without scores.
    """
    verdicts = [one for number, sample in numbered.items() for one in scored(sample, number // repeats)]
    if not verdicts:
        return None
    doubt = policy in DOUBTS
    if known:
        return Judge(arm, policy, tuple(known), separate(known, "step", doubt=doubt))
    worst = [_worst(sample, number // repeats, doubt=doubt) for number, sample in numbered.items()]
    answers = [one for one in worst if one is not None]
    return Judge(arm, policy, tuple(verdicts), separate(answers, "answer", doubt=doubt))


def scored(sample: Sample, problem: int) -> list[Graded]:
    """The verdicts of *sample* that have a score; what was kept of a rejected draft is no verdict of its own."""
    found: list[Graded] = []
    rejected: set[float] = set()
    for step in sample.steps:
        if repairs(step):
            rejected.clear()
        if step.grade is None or not math.isfinite(step.grade) or _part(step, rejected):
            continue
        if step.fate == "rejected":
            rejected.add(step.grade)
        decided = step.reason not in ELSEWHERE
        found.append(Graded(step.grade, step.fate == "kept", None, problem, decided))
    return found


def _part(step: Written, rejected: set[float]) -> bool:
    """Whether *step* is what stood of a draft that fell: it carries the score for which that fell."""
    return step.fate == "kept" and step.grade in rejected


def _worst(sample: Sample, problem: int, *, doubt: bool) -> Graded | None:
    scores = [one.score for one in scored(sample, problem) if one.accepted]
    return Graded((max if doubt else min)(scores), True, sample.correct, problem) if scores else None


def separate(graded: Sequence[Graded], level: Level, *, doubt: bool) -> Separation | None:
    """How far the scores tell right from wrong; None where there are too few of either."""
    right, wrong = ([one for one in graded if one.right is kind] for kind in (True, False))
    ranked = sorted((one for one in (*right, *wrong) if one.decided), key=lambda one: one.score, reverse=not doubt)
    fewer = min(sum(one.right is kind for one in ranked) for kind in (True, False))
    if fewer < LEAST:
        return None
    passed = None
    if level == "step":
        passed = sum(one.accepted for one in wrong) / len(wrong), sum(one.accepted for one in right) / len(right)
    return Separation(level, len(right), len(wrong), _area(ranked, fewer), _curve(ranked), passed)


def _curve(ranked: Sequence[Graded], drawn: Mapping[int, int] | None = None) -> tuple[Point, ...]:
    """The curve of those *ranked* best first; of a resample, *drawn* says how often each problem is in it."""
    points = [(0.0, 0.0)]
    for _, ties in groupby(ranked, key=lambda one: one.score):
        wrong, right = points[-1]
        for one in ties:
            weight = 1 if drawn is None else drawn.get(one.problem, 0)
            wrong, right = wrong + weight * (not one.right), right + weight * bool(one.right)
        points.append((wrong, right))
    wrong, right = points[-1]
    return tuple((x / wrong, y / right) for x, y in points) if wrong and right else ()


def area(curve: Sequence[Point]) -> float:
    """The area under *curve*: the chance that a right one is scored above a wrong one, ties counting half."""
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(curve))


def _area(ranked: Sequence[Graded], fewer: int) -> Interval:
    """
    The area with its interval. Where all resamples are alike, as of scores that never err, that would have no width:
    then Wilson's, as if each of the *fewer* kind had been one try.
    """
    value = area(_curve(ranked))
    rng, problems = random.Random(0), sorted({one.problem for one in ranked})
    drawn = (Counter(rng.choices(problems, k=len(problems))) for _ in range(RESAMPLES))
    areas = sorted(area(curve) for curve in (_curve(ranked, each) for each in drawn) if curve)
    if not areas or math.isclose(areas[0], areas[-1]):
        return wilson(value * fewer, fewer)
    return Interval(value, areas[int(0.025 * len(areas))], areas[int(0.975 * len(areas))])
