"""
The figures of methods under load: latency, throughput and ratios of each arm, a *cell*, from its
timings.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from rich.console import Console

from lab.crowd import TWO_LARGE, Deployment, Timing
from stepspec.api import Solver
from stepspec.evals.arms import LARGE
from stepspec.evals.results import Interval, Z, bootstrap_ratio, wilson
from stepspec.evals.testbed.servers import JUDGE, endpoint, running
from stepspec.evals.tune.measuring import UNLIMITED
from stepspec.orchestrator.endpoints import GREEDY

from .tables import Sheet, written
from .worlds import with_judge

OTHERS = 64  # problems that are not counted; they repeat
# requests that each miniature server takes: more than a run has, times the highest load
SEQUENCES = 64
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Cell:
    """
    The figures of one arm under one load, over *n* counted problems, of which *failed* have no
    solution.

    *latencies* has quantiles of the seconds from arrival to answer, None where *n* is too small for
    one. *first_step* and *first_answer* are medians. A failed problem is wrong, and has no latency.
    *to_large* and *to_two_large* divide the summed latency by that of the large model alone, on one
    and on two servers, over the problems that both solved; *throughput_to_large* divides the
    problems a second.
    """

    name: str
    concurrency: int
    n: int
    failed: int
    problems_per_second: Interval
    tokens_per_second: float
    latencies: Mapping[str, Interval | None]
    first_step: float | None
    first_answer: float | None
    accuracy: Interval
    to_large: Interval | None
    to_two_large: Interval | None
    throughput_to_large: float | None


def quantile(values: Sequence[float], share: float) -> Interval | None:
    """
    The *share* quantile of *values* by nearest rank, with a 95% interval from their order.

    None if so few *values* have no quantile beyond which one of them is expected.
    """
    n = len(values)
    if n * (1 - share) < 1 - 1e-9:
        return None
    ordered = sorted(values)
    half = Z * math.sqrt(n * share * (1 - share))
    ranks = (
        min(n, max(1, math.ceil(rank - 1e-9)))
        for rank in (n * share, n * share - half, n * share + half)
    )
    return Interval(*(ordered[rank - 1] for rank in ranks))


def summarise(concurrency: int, measured: Mapping[str, Sequence[Timing]]) -> list[Cell]:
    """
    The cells of a load of *concurrency* problems at once, from what was *measured* of each arm, by
    its name.
    """
    return [_cell(concurrency, name, timings, measured) for name, timings in measured.items()]


def _cell(
    concurrency: int, name: str, timings: Sequence[Timing], others: Mapping[str, Sequence[Timing]]
) -> Cell:
    solved = [timing for timing in timings if not timing.failure]
    large = others.get(LARGE.name)
    rate = _throughput(concurrency, timings)
    return Cell(
        name=name,
        concurrency=concurrency,
        n=len(timings),
        failed=len(timings) - len(solved),
        problems_per_second=rate,
        tokens_per_second=sum(each.tokens for each in timings)
        / sum(each.latency / concurrency for each in timings),
        latencies={
            key: quantile([timing.latency for timing in solved], share)
            for key, share in QUANTILES.items()
        },
        first_step=_median([timing.first_step for timing in solved]),
        first_answer=_median([timing.first_answer for timing in solved]),
        accuracy=wilson(sum(timing.correct for timing in timings), len(timings)),
        to_large=latency_ratio(timings, large),
        to_two_large=latency_ratio(timings, others.get(TWO_LARGE.name)),
        throughput_to_large=(
            None if large is None else rate.value / _throughput(concurrency, large).value
        ),
    )


def _throughput(concurrency: int, timings: Sequence[Timing]) -> Interval:
    """
    Problems solved a second, from the latencies (Little's law): where a block begins and ends does
    not matter.
    """
    spent = [timing.latency / concurrency for timing in timings]
    return bootstrap_ratio([float(not timing.failure) for timing in timings], spent)


def _median(values: Sequence[float | None]) -> float | None:
    middle = quantile([value for value in values if value is not None], 0.5)
    return None if middle is None else middle.value


def latency_ratio(measured: Sequence[Timing], large: Sequence[Timing] | None) -> Interval | None:
    """
    The summed latency over that of *large*, problem by problem; None without a problem that both
    solved.
    """
    if large is None:
        return None
    pairs = [
        (ours.latency, theirs.latency)
        for ours, theirs in zip(measured, large, strict=True)
        if not (ours.failure or theirs.failure)
    ]
    return (
        bootstrap_ratio([ours for ours, _ in pairs], [theirs for _, theirs in pairs])
        if pairs
        else None
    )


COLUMNS = (
    *("", "n", "failed", "problems/s", "tokens/s", "p50", "p95", "p99", "first step", "answer at"),
    *("accuracy", "latency vs large", "vs two large", "problems/s vs large"),
)


def sheet(cells: Sequence[Cell]) -> Sheet:
    """The *cells* of one load as a table."""
    rows = [
        (
            cell.name,
            str(cell.n),
            str(cell.failed or ""),
            written(cell.problems_per_second, ".3f"),
            f"{cell.tokens_per_second:.1f}",
            *(written(cell.latencies[key]) for key in QUANTILES),
            *(
                "" if value is None else f"{value:.2f}"
                for value in (cell.first_step, cell.first_answer)
            ),
            written(cell.accuracy, ".0%"),
            *map(written, (cell.to_large, cell.to_two_large)),
            "" if cell.throughput_to_large is None else f"{cell.throughput_to_large:.2f}",
        )
        for cell in cells
    ]
    return Sheet(COLUMNS, rows)


SMALL_PRINT = (
    "A load of N at once is a closed loop. Problems and kept tokens a second: from the latencies,"
    " by Little's law. Seconds from a problem's arrival to its answer (p50, p95, p99), to its first"
    " verified step and to the first text of its answer (medians). Latency vs large: summed over"
    " the same problems, divided by that of the large model alone under this load; two large: by"
    " that on two servers, the hardware of a pair. Failed problems count as wrong. Brackets are 95%"
    " intervals: of problems a second and of ratios by bootstrap over problems, of quantiles by"
    " order, of accuracy Wilson's."
)


@asynccontextmanager
async def miniature_deployment(
    profile: str, world: str, judge: str = JUDGE, *, two: bool, console: Console
) -> AsyncGenerator[Deployment]:
    """
    Start the miniature pair with the large weights of *judge*, with *two* large servers if asked
    for.
    """
    roles = ("large", "small", *(("large",) if two else ()))
    async with AsyncExitStack() as stack:
        judging = replace(with_judge(world, judge), sequences=SEQUENCES)
        starting = running(profile, roles, console=console, world=judging)
        served = await stack.enter_async_context(starting)
        ends = {
            name: endpoint(served[name], cast("Any", name)).model_copy(update=UNLIMITED)
            for name in ("small", "large")
        }
        pair = await stack.enter_async_context(
            Solver(ends["small"], ends["large"], sampling=GREEDY)
        )
        if not two:
            yield Deployment(pair)
            return
        both = ends["large"].model_copy(
            update={"replicas": (endpoint(served["large-2"], "large").url,)}
        )
        yield Deployment(
            pair, await stack.enter_async_context(Solver(ends["small"], both, sampling=GREEDY))
        )
