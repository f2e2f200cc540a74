"""
The conditions of the matrix of worlds, judges and loads, and its tables from the timings that were
measured. Pure.

A *condition* is what all arms have in common: world, judge and load. The tables: methods by judge;
loads; `auto` against the better of the large model alone and the best fixed method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from lab.crowd import TWO_LARGE, Timing
from stepspec.evals.arms import LARGE
from stepspec.evals.results import Interval, wilson
from stepspec.evals.sample import Arm
from stepspec.evals.testbed.servers import JUDGE
from stepspec.orchestrator.errors import ConfigurationError

from .arms import AUTO, REFLECTIVE
from .load import latency_ratio
from .tables import Sheet, written
from .worlds import JUDGES, LONG, find_world, with_judge


@dataclass(frozen=True, slots=True)
class Condition:
    """
    What all arms of a round have in common: the *world*, the large weights of *judge*, and the
    problems at once.
    """

    world: str
    judge: str
    concurrency: int

    @property
    def pairing(self) -> tuple[str, str]:
        """What the servers depend on."""
        return self.world, self.judge

    @property
    def problems(self) -> int:
        """
        The number of counted problems of a round.

        Long chains all begin at once, as many as there may be: the time at which they began does
        not show in their length. Short ones need others before them.
        """
        return self.concurrency if self.world == LONG else max(8, 2 * self.concurrency)

    @property
    def warm_up(self) -> int:
        """The number of problems before the counted ones."""
        return 0 if self.world == LONG else self.concurrency

    def __str__(self) -> str:
        return f"{self.world}, {self.judge}, {self.concurrency} at once"


def conditions(
    worlds: Sequence[str], judges: Sequence[str], loads: Sequence[int]
) -> list[Condition]:
    """
    Every combination; without *judges*, with all that a world has.

    Raise `ConfigurationError` for an unknown world, for a judge that no world has, and if there is
    no combination.
    """
    known = {name for world in worlds for name in JUDGES[find_world(world).name]}
    for judge in judges:
        if judge not in known:
            with_judge(worlds[0], judge)
    pairings = [
        (world, judge)
        for world in worlds
        for judge in JUDGES[world]
        if not judges or judge in judges
    ]
    if not pairings or not loads:
        raise ConfigurationError("no condition: name a world, a judge that it has, and a load")
    return [Condition(world, judge, load) for world, judge in pairings for load in loads]


def arms_under(condition: Condition, arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """
    The *arms* under *condition*: with several problems at once, large alone on two servers as well.

    With other judges than the usual one, neither that nor reflective verification is measured under
    load: there is not the time.
    """
    if condition.concurrency == 1:
        return (LARGE, *arms)
    if condition.judge == JUDGE:
        return (LARGE, TWO_LARGE, *arms)
    return (LARGE, *(arm for arm in arms if arm != REFLECTIVE))


Timings: TypeAlias = Mapping[str, Sequence[Timing]]
"""Those of each arm by its name, of all rounds."""
Measured: TypeAlias = Mapping[Condition, Timings]

# what `auto` may take, over the better of the large model alone and the best fixed method
BAR = 1.05
# the share of problems that a method may lose to the large model alone, to be compared with
LOST = 0.02


@dataclass(frozen=True, slots=True)
class MethodRow:
    """
    One arm with one judge.

    *n*, *accuracy*, the share of problems *lost* to the large model alone and the share of drafts
    *accepted* are over all loads; *to_large* is the time over that of the large model alone, on
    *alone* problems one at a time.
    """

    world: str
    judge: str
    name: str
    n: int
    accuracy: Interval
    lost: float
    alone: int
    to_large: Interval | None
    accepted: float | None


def method_rows(measured: Measured) -> list[MethodRow]:
    """The arms of every world and judge, over all its loads."""
    rows: list[MethodRow] = []
    for world, judge in dict.fromkeys(condition.pairing for condition in measured):
        mine = {
            condition: timings
            for condition, timings in measured.items()
            if condition.pairing == (world, judge)
        }
        for name in dict.fromkeys(chain.from_iterable(mine.values())):
            there = [timings for timings in mine.values() if name in timings]
            rows.append(_method_row(world, judge, name, there, mine))
    return rows


def _method_row(
    world: str, judge: str, name: str, there: Sequence[Timings], mine: Measured
) -> MethodRow:
    ours, large = (
        [timing for timings in there for timing in timings[arm]] for arm in (name, LARGE.name)
    )
    right, theirs = (sum(timing.correct for timing in timings) for timings in (ours, large))
    ledgers = [timing.sample.ledger for timing in ours if timing.sample]
    judging = any(ledger.large.judging for ledger in ledgers)
    judged = sum(ledger.drafts for ledger in ledgers) if judging else 0
    alone = next(
        (each for condition, each in mine.items() if condition.concurrency == 1 and name in each),
        None,
    )
    return MethodRow(
        world,
        judge,
        name,
        len(ours),
        wilson(right, len(ours)),
        (theirs - right) / len(ours),
        0 if alone is None else len(alone[name]),
        None if alone is None else latency_ratio(alone[name], alone[LARGE.name]),
        sum(ledger.accepted for ledger in ledgers) / judged if judged else None,
    )


@dataclass(frozen=True, slots=True)
class AutoRow:
    """
    `auto` under one condition, on *n* problems.

    The *better* one is the fastest of the large model alone and the fixed methods that lose no more
    than `LOST`; its time and that of `auto` are divided by that of the large model alone, and that
    of `auto` by the better one's.
    """

    condition: Condition
    n: int
    better: str
    better_to_large: Interval
    auto_to_large: Interval
    auto_to_better: Interval
    share_alone: float

    @property
    def above(self) -> bool:
        """
        Whether `auto` misses the bar, against the better one or against the large model alone.
        """
        return max(self.auto_to_better.value, self.auto_to_large.value) > BAR


def auto_rows(measured: Measured) -> list[AutoRow]:
    """The conditions under which `auto` solved a problem."""
    lost = {(row.world, row.judge, row.name): row.lost for row in method_rows(measured)}
    rows: list[AutoRow] = []
    for condition, timings in measured.items():
        large = timings[LARGE.name]
        ours = timings.get(AUTO.name, ())
        fixed = [
            name
            for name in timings
            if name not in (AUTO.name, TWO_LARGE.name)
            and lost[*condition.pairing, name] <= LOST + 1e-9
        ]
        ratios = {
            name: ratio
            for name in fixed
            if (ratio := latency_ratio(timings[name], large)) is not None
        }
        if not ours or not ratios:
            continue
        better = min(ratios, key=lambda name: ratios[name].value)
        to_large = latency_ratio(ours, large)
        to_better = latency_ratio(ours, timings[better])
        if to_large is None or to_better is None:
            continue
        kept = [timing.sample.ledger for timing in ours if timing.sample]
        share = sum(x.large.kept for x in kept) / max(
            1, sum(x.large.kept + x.small.kept for x in kept)
        )
        rows.append(
            AutoRow(condition, len(ours), better, ratios[better], to_large, to_better, share)
        )
    return rows


def method_sheet(rows: Sequence[MethodRow]) -> Sheet:
    """Methods by judge."""
    return Sheet(
        (
            "world",
            "judge",
            "",
            "n",
            "accuracy",
            "lost",
            "time vs large, one at a time",
            "n",
            "accepted",
        ),
        tuple(
            (
                row.world,
                row.judge,
                row.name,
                str(row.n),
                written(row.accuracy, ".0%"),
                "" if row.name == LARGE.name else f"{row.lost:+.1%}",
                written(row.to_large),
                str(row.alone or ""),
                "" if row.accepted is None else f"{row.accepted:.0%}",
            )
            for row in rows
        ),
        "Methods by judge",
        left=3,
    )


def auto_sheet(rows: Sequence[AutoRow]) -> Sheet:
    """`auto` under every condition; what is above the bar is marked."""
    return Sheet(
        (
            *(
                "world",
                "judge",
                "at once",
                "n",
                "better",
                "better vs large",
                "auto vs large",
                "auto vs better",
            ),
            *("by large", ""),
        ),
        tuple(
            (
                row.condition.world,
                row.condition.judge,
                str(row.condition.concurrency),
                str(row.n),
                row.better,
                *map(written, (row.better_to_large, row.auto_to_large, row.auto_to_better)),
                f"{row.share_alone:.0%}",
                f"above {BAR}" if row.above else "",
            )
            for row in rows
        ),
        "auto against the better of large alone and the best fixed method",
        left=2,
    )


def verdict(rows: Sequence[AutoRow]) -> str:
    """How many conditions keep the bar, and which do not."""
    above = [f"{row.condition} ({row.auto_to_better.value:.2f})" for row in rows if row.above]
    kept = f"auto is within {BAR} under {len(rows) - len(above)} of {len(rows)} conditions"
    return f"{kept}; above: {'; '.join(above)}" if above else kept


SMALL_PRINT = (
    "Brackets are 95% intervals: Wilson's of accuracy, bootstrap over problems of ratios, which"
    " with a few problems is hardly more than their range. A judge is the large model of that"
    " name: its verdicts, steps and likelihoods. Methods by judge: n, accuracy, lost (points to"
    " the large model alone) and accepted drafts are over all loads. Better: the fastest of the"
    f" large model alone and the methods that lose at most {LOST:.0%} over all loads. By large: its"
    " share of the kept tokens."
)
