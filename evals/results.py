"""
The results of a run: statistics of every arm, its comparison with a baseline, and a bound.

The tables of a run are made here, too.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist, fmean, median
from typing import Any, Literal, TypeAlias

from rich.table import Table

from stepspec.orchestrator.chain import Party, Role
from stepspec.orchestrator.endpoints.metrics import Acceptance
from stepspec.orchestrator.ledger import COUNTED, Account

from .arms import LARGE, PLAIN, SMALL
from .grading.answers import extract_answer
from .grading.normal import normal
from .sample import Arm, ByRole, Outcome, Sample, sum_acceptances
from .store import Place

Z = 1.96  # standard deviations; 95% of a normal distribution lie within
RESAMPLES = 2000
BISECTIONS = 60  # of an interval: more than a float has bits
PARTIES: tuple[Party, ...] = ("small", "large", "critic")
ORACLE = "oracle (bound)"
BOUND = Arm.of(ORACLE, "")
ArmKind: TypeAlias = Literal["bound", "small", "large", "control", "method"]
KINDS: Mapping[str, ArmKind] = {
    ORACLE: "bound",
    SMALL.name: "small",
    LARGE.name: "large",
    PLAIN.name: "large",
}
"""The arms that are neither controls nor methods."""
OPTIONAL_OUTCOME_COLUMNS: tuple[Outcome, ...] = ("truncated", "ungraded", "failed", "degraded")


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
        """The interval of a share in percentage points, to a tenth, without a negative zero."""
        return Interval(
            value=_percent(self.value),
            low=_percent(self.low),
            high=_percent(self.high),
        )


def _percent(share: float) -> float:
    """Return *share* in percent, to a tenth. Adding zero turns a negative zero into a zero."""
    return round(100 * share, 1) + 0.0


@dataclass(frozen=True, slots=True)
class SeveralSamples:
    """What several samples of each problem are worth together."""

    samples: int
    """Samples of each problem, k."""
    best: Interval
    """pass@k: the share of problems with a right answer among their samples."""
    majority: Interval
    """maj@k: the share of problems whose most frequent answer is right; the first one of equals."""


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one arm over all problems, compared with the baseline on the same problems."""

    arm: Arm
    """The arm."""
    n: int
    """Samples."""
    accuracy: Interval
    """The share of right samples."""
    difference: Interval
    """The arm's accuracy minus the baseline's."""
    p: float | None
    """
    The probability from McNemar's exact test. None with several samples of each problem: such
    samples depend on each other.
    """
    seconds: float
    """Wall seconds of a sample, on average."""
    median: float
    """The median of the seconds of a sample."""
    tail: float
    """The 95th percentile of the seconds of a sample."""
    first: float | None
    """The median of the seconds to the first step. None: no sample has a step."""
    ratio: Interval
    """Wall time of all samples, divided by the baseline's on the same problems."""
    spent: Mapping[Party, Mapping[str, float]]
    """The mean of each field of a party's `Account`."""
    accept_rate: float | None
    """The share of accepted drafts; None for an arm that judges no drafts."""
    steps: Mapping[str, float]
    """Mean steps of a sample: "small" and "large" are kept ones, "rejected" and "lost" drafts."""
    outcomes: Mapping[Outcome, int]
    """How many samples had each outcome, and how many were degraded."""
    cut_right: int
    """How many truncated samples are right."""
    several: SeveralSamples | None = None
    """What several samples are worth together; None with one sample of each problem."""
    speculation: ByRole = field(default_factory=dict[Role, Acceptance])
    """The tokens that the servers drafted and accepted, by role."""

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def kind(self) -> ArmKind:
        """What the arm is. A bound is the oracle, which is computed and never ran."""
        return KINDS.get(self.name) or ("control" if self.arm.like else "method")

    def total(self, quantity: str, *parties: Party) -> float:
        """Return the sum of a *quantity* of the accounts of the *parties*, by default of all."""
        return sum(self.spent[party][quantity] for party in parties or PARTIES)

    @property
    def share_large_tokens(self) -> float:
        """The large model's share of the kept tokens."""
        return self.total("kept", "large") / (self.total("kept") or 1)

    @property
    def waste(self) -> float:
        """Discarded tokens as a share of the written ones."""
        discarded = self.total("discarded")
        return discarded / (self.total("kept") + discarded or 1)

    def count(self, outcome: Outcome) -> str:
        """Write the number of samples with this *outcome*, and how many truncated are right."""
        number = self.outcomes.get(outcome, 0)
        if outcome == "truncated" and self.cut_right:
            return f"{number} ({self.cut_right} right)"
        return str(number)

    def record(self) -> dict[str, Any]:
        """Return all figures, for files."""
        return {**asdict(self), "arm": self.arm.record()}


def complete(
    done: Mapping[Place, Sample],
    arms: Sequence[Arm],
    repeats: int,
) -> dict[str, dict[int, Sample]]:
    """
    Return the samples of the problems that all *arms* have solved *repeats* times.

    They are by the arm's name and the sample's number.
    """
    names = {arm.name for arm in arms}
    counts = Counter(number // repeats for number, name in done if name in names)
    needed = repeats * len(arms)
    numbers = [
        problem * repeats + repeat
        for problem, count in sorted(counts.items())
        if count == needed
        for repeat in range(repeats)
    ]
    return {arm.name: {number: done[number, arm.name] for number in numbers} for arm in arms}


def usual_baseline(arms: Iterable[Arm]) -> str:
    """Return the default baseline: ``plain`` if it is among *arms*, else the large model alone."""
    names = [arm.name for arm in arms]
    if PLAIN.name in names:
        return PLAIN.name
    return LARGE.name


def compare_arms(
    done: Mapping[Place, Sample],
    arms: Sequence[Arm],
    repeats: int = 1,
    baseline: str = "",
) -> list[Result]:
    """
    Compare the *arms*, and the oracle if both models ran alone, with the *baseline*.

    Return [] if no problem is complete.
    """
    numbered = complete(done, arms, repeats)
    by_arm = {name: list(samples.values()) for name, samples in numbered.items()}
    bound = oracle(by_arm)
    if bound:
        by_arm[ORACLE] = bound
        arms = (*arms, BOUND)
    return _compare(by_arm, arms, repeats, baseline or usual_baseline(arms))


def summarise(samples: Sequence[Sample], arms: Sequence[Arm]) -> list[Result]:
    """Compare *arms*, which all solved the same problems once, with the usual baseline."""
    by_arm = {arm.name: [sample for sample in samples if sample.arm == arm.name] for arm in arms}
    return _compare(by_arm, arms, 1, usual_baseline(arms))


def _compare(
    by_arm: Mapping[str, Sequence[Sample]],
    arms: Sequence[Arm],
    repeats: int,
    baseline: str,
) -> list[Result]:
    usual = by_arm[baseline]
    if not sum(sample.seconds for sample in usual):
        return []
    return [_result(arm, by_arm[arm.name], usual, repeats) for arm in arms]


def oracle(by_arm: Mapping[str, Sequence[Sample]]) -> list[Sample]:
    """
    Return the samples of a free and perfect choice between the two models for every problem.

    The oracle takes the small model's sample if that is right, otherwise the large model's. No
    router can be better. A method that mixes both models within a problem can. Return [] unless
    both models ran alone.
    """
    large = by_arm.get(LARGE.name) or by_arm.get(PLAIN.name)
    if not large or SMALL.name not in by_arm:
        return []
    pairs = zip(by_arm[SMALL.name], large, strict=True)
    chosen = [ours if ours.correct else theirs for ours, theirs in pairs]
    return [replace(sample, arm=ORACLE) for sample in chosen]


def _result(
    arm: Arm,
    ours: Sequence[Sample],
    theirs: Sequence[Sample],
    repeats: int,
) -> Result:
    seconds = [sample.seconds for sample in ours]
    their_seconds = [sample.seconds for sample in theirs]
    firsts = [sample.first for sample in ours if sample.first is not None]
    outcomes = Counter[Outcome](sample.outcome for sample in ours)
    outcomes.update("degraded" for sample in ours if sample.degraded)
    return Result(
        arm=arm,
        n=len(ours),
        accuracy=share([sample.correct for sample in ours], repeats),
        difference=paired_difference(ours, theirs, repeats),
        p=mcnemar(*disagreements(ours, theirs)) if repeats == 1 else None,
        seconds=fmean(seconds),
        median=median(seconds),
        tail=sorted(seconds)[int(0.95 * len(seconds))],
        first=median(firsts) if firsts else None,
        ratio=bootstrap_ratio(by_problem(seconds, repeats), by_problem(their_seconds, repeats)),
        spent={party: _mean_account(party, ours) for party in PARTIES},
        accept_rate=_accept_rate(ours),
        steps=_mean_steps(ours),
        outcomes=dict(outcomes),
        cut_right=sum(sample.correct for sample in ours if sample.outcome == "truncated"),
        several=several_samples(ours, repeats) if repeats > 1 else None,
        speculation=sum_acceptances(sample.speculation for sample in ours),
    )


def _mean_account(party: Party, samples: Sequence[Sample]) -> dict[str, float]:
    accounts: list[Account] = [getattr(sample.ledger, party) for sample in samples]
    return {name: fmean(getattr(account, name) for account in accounts) for name in COUNTED}


def _mean_steps(samples: Sequence[Sample]) -> dict[str, float]:
    steps = [step for sample in samples for step in sample.steps]
    counts = Counter(step.author if step.fate == "kept" else step.fate for step in steps)
    return {kind: counts[kind] / len(samples) for kind in ("small", "large", "rejected", "lost")}


def _accept_rate(samples: Sequence[Sample]) -> float | None:
    """Return the share of accepted drafts; None if nothing was drafted, or nothing judged."""
    ledgers = [sample.ledger for sample in samples]
    drafts = sum(ledger.drafts for ledger in ledgers)
    judging = any(getattr(ledger, party).judging for ledger in ledgers for party in PARTIES)
    judged = judging or any(step.repair for sample in samples for step in sample.steps)
    if not drafts or not judged:
        return None
    return sum(ledger.accepted for ledger in ledgers) / drafts


def by_time(results: Iterable[Result]) -> list[Result]:
    """Return the arms that ran, the fastest first."""
    ran = [result for result in results if result.kind != "bound"]
    return sorted(ran, key=lambda result: result.ratio.value)


def several_samples(samples: Sequence[Sample], repeats: int) -> SeveralSamples:
    """Return pass@k and maj@k of *samples*, *repeats* of each problem, which follow each other."""
    starts = range(0, len(samples), repeats)
    problems = [samples[start : start + repeats] for start in starts]
    solved = sum(any(sample.correct for sample in problem) for problem in problems)
    agreed = sum(_majority_right(problem) for problem in problems)
    return SeveralSamples(
        samples=repeats,
        best=wilson(solved, len(problems)),
        majority=wilson(agreed, len(problems)),
    )


def _majority_right(samples: Sequence[Sample]) -> bool:
    """Whether the most frequent answer is right. All right answers count as one answer."""
    counts = Counter(map(_spelled, samples))
    answer, _ = counts.most_common(1)[0]
    return answer == ""


def _spelled(sample: Sample) -> str:
    """Return "" for a right answer, else a text that equal wrong answers share."""
    if sample.correct:
        return ""
    return f"wrong: {normal(extract_answer(sample.answer, 'math'))}"


def disagreements(ours: Sequence[Sample], theirs: Sequence[Sample]) -> tuple[int, int]:
    """Count the problems that only *ours* solve, and the problems that only *theirs* solve."""
    pairs = list(zip(ours, theirs, strict=True))
    gained = sum(our.correct and not their.correct for our, their in pairs)
    lost = sum(their.correct and not our.correct for our, their in pairs)
    return gained, lost


def paired_difference(ours: Sequence[Sample], theirs: Sequence[Sample], repeats: int) -> Interval:
    """
    Return the accuracy of *ours* minus that of *theirs* on the same problems.

    The interval is Tango's score interval (`difference`). With several samples of each problem it
    is that of `bootstrap_mean`.
    """
    if repeats == 1:
        return difference(len(ours), *disagreements(ours, theirs))
    pairs = zip(ours, theirs, strict=True)
    gains = [int(our.correct) - int(their.correct) for our, their in pairs]
    return bootstrap_mean(gains, repeats, least=-1)


def by_problem(values: Sequence[float], repeats: int) -> list[float]:
    """Return the sum of each problem's *repeats*, which follow each other in *values*."""
    starts = range(0, len(values), repeats)
    return [sum(values[start : start + repeats]) for start in starts]


def share(values: Sequence[float], repeats: int = 1) -> Interval:
    """
    Return the mean of *values*, each 0 or 1.

    The interval is Wilson's. With several samples of each problem it is that of `bootstrap_mean`.
    """
    if repeats == 1:
        return wilson(sum(values), len(values))
    return bootstrap_mean(values, repeats, least=0)


def bootstrap_mean(values: Sequence[float], repeats: int, least: int) -> Interval:
    """
    Return the mean of *values*, which lie from *least* to 1, with *repeats* of every problem.

    The interval is a percentile bootstrap over the problems. The bootstrap also draws from two
    imagined problems, one with all values *least* and one with all values 1. They stand for kinds
    of problems that were too rare to be measured.
    """
    sums = [*by_problem(values, repeats), least * repeats, repeats]
    drawn = bootstrap_ratio(sums, [repeats] * len(sums))
    return Interval(fmean(values), drawn.low, drawn.high)


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
    Return the ratio of two sums over the same problems, with a percentile bootstrap over them.

    The percentiles are expanded, because plain ones are too narrow for few problems (Hesterberg
    2015).
    """
    rng = random.Random(0)
    n = len(ours)
    ratios: list[float] = []
    for _ in range(RESAMPLES):
        resample = rng.choices(range(n), k=n)
        total = sum(theirs[i] for i in resample)
        if total:  # A problem that is too long for the context takes no time at all.
            ratios.append(sum(ours[i] for i in resample) / total)
    ratios.sort()
    free = max(1, n - 1)
    # The quantile of Student's distribution, within 1% from six problems on.
    student = Z + 2.37 / free + 2.82 / free**2
    beyond = int(NormalDist().cdf(-student * math.sqrt(n / free)) * len(ratios))
    return Interval(sum(ours) / sum(theirs), low=ratios[beyond], high=ratios[-1 - beyond])


def mcnemar(gained: int, lost: int) -> float:
    """
    Return the two-sided probability of a split at least this uneven between *gained* and *lost*.

    It assumes that gains and losses are equally likely (McNemar 1947). The binomial distribution
    replaces McNemar's approximation.
    """
    n = gained + lost
    splits = sum(math.comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * splits / (1 << n))


def difference(n: int, gained: float, lost: float) -> Interval:
    """
    Return the difference of two shares of the same *n* problems, with a score interval.

    The interval is Tango's (1998). It has a width even if both arms agree on every problem, as a
    bootstrap interval has not.
    """
    value = (gained - lost) / n

    def edge(outer: float, sign: int) -> float:
        inner = value
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            if sign * _statistic(n, gained, lost, middle) > -Z:
                inner = middle
            else:
                outer = middle
        return inner

    return Interval(value, low=edge(-1.0, -1), high=edge(1.0, 1))


def _statistic(n: int, gained: float, lost: float, true: float) -> float:
    """Return the standard errors between the observed difference and the assumed *true* one."""
    b = (2 * n - gained + lost) * true - gained - lost
    q = (math.sqrt(max(0.0, b * b + 8 * n * lost * true * (1 - true))) - b) / (4 * n)
    variance = n * (2 * q + true * (1 - true))
    above = gained - lost - n * true
    if variance > 0:
        return above / math.sqrt(variance)
    if above == 0:
        return 0.0
    return math.copysign(math.inf, above)


def tables(results: Sequence[Result], baseline: str = LARGE.name) -> list[Table]:
    """
    Return tables with one row for each arm, compared with the *baseline*.

    The first table has the accuracy, the second one time and tokens. With several samples of each
    problem, a third one has pass@k and maj@k. Each fits into 80 columns unless an arm has a long
    name. `small_print` explains the columns.
    """
    parts = [
        accuracy_rows(results, baseline),
        [_cost(result, baseline) for result in results],
        [_several(result.name, result.several) for result in results if result.several],
    ]
    return [_aligned(rows) for rows in parts if rows]


def _aligned(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return a table. The keys of a row are the columns; the first one has the names of arms."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    name, *figures = rows[0]
    rendered.add_column(name, overflow="fold")  # A name may take several lines.
    for column in figures:
        rendered.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        rendered.add_row(*row.values())
    return rendered


def accuracy_rows(results: Sequence[Result], baseline: str) -> list[dict[str, str]]:
    """Return the rows of the table of accuracy. Outcomes that an arm has get columns."""
    outcomes: list[Outcome] = [
        outcome
        for outcome in OPTIONAL_OUTCOME_COLUMNS
        if any(outcome in result.outcomes for result in results)
    ]
    return [
        _right(result, baseline) | {outcome: result.count(outcome) for outcome in outcomes}
        for result in results
    ]


def _right(result: Result, baseline: str) -> dict[str, str]:
    count = str(result.n)
    if result.several is not None:
        samples = result.several.samples
        count = f"{result.n // samples} x {samples}"
    against = ""
    p = ""
    if result.name != baseline:
        against = f"{result.difference.points:+.1f}"
        p = "" if result.p is None else f"{result.p:.2g}"
    return {
        "": result.name,
        "n": count,
        "accuracy": f"{result.accuracy:.1%}",
        f"against {_short(baseline)}": against,
        "p": p,
    }


def _short(baseline: str) -> str:
    return baseline.removesuffix(" alone")


def _cost(result: Result, baseline: str) -> dict[str, str]:
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


def _several(name: str, several: SeveralSamples) -> dict[str, str]:
    k = several.samples
    return {"": name, f"pass@{k}": f"{several.best:.1%}", f"maj@{k}": f"{several.majority:.1%}"}


def small_print(baseline: str) -> str:
    """Explain the columns of `tables`."""
    if baseline == PLAIN.name:
        return f"{SMALL_PRINT} plain: the large model as one ordinary request."
    return SMALL_PRINT


SMALL_PRINT = (
    "Brackets: 95% intervals, over problems. n: problems x samples. docs/evals.md explains each"
    " column."
)
