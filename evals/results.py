"""
The results of a run: the figures of every arm, compared with those of a baseline arm.

An oracle is added as one more arm: it chooses the better model for each problem. So it is an upper
bound for methods that choose one model for each problem.
This module also makes the tables of a run.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median
from typing import Literal, TypeAlias

from rich.table import Table

from stepspec.orchestrator.chain import Party
from stepspec.orchestrator.ledger import COUNTED, Account

from .arms import LARGE, PLAIN, SMALL
from .grading.answers import extract_answer
from .grading.normal import normal
from .sample import Outcome, Sample
from .store import Place

Z = 1.96  # standard deviations from the mean; 95% of a normal distribution lie within them
RESAMPLES = 2000  # resamples of a bootstrap
BISECTIONS = 60  # steps of a bisection; a float has 53 bits, and more steps change nothing
RIGHT = ""  # the key of every right answer, as `_answer_key` returns it
PARTIES: tuple[Party, ...] = ("small", "large", "critic")
ORACLE = "oracle (bound)"
ArmKind: TypeAlias = Literal["bound", "small", "large", "method"]
KINDS: Mapping[str, ArmKind] = {
    ORACLE: "bound",
    SMALL.name: "small",
    LARGE.name: "large",
    PLAIN.name: "large",
}
"""The kind of each arm that is no method, by its name."""
OPTIONAL_OUTCOME_COLUMNS: tuple[Outcome, ...] = ("truncated", "ungraded", "failed", "degraded")
"""The outcomes that have a column in the table only if some arm has them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """
    A figure with its 95% confidence interval.

    ``f"{interval:.2f}"`` gives ``0.90 [0.85, 0.95]``.
    """

    value: float
    """The figure."""
    low: float
    """The lower end of the interval."""
    high: float
    """The upper end of the interval."""

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    @property
    def points(self) -> Interval:
        """The interval of a share in percentage points."""
        return Interval(100 * self.value, 100 * self.low, 100 * self.high)


@dataclass(frozen=True, slots=True)
class SeveralSamples:
    """pass@k and maj@k of an arm that solved each problem k times."""

    samples: int
    """The number of samples of each problem, k."""
    best: Interval
    """pass@k: the share of problems of which at least one sample is right."""
    majority: Interval
    """
    maj@k: the share of problems whose most frequent answer is right.

    If several answers are the most frequent, the first of them counts.
    """


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one arm over all problems, compared with the baseline on the same problems."""

    name: str
    """The name of the arm."""
    n: int
    """The number of samples."""
    accuracy: Interval
    """The share of right samples."""
    gained: int
    """The number of samples that this arm has right and the baseline has wrong."""
    lost: int
    """The number of samples that the baseline has right and this arm has wrong."""
    difference: Interval
    """The arm's accuracy minus the baseline's."""
    seconds: float
    """The mean of the wall seconds of a sample."""
    median: float
    """The median of the seconds of a sample."""
    tail: float
    """The 95th percentile of the seconds of a sample."""
    first: float | None
    """The median of the seconds to the first step. None: no sample has a step."""
    ratio: Interval
    """The wall time of all samples, divided by the wall time of the baseline's samples."""
    spent: Mapping[Party, Mapping[str, float]]
    """For each party and each field of its `Account`: the mean over all samples."""
    accept_rate: float | None
    """The share of accepted drafts; None for an arm that judges no drafts."""
    steps: Mapping[str, float]
    """
    The mean number of steps per sample.

    "small" and "large" are the kept steps of a model. "rejected" and "lost" are drafts.
    """
    outcomes: Mapping[Outcome, int]
    """The number of samples with each outcome. A degraded sample counts under two outcomes."""
    several: SeveralSamples | None = None
    """pass@k and maj@k; None with one sample of each problem."""

    @property
    def kind(self) -> ArmKind:
        """The kind of the arm. The oracle is a "bound", because it is computed and not run."""
        return KINDS.get(self.name, "method")

    def total(self, quantity: str, *parties: Party) -> float:
        """Return the sum of a *quantity*, such as "kept", over *parties* (by default over all)."""
        return sum(self.spent[party][quantity] for party in parties or PARTIES)

    @property
    def share_large_tokens(self) -> float:
        """The large model's share of the kept tokens."""
        return self.total("kept", "large") / (self.total("kept") or 1)

    @property
    def waste(self) -> float:
        """The discarded tokens as a share of all written tokens."""
        discarded = self.total("discarded")
        return discarded / (self.total("kept") + discarded or 1)


def complete(
    done: Mapping[Place, Sample],
    arms: Sequence[str],
    repeats: int,
) -> dict[str, dict[int, Sample]]:
    """
    Return the samples of the complete problems, by the arm's name and the sample's number.

    A problem is complete if *done* has *repeats* samples of it by each of *arms*.
    """
    # Problem i has the samples i * repeats to (i + 1) * repeats - 1.
    counts = Counter(number // repeats for number, name in done if name in arms)
    needed = repeats * len(arms)
    numbers = [
        problem * repeats + repeat
        for problem, count in sorted(counts.items())
        if count == needed
        for repeat in range(repeats)
    ]
    return {name: {number: done[number, name] for number in numbers} for name in arms}


def compare_arms(
    done: Mapping[Place, Sample],
    arms: Sequence[str],
    repeats: int = 1,
    baseline: str = "",
) -> list[Result]:
    """
    Compare each of *arms* with the *baseline*, which is one of *arms*. "": the first of *arms*.

    If both models ran alone, the oracle is one more arm. Return [] if no problem is complete (see
    `complete`), or if no complete problem fits into the context.
    """
    by_arm = {name: list(kept.values()) for name, kept in complete(done, arms, repeats).items()}
    theirs = by_arm[baseline or arms[0]]
    # A sample that is too long for the context has 0 seconds. If the baseline has only such
    # samples, there is nothing to compare with.
    if not any(sample.seconds for sample in theirs):
        return []
    bound = oracle(by_arm)
    if bound:
        by_arm[ORACLE] = bound
    return [_result(name, samples, theirs, repeats) for name, samples in by_arm.items()]


def oracle(by_arm: Mapping[str, Sequence[Sample]]) -> list[Sample]:
    """
    Return the samples of the oracle, which chooses the best model for each problem. The choice
    costs no time.

    The oracle takes the small model's sample if this sample is right, otherwise the large model's
    sample. No method that chooses one model for each problem can be better. A method that uses both
    models within one problem can be better. Return [] unless both models ran alone.
    """
    small = by_arm.get(SMALL.name)
    large = by_arm.get(LARGE.name) or by_arm.get(PLAIN.name)
    if not small or not large:
        return []
    return [
        replace(cheap if cheap.correct else costly, arm=ORACLE)
        for cheap, costly in zip(small, large, strict=True)
    ]


def _result(
    name: str,
    samples: Sequence[Sample],
    baseline: Sequence[Sample],
    repeats: int,
) -> Result:
    """Compute the figures of *name* from its *samples* and the samples of the *baseline*."""
    seconds = [sample.seconds for sample in samples]
    baseline_seconds = [sample.seconds for sample in baseline]
    firsts = [sample.first for sample in samples if sample.first is not None]
    outcomes = Counter[Outcome](sample.outcome for sample in samples)
    outcomes.update("degraded" for sample in samples if sample.degraded)
    pairs = zip(samples, baseline, strict=True)
    gains = [int(ours.correct) - int(theirs.correct) for ours, theirs in pairs]
    gained = gains.count(1)
    lost = gains.count(-1)
    right = [int(sample.correct) for sample in samples]
    if repeats == 1:
        accuracy = wilson(sum(right), len(right))
        apart = difference(len(gains), gained, lost)
    else:
        sizes = [repeats] * (len(samples) // repeats)
        accuracy = bootstrap_share(sums(right, repeats), sizes, least=0)
        apart = bootstrap_share(sums(gains, repeats), sizes, least=-1)
    return Result(
        name=name,
        n=len(samples),
        accuracy=accuracy,
        gained=gained,
        lost=lost,
        difference=apart,
        seconds=fmean(seconds),
        median=median(seconds),
        tail=sorted(seconds)[int(0.95 * len(seconds))],
        first=median(firsts) if firsts else None,
        ratio=bootstrap_ratio(sums(seconds, repeats), sums(baseline_seconds, repeats)),
        spent={party: _mean_account(party, samples) for party in PARTIES},
        accept_rate=_accept_rate(samples),
        steps=_mean_steps(samples),
        outcomes=dict(outcomes),
        several=several_samples(samples, repeats) if repeats > 1 else None,
    )


def _mean_account(party: Party, samples: Sequence[Sample]) -> dict[str, float]:
    accounts: list[Account] = [getattr(sample.ledger, party) for sample in samples]
    return {name: fmean(getattr(account, name) for account in accounts) for name in COUNTED}


def _mean_steps(samples: Sequence[Sample]) -> dict[str, float]:
    steps = [step for sample in samples for step in sample.steps]
    counts = Counter(step.author if step.fate == "kept" else step.fate for step in steps)
    return {kind: counts[kind] / len(samples) for kind in ("small", "large", "rejected", "lost")}


def _accept_rate(samples: Sequence[Sample]) -> float | None:
    """Return the share of accepted drafts. None: no draft was judged."""
    drafts = sum(sample.ledger.drafts for sample in samples)
    accepted = sum(sample.ledger.accepted for sample in samples)
    return accepted / drafts if drafts else None


def by_time(results: Iterable[Result]) -> list[Result]:
    """Return the arms that ran, the fastest first."""
    ran = [result for result in results if result.kind != "bound"]
    return sorted(ran, key=lambda result: result.ratio.value)


def several_samples(samples: Sequence[Sample], repeats: int) -> SeveralSamples:
    """
    Return pass@k and maj@k.

    *samples* has *repeats* samples of each problem, one after another.
    """
    answers = list(map(_answer_key, samples))
    problems = [answers[start : start + repeats] for start in range(0, len(answers), repeats)]
    most_frequent = [Counter(problem).most_common(1)[0][0] for problem in problems]
    return SeveralSamples(
        samples=repeats,
        best=wilson(sum(RIGHT in problem for problem in problems), len(problems)),
        majority=wilson(most_frequent.count(RIGHT), len(problems)),
    )


def _answer_key(sample: Sample) -> str:
    """Return a key for counting answers: `RIGHT`, or the wrong answer in its normal form."""
    if sample.correct:
        return RIGHT
    return f"wrong: {normal(extract_answer(sample.answer, 'math'))}"


def sums(values: Sequence[float], repeats: int) -> list[float]:
    """Return the sum of each problem's values. Each problem has *repeats* values in a row."""
    starts = range(0, len(values), repeats)
    return [sum(values[start : start + repeats]) for start in starts]


def bootstrap_share(totals: Sequence[float], sizes: Sequence[float], least: int) -> Interval:
    """
    Return the mean of the values of all problems, with a bootstrap interval over the problems.

    A problem has the sum of its values in *totals*, and their number in *sizes*. Each value is from
    *least* to 1. The bootstrap also draws from two imagined problems. All values of the first are
    *least*, all values of the second are 1. These two stand for kinds of problems that were too
    rare to be measured.
    """
    size = fmean(sizes)
    drawn = bootstrap_ratio([*totals, least * size, size], [*sizes, size, size])
    return Interval(sum(totals) / sum(sizes), drawn.low, drawn.high)


def wilson(successes: float, n: float) -> Interval:
    """Return the share of *successes* in *n* trials with Wilson's score interval (1927)."""
    value = successes / n
    weight = Z * Z / n
    centre = (value + weight / 2) / (1 + weight)
    spread = math.sqrt(value * (1 - value) / n + weight / (4 * n))
    half = Z / (1 + weight) * spread
    return Interval(value, low=max(0.0, centre - half), high=min(1.0, centre + half))


def bootstrap_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """
    Return the sum of *ours* divided by the sum of *theirs*, with a percentile bootstrap interval.

    Both have one value for each problem, and the bootstrap draws problems. The percentiles are
    further out than 2.5% and 97.5%, because with few problems the interval between these two is
    too narrow (Hesterberg 2015).
    """
    rng = random.Random(0)
    n = len(ours)
    ratios: list[float] = []
    for _ in range(RESAMPLES):
        resample = rng.choices(range(n), k=n)
        total = sum(theirs[i] for i in resample)
        if total:  # The total is 0 if all drawn problems were too long for the context.
            ratios.append(sum(ours[i] for i in resample) / total)
    ratios.sort()
    degrees_of_freedom = max(1, n - 1)
    # This approximates the quantile of Student's distribution. The error is below 1% from n = 6 on.
    student = Z + 2.37 / degrees_of_freedom + 2.82 / degrees_of_freedom**2
    # The variance of a bootstrap of n values is too small by the factor (n - 1) / n.
    tail = NormalDist().cdf(-student * math.sqrt(n / degrees_of_freedom))
    skipped = int(tail * len(ratios))  # at each end
    return Interval(
        sum(ours) / sum(theirs),
        low=ratios[skipped],
        high=ratios[-1 - skipped],
    )


def difference(n: int, gained: float, lost: float) -> Interval:
    """
    Return the difference of two shares of the same *n* problems, with Tango's interval (1998).

    The interval has a width even if both arms agree on every problem. A bootstrap interval would
    then have the width 0.
    """
    value = (gained - lost) / n

    def edge(outer: float) -> float:
        # Find the true difference that is Z standard errors away from the observed difference. The
        # result lies between `inner` (inside the interval) and `outer` (outside).
        inner = value
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            is_inside = abs(_statistic(n, gained, lost, middle)) < Z
            if is_inside:
                inner = middle
            else:
                outer = middle
        return inner

    return Interval(value, low=edge(-1.0), high=edge(1.0))


def _statistic(n: int, gained: float, lost: float, true: float) -> float:
    """Return how many standard errors the observed difference is above the *true* difference."""
    # As in Tango 1998, q is the most likely share of losses if *true* is the true difference.
    b = (2 * n - gained + lost) * true - gained - lost
    q = (math.sqrt(max(0.0, b * b + 8 * n * lost * true * (1 - true))) - b) / (4 * n)
    variance = n * (2 * q + true * (1 - true))
    above = gained - lost - n * true
    if variance > 0:
        return above / math.sqrt(variance)
    if above == 0:
        return 0.0
    return math.copysign(math.inf, above)


def tables(results: Sequence[Result], baseline: str) -> list[Table]:
    """
    Return tables with one row for each arm, compared with the *baseline*.

    The first table has the accuracy. The second table has time and tokens. With several samples of
    each problem, a third table has pass@k and maj@k. Each table fits into 80 columns unless an arm
    has a long name. `SMALL_PRINT` explains the columns.
    """
    parts = [
        accuracy_rows(results, baseline),
        [_cost_row(result, baseline) for result in results],
        [_several_row(result.name, result.several) for result in results if result.several],
    ]
    return [aligned(rows) for rows in parts if rows]


def aligned(rows: Sequence[Mapping[str, str]]) -> Table:
    """Make a table. The keys of a row name the columns. The first column has the arms' names."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    name, *figures = rows[0]
    rendered.add_column(name, overflow="fold")  # A long name takes several lines.
    for column in figures:
        rendered.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        rendered.add_row(*row.values())
    return rendered


def accuracy_rows(results: Sequence[Result], baseline: str) -> list[dict[str, str]]:
    """Return the rows of the table of accuracy. An outcome has a column if some arm has it."""
    outcomes: list[Outcome] = [
        outcome
        for outcome in OPTIONAL_OUTCOME_COLUMNS
        if any(outcome in result.outcomes for result in results)
    ]
    return [
        _accuracy_row(result, baseline)
        | {outcome: str(result.outcomes.get(outcome, 0)) for outcome in outcomes}
        for result in results
    ]


def _accuracy_row(result: Result, baseline: str) -> dict[str, str]:
    count = str(result.n)
    if result.several is not None:
        samples = result.several.samples
        count = f"{result.n // samples} x {samples}"
    is_baseline = result.name == baseline
    return {
        "": result.name,
        "n": count,
        "accuracy": f"{result.accuracy:.1%}",
        f"against {_short(baseline)}": "" if is_baseline else f"{result.difference.points:+z.1f}",
    }


def _short(baseline: str) -> str:
    """Return the short name of the *baseline* for the head of a column."""
    return baseline.removesuffix(" alone")


def _cost_row(result: Result, baseline: str) -> dict[str, str]:
    judging = result.total("judging")
    return {
        "": result.name,
        "seconds": f"{result.seconds:.2f}",
        f"vs {_short(baseline)}": f"{result.ratio:.2f}",
        "small": f"{result.total('kept', 'small'):.0f}",
        "large": f"{result.total('kept', 'large'):.0f}",
        "wasted": f"{result.total('discarded'):.0f}",
        "judging": f"{judging:.0f}" if judging else "",
        "accepted": "" if result.accept_rate is None else f"{result.accept_rate:.0%}",
    }


def _several_row(name: str, several: SeveralSamples) -> dict[str, str]:
    k = several.samples
    return {"": name, f"pass@{k}": f"{several.best:.1%}", f"maj@{k}": f"{several.majority:.1%}"}


SMALL_PRINT = (
    "Brackets: 95% intervals, over problems. n: problems x samples. docs/evals.md explains each"
    " column. plain: the large model as one ordinary request."
)
"""Explains the columns of `tables`."""
