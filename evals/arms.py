"""Measure several ways to solve the same problems on the same servers, interleaved, so that drift hits all alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ..api import Solver
from ..orchestrator.chain import Role
from ..orchestrator.events import Called, Event
from ..orchestrator.ledger import Ledger

RESAMPLES = 2000
Z = 1.96  # both intervals are at 95%


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to solve problems: a policy, its options, how far it looks ahead, and what confidence it hedges at."""

    name: str
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ahead: int = 2
    hedge: float = 0.0


LARGE = Arm("large alone", "large")
SMALL = Arm("small alone", "small")
SEQUENTIAL = Arm("SpecReason, sequential", "specreason", ahead=0)
SHIPPED = Arm("SpecReason", "specreason")


@dataclass(frozen=True, slots=True)
class Task:
    """One problem and its true answer."""

    problem: str
    answer: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem solved by one arm. *pace* is seconds a token by role, where a request wrote several."""

    arm: str
    correct: bool
    seconds: float
    ledger: Ledger
    pace: Mapping[Role, float]


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
    """

    name: str
    n: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    seconds: float
    ratio_to_large: float
    ratio_to_large_interval: tuple[float, float]
    ratio_to_floor: float
    share_large_tokens: float
    accept_rate: float | None
    waste: float
    judge_tokens: float


async def measure(
    solver: Solver,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    *,
    on_sample: Callable[[int, Sample], object] = lambda number, sample: None,
    done: Mapping[tuple[int, str], Sample] | None = None,
    observers: Mapping[str, Callable[[Task], Callable[[Event], None]]] | None = None,
) -> list[Sample]:
    """
    Solve every task with every arm, one at a time; *observers* watch the runs of the arms they are named for.

    What is *done* already, by the number of the task and the name of the arm, is not done again.
    """
    samples: list[Sample] = []
    for number, task in enumerate(tasks):
        turn = number % len(arms)
        for arm in (*arms[turn:], *arms[:turn]):
            if done and (number, arm.name) in done:
                samples.append(done[number, arm.name])
                continue
            extra = observers[arm.name](task) if observers and arm.name in observers else None
            samples.append(await _sample(solver, arm, task, extra))
            on_sample(number, samples[-1])
    return samples


async def _sample(solver: Solver, arm: Arm, task: Task, extra: Callable[[Event], None] | None) -> Sample:
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if extra is not None:
            extra(event)

    solution = await solver.solve(
        task.problem,
        policy=arm.policy,
        options=arm.options,
        ahead=arm.ahead,
        hedge=arm.hedge,
        load="ignore",
        observe=observe,
    )
    return Sample(arm.name, solution.answer == task.answer, solution.seconds, solution.ledger, _pace(events))


def _pace(events: Sequence[Event]) -> dict[Role, float]:
    """Seconds from one token to the next, by role, over the requests that wrote several."""
    pace: dict[Role, float] = {}
    roles: tuple[Role, ...] = ("small", "large")
    for role in roles:
        calls = [e for e in events if isinstance(e, Called) and e.role == role and e.verb == "write"]
        gaps = [(call.seconds - call.first, call.written - 1) for call in calls if call.first is not None]
        tokens = sum(count for _, count in gaps if count > 0)
        if tokens:
            pace[role] = sum(seconds for seconds, count in gaps if count > 0) / tokens
    return pace


def summarise(samples: Sequence[Sample], arms: Sequence[Arm]) -> list[Result]:
    """Compare *arms*, the large model alone among them, on the problems that all of them solved."""
    by_arm = {arm.name: [s for s in samples if s.arm == arm.name] for arm in arms}
    pace = token_seconds(by_arm)
    large = [s.seconds for s in by_arm[LARGE.name]]
    return [_result(arm.name, by_arm[arm.name], large, pace) for arm in arms]


def token_seconds(by_arm: Mapping[str, Sequence[Sample]]) -> dict[Role, float]:
    """What a token costs each model when it writes alone: the median over the problems of the solo arms."""
    solo: tuple[tuple[Role, Arm], ...] = (("small", SMALL), ("large", LARGE))
    return {role: median(s.pace[role] for s in by_arm[arm.name] if role in s.pace) for role, arm in solo}


def _result(name: str, samples: Sequence[Sample], large: Sequence[float], pace: Mapping[Role, float]) -> Result:
    ledgers = [s.ledger for s in samples]
    seconds = [s.seconds for s in samples]
    accuracy = wilson(sum(s.correct for s in samples), len(samples))
    ratio = bootstrap_ratio(seconds, large)
    floor = sum(ledger.small.kept * pace["small"] + ledger.large.kept * pace["large"] for ledger in ledgers)
    kept_large, kept_small = sum(x.large.kept for x in ledgers), sum(x.small.kept for x in ledgers)
    written = sum(x.large.written + x.small.written for x in ledgers)
    drafts = sum(x.drafts for x in ledgers)
    judged = any(x.large.judging or x.small.judging for x in ledgers)
    return Result(
        name=name,
        n=len(samples),
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        seconds=fmean(seconds),
        ratio_to_large=ratio.value,
        ratio_to_large_interval=(ratio.low, ratio.high),
        ratio_to_floor=sum(seconds) / floor,
        share_large_tokens=kept_large / (kept_large + kept_small),
        accept_rate=sum(x.accepted for x in ledgers) / drafts if judged else None,
        waste=sum(x.large.discarded + x.small.discarded for x in ledgers) / written,
        judge_tokens=fmean(x.large.judging + x.small.judging for x in ledgers),
    )


def wilson(successes: float, n: int) -> Interval:
    """Wilson's score interval of a share."""
    share = successes / n
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap_ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Interval:
    """The ratio of two sums over the same problems; percentile bootstrap over the problems."""
    rng, n = random.Random(seed), len(ours)
    ratios: list[float] = []
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(n), k=n)
        ratios.append(sum(ours[i] for i in drawn) / sum(theirs[i] for i in drawn))
    ratios.sort()
    return Interval(sum(ours) / sum(theirs), ratios[int(0.025 * RESAMPLES)], ratios[int(0.975 * RESAMPLES) - 1])
