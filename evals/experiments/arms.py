"""Measure several ways to solve the same problems on the same servers, interleaved, so that drift hits all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from stepspec.api import Solver
from stepspec.orchestrator import stats
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.events import Event, Observer

from ..sample import Arm, ByRole, Sample, Task, between, drafted, seed, solve_once, together

__all__ = [
    "LARGE",
    "SEQUENTIAL",
    "SHIPPED",
    "SMALL",
    "THINKING",
    "THINKING_SEQUENTIAL",
    "Arm",
    "Interval",
    "Result",
    "Sample",
    "Task",
    "bootstrap_ratio",
    "by_problem",
    "measure",
    "share",
    "summarise",
    "token_seconds",
    "turns",
    "wilson",
]

RESAMPLES = 2000

LARGE = Arm("large alone", "large")
SMALL = Arm("small alone", "small")
SEQUENTIAL = Arm("SpecReason, sequential", "specreason", ahead=0)
SHIPPED = Arm("SpecReason", "specreason")
THINKING = Arm("SpecReason, thinking only", "specreason", ending="small", answer="large")
"""The part that the miniature judge was taught: it has seen no answer, and no step without its end."""
THINKING_SEQUENTIAL = replace(THINKING, name=f"{THINKING.name}, sequential", ahead=0)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95% confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Result:
    """
    What one arm did on all problems. *seconds* is the mean wall time of a problem.

    The ratios compare sums of wall time over the same problems: to the large model alone, and to the floor, which is
    the time to write every kept token on the model that wrote it. *accept_rate* counts drafts, *waste* written
    tokens, *judge_tokens* those read or written to judge one problem, without what was in a prefix cache.
    *speculation* is what the servers accepted of the tokens that they drafted themselves.
    """

    name: str
    n: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    seconds: float
    ratio_to_large: float
    ratio_to_large_interval: tuple[float, float]
    ratio_to_floor: float | None
    share_large_tokens: float
    accept_rate: float | None
    waste: float
    judge_tokens: float
    speculation: ByRole = field(default_factory=dict[Role, Acceptance])


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Mapping[tuple[int, str], Sample] | None = None,
    observers: Mapping[str, Callable[[Task], Observer]] | None = None,
    solvers: Mapping[str, Solver] | None = None,
    base: int = 0,
) -> list[Sample]:
    """
    Solve every task with every arm, one at a time; *observers* watch the runs of the arms they are named for.

    An arm that one of *solvers* is named for is run by that one. What is *done* already, by the number of the task and
    the name of the arm, is not done again. The seed of a sample follows from *base* and the number of its
    task, and is the same for all arms.
    """
    by_name, samples = solvers or {}, list[Sample]()
    for number, task in enumerate(tasks):
        for arm in turns(arms, number):
            if done and (number, arm.name) in done:
                samples.append(done[number, arm.name])
                continue
            observe = observers[arm.name](task) if observers and arm.name in observers else _ignore
            drawn = seed(base, number, 0)
            samples.append(await _sample(by_name.get(arm.name, solver), arm, task, observe, drawn))
            on_sample(number, samples[-1])
    return samples


def turns(arms: Sequence[Arm], number: int) -> Sequence[Arm]:
    """Return *arms* in the order in which they solve problem *number*: each begins equally often."""
    turn = number % len(arms)
    return (*arms[turn:], *arms[:turn])


def _ignore(event: Event) -> None:
    pass


async def _sample(solver: Solver, arm: Arm, task: Task, observe: Observer, drawn: int) -> Sample:
    before = await drafted(solver)
    solved = await solve_once(solver, arm, task.problem, drawn=drawn, observe=observe)
    right = solved.solution is not None and solved.solution.answer == task.answer
    return solved.sample(arm, correct=right, seed=drawn, speculation=between(before, await drafted(solver)))


def summarise(samples: Sequence[Sample], arms: Sequence[Arm], *, repeats: int = 1) -> list[Result]:
    """
    Compare *arms*, the large model alone among them, on the problems that all of them solved.

    With *repeats* of every problem, which come one after the other, what is drawn for an interval is the problem.
    """
    by_arm = {arm.name: [s for s in samples if s.arm == arm.name] for arm in arms}
    pace = token_seconds(by_arm)
    large = [s.seconds for s in by_arm[LARGE.name]]
    return [_result(arm.name, by_arm[arm.name], large, pace, repeats) for arm in arms]


def token_seconds(by_arm: Mapping[str, Sequence[Sample]]) -> dict[Role, float]:
    """What a token costs each model when it writes alone: the median over the problems of the solo arms."""
    solo: tuple[tuple[Role, Arm], ...] = (("small", SMALL), ("large", LARGE))
    paces: dict[Role, list[float]] = {
        role: [s.pace[role] for s in by_arm.get(arm.name, ()) if role in s.pace] for role, arm in solo
    }
    return {role: median(known) for role, known in paces.items() if known}


def _result(
    name: str, samples: Sequence[Sample], large: Sequence[float], pace: Mapping[Role, float], repeats: int
) -> Result:
    ledgers = [s.ledger for s in samples]
    seconds = [s.seconds for s in samples]
    accuracy = share([s.correct for s in samples], repeats)
    ratio = bootstrap_ratio(by_problem(seconds, repeats), by_problem(large, repeats))
    kept_large, kept_small = sum(x.large.kept for x in ledgers), sum(x.small.kept for x in ledgers)
    nested = any(x.nested for x in ledgers)  # several models' tokens are small, and nothing says how fast each wrote
    floor = None if nested else _floor(kept_small, kept_large, pace)
    written = sum(x.large.written + x.small.written for x in ledgers)
    drafts = sum(x.drafts for x in ledgers)
    judging = [x.large.judging + x.small.judging + x.critic.judging for x in ledgers]
    return Result(
        name=name,
        n=len(samples),
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        seconds=fmean(seconds),
        ratio_to_large=ratio.value,
        ratio_to_large_interval=(ratio.low, ratio.high),
        ratio_to_floor=sum(seconds) / floor if floor else None,
        share_large_tokens=kept_large / max(1, kept_large + kept_small),
        accept_rate=sum(x.accepted for x in ledgers) / drafts if drafts and any(judging) else None,
        waste=sum(x.large.discarded + x.small.discarded for x in ledgers) / max(1, written),
        judge_tokens=fmean(judging),
        speculation=together(s.speculation for s in samples),
    )


def _floor(small: int, large: int, pace: Mapping[Role, float]) -> float | None:
    """Seconds to write so many tokens on each model; None where nothing says how fast one of them is."""
    if (small and "small" not in pace) or (large and "large" not in pace):
        return None
    return small * pace.get("small", 0.0) + large * pace.get("large", 0.0)


def by_problem(values: Sequence[float], repeats: int) -> list[float]:
    """Add up the *repeats* of every problem."""
    return [sum(values[at : at + repeats]) for at in range(0, len(values), repeats)]


def share(values: Sequence[float], repeats: int = 1) -> Interval:
    """
    The mean of *values*, which are 0 or 1, with Wilson's interval.

    Of several samples a problem, the bootstrap's over the problems; or, where all problems are alike and it would have
    no width, Wilson's as if each had been sampled once.
    """
    problems = len(values) // repeats
    once = wilson(sum(values) / repeats, problems)
    if repeats == 1:
        return once
    drawn = bootstrap_ratio(by_problem(values, repeats), [repeats] * problems)
    return drawn if drawn.low < drawn.high else once


def wilson(successes: float, n: int) -> Interval:
    """Wilson's score interval of a share."""
    return Interval(successes / n, *stats.wilson(successes, n))


def bootstrap_ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Interval:
    """The ratio of two sums over the same problems; percentile bootstrap over the problems."""
    rng, n = random.Random(seed), len(ours)
    ratios: list[float] = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(n), k=n)
        if total := sum(theirs[i] for i in drawn):  # A problem that is too long takes no time at all.
            ratios.append(sum(ours[i] for i in drawn) / total)
    ratios.sort()
    low, high = ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios)) - 1]
    return Interval(sum(ours) / sum(theirs), low, high)
