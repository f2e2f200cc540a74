"""Which steps are right, where that can be known: in the miniature pair's own arithmetic, from the traces of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice

from ...orchestrator.chain import Accept
from ...orchestrator.events import Committed, Drafted, Event, Judged
from ...orchestrator.trace import read
from ..benchmarks.arithmetic import ARITHMETIC
from ..testbed.problems import Problem, State, advance, begin, expected, generate, paragraphs, right
from ..trial import Sample
from .judging import ELSEWHERE, Graded
from .reading import Run

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
