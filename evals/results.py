"""The results of a run: statistics of every arm, its comparison with a baseline, and a bound."""

from __future__ import annotations

import csv
import io
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, median

from rich.table import Table

from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.endpoints.metrics import Acceptance

from .arms import LARGE, PLAIN, SMALL
from .grading.answers import extract_answer
from .grading.normal import normal
from .sample import Arm, ByRole, Outcome, Sample, sum_acceptances
from .store import Place

Z = 1.96  # standard deviations; 95% of a normal distribution lie within
RESAMPLES = 2000
BISECTIONS = 60  # of an interval: more than a float has bits
ORACLE = "oracle (bound)"
TOKENS = ("small", "large", "wasted", "judging", "accepted")  # columns of tokens, and of drafts
# columns where an arm has any
NOTED_OUTCOMES: tuple[Outcome, ...] = ("truncated", "ungraded", "failed", "degraded")


@dataclass(frozen=True, slots=True)
class Interval:
    """
    A figure with its 95% confidence interval: ``f"{interval:.2f}"`` is such as ``0.90 [0.85,
    0.95]``.
    """

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    @property
    def points(self) -> Interval:
        """The interval of a share in percentage points, to a tenth, without a negative zero."""
        return Interval(*(round(100 * edge, 1) + 0.0 for edge in (self.value, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class Result:
    """
    The figures of one arm over all problems; *seconds* is the mean wall time of a problem.

    The ratios divide sums of wall time over the same problems: *ratio* by that of the baseline,
    *ratio_to_floor* by the time to write every kept token on the model that wrote it. *accept_rate*
    is a share of drafts, None for an arm that judges none, *waste* a share of written tokens,
    *judge_tokens* the tokens read or written to judge one problem, without those in a prefix cache.
    *speculation* counts, by role, the tokens that servers drafted and accepted.
    """

    name: str
    n: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    seconds: float
    ratio: float
    ratio_interval: tuple[float, float]
    ratio_to_floor: float | None
    share_large_tokens: float
    accept_rate: float | None
    waste: float
    judge_tokens: float
    speculation: ByRole = field(default_factory=dict[Role, Acceptance])


@dataclass(frozen=True, slots=True)
class Tokens:
    """
    Mean tokens of a sample: kept ones by author (*small*, *large*), discarded ones, and those spent
    on judging.
    """

    small: float
    large: float
    wasted: float
    judging: float


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
class ArmSummary:
    """
    The result of one arm, and its comparison with the baseline on the same problems.

    *difference* is that of the accuracies. *p* is from McNemar's exact test; None with several
    samples per problem, which depend on each other. *outcomes* counts outcomes and degraded
    samples, *cut_right* truncated right ones.
    """

    result: Result
    difference: Interval
    p: float | None
    tokens: Tokens
    outcomes: Mapping[Outcome, int]
    cut_right: int
    several: SeveralSamples | None = None
    """None with one sample of each problem."""

    def count(self, outcome: Outcome) -> str:
        """
        Write how many samples have this *outcome*, and how many of the truncated ones are right.
        """
        right = f" ({self.cut_right} right)" if outcome == "truncated" and self.cut_right else ""
        return f"{self.outcomes.get(outcome, 0)}{right}"


def complete(
    done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int
) -> dict[str, list[Sample]]:
    """
    The samples of each arm, in order, of the problems that all arms have solved *repeats* times.
    """
    names = {arm.name for arm in arms}
    have = Counter(number // repeats for number, name in done if name in names)
    problems = sorted(problem for problem, count in have.items() if count == repeats * len(arms))
    numbers = [problem * repeats + repeat for problem in problems for repeat in range(repeats)]
    return {arm.name: [done[number, arm.name] for number in numbers] for arm in arms}


def usual_baseline(arms: Iterable[Arm]) -> str:
    """
    The name of the arm that others are compared with by default: ``plain``, or else the large model
    alone.
    """
    return PLAIN.name if any(arm.name == PLAIN.name for arm in arms) else LARGE.name


def compare_arms(
    done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int = 1, baseline: str = ""
) -> list[ArmSummary]:
    """
    Compare the *arms* with the *baseline*, and the oracle where both models ran; empty if no
    problem is complete.
    """
    by_arm = complete(done, arms, repeats)
    shown = list(arms)
    baseline = baseline or usual_baseline(arms)
    if bound := oracle(by_arm):
        by_arm[ORACLE] = bound
        shown.append(Arm.of(ORACLE, ""))
    if not sum(sample.seconds for sample in by_arm[baseline]):
        return []
    samples = [sample for each in by_arm.values() for sample in each]
    results = summarise(samples, shown, repeats=repeats, baseline=baseline)
    return [_summary(result, by_arm[result.name], by_arm[baseline], repeats) for result in results]


def oracle(by_arm: Mapping[str, Sequence[Sample]]) -> list[Sample]:
    """
    The samples of a free and perfect choice between the two models for every problem; none unless
    both ran alone.

    It takes the small model's sample where that is right, otherwise the large one's. No router can
    be better; a method that mixes both models within a problem can.
    """
    large = by_arm.get(LARGE.name) or by_arm.get(PLAIN.name) or ()
    if not large or SMALL.name not in by_arm:
        return []
    pairs = zip(by_arm[SMALL.name], large, strict=True)
    return [replace(ours if ours.correct else theirs, arm=ORACLE) for ours, theirs in pairs]


def _summary(
    result: Result, ours: Sequence[Sample], theirs: Sequence[Sample], repeats: int
) -> ArmSummary:
    gained, lost = disagreements(ours, theirs)
    apart = paired_difference(ours, theirs, repeats)
    p = mcnemar(gained, lost) if repeats == 1 else None
    cut = sum(sample.correct for sample in ours if sample.outcome == "truncated")
    outcomes = Counter[Outcome](s.outcome for s in ours)
    outcomes.update("degraded" for s in ours if s.degraded)
    several = None if repeats == 1 else several_samples(ours, repeats)
    return ArmSummary(result, apart, p, _tokens(ours), dict(outcomes), cut, several)


def several_samples(samples: Sequence[Sample], repeats: int) -> SeveralSamples:
    """Return pass@k and maj@k of *samples*, *repeats* of each problem, which follow each other."""
    problems = [samples[at : at + repeats] for at in range(0, len(samples), repeats)]
    best = sum(any(sample.correct for sample in each) for each in problems)
    majority = sum(_majority_right(each) for each in problems)
    n = len(problems)
    return SeveralSamples(repeats, wilson(best, n), wilson(majority, n))


def _majority_right(samples: Sequence[Sample]) -> bool:
    """Whether the most frequent answer is right. All right answers are the same one."""
    answers = ["" if each.correct else f"wrong: {_spelled(each)}" for each in samples]
    counts = Counter(answers)
    return max(answers, key=lambda answer: counts[answer]) == ""


def _spelled(sample: Sample) -> str:
    return normal(extract_answer(sample.answer, "math"))


def disagreements(ours: Sequence[Sample], theirs: Sequence[Sample]) -> tuple[int, int]:
    """Count the samples that only *ours* have right, and those that only *theirs* have right."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(a.correct and not b.correct for a, b in pairs), sum(
        b.correct and not a.correct for a, b in pairs
    )


def paired_difference(ours: Sequence[Sample], theirs: Sequence[Sample], repeats: int) -> Interval:
    """
    The accuracy of *ours* minus that of *theirs* on the same problems, with its 95% interval.

    The interval is Tango's score interval (`difference`), with several samples per problem that of
    `bootstrap_mean`.
    """
    if repeats == 1:
        return difference(len(ours), *disagreements(ours, theirs))
    gains = [int(a.correct) - int(b.correct) for a, b in zip(ours, theirs, strict=True)]
    return bootstrap_mean(gains, repeats, least=-1)


def _tokens(samples: Sequence[Sample]) -> Tokens:
    ledgers = [sample.ledger for sample in samples]
    return Tokens(
        fmean(x.small.kept for x in ledgers),
        fmean(x.large.kept for x in ledgers),
        fmean(x.small.discarded + x.large.discarded for x in ledgers),
        fmean(x.small.judging + x.large.judging + x.critic.judging for x in ledgers),
    )


def summarise(
    samples: Sequence[Sample], arms: Sequence[Arm], *, repeats: int = 1, baseline: str = ""
) -> list[Result]:
    """
    Compare *arms*, the *baseline* among them, on the problems that all of them solved.

    With *repeats* of every problem, which follow each other, the bootstrap resamples problems.
    """
    by_arm = {arm.name: [s for s in samples if s.arm == arm.name] for arm in arms}
    pace = token_seconds(by_arm)
    usual = [s.seconds for s in by_arm[baseline or usual_baseline(arms)]]
    return [_result(arm.name, by_arm[arm.name], usual, pace, repeats) for arm in arms]


def token_seconds(by_arm: Mapping[str, Sequence[Sample]]) -> dict[Role, float]:
    """Seconds per token of each model alone: the median over the problems of the solo arms."""
    solo: dict[Role, Sequence[Sample]] = {
        "small": by_arm.get(SMALL.name, ()),
        "large": by_arm.get(LARGE.name) or by_arm.get(PLAIN.name, ()),
    }
    paces: dict[Role, list[float]] = {
        role: [s.pace[role] for s in samples if role in s.pace] for role, samples in solo.items()
    }
    return {role: median(seconds) for role, seconds in paces.items() if seconds}


def _result(
    name: str,
    samples: Sequence[Sample],
    usual: Sequence[float],
    pace: Mapping[Role, float],
    repeats: int,
) -> Result:
    ledgers = [s.ledger for s in samples]
    seconds = [s.seconds for s in samples]
    accuracy = share([s.correct for s in samples], repeats)
    ratio = bootstrap_ratio(by_problem(seconds, repeats), by_problem(usual, repeats))
    kept_large = sum(x.large.kept for x in ledgers)
    kept_small = sum(x.small.kept for x in ledgers)
    # a nested pair's models write the small tokens, each at a pace of its own
    nested = any(x.nested for x in ledgers)
    floor = None if nested else _floor(kept_small, kept_large, pace)
    written = sum(x.large.written + x.small.written for x in ledgers)
    drafts = sum(x.drafts for x in ledgers)
    repaired = any(step.repair for s in samples for step in s.steps)
    judging = [x.large.judging + x.small.judging + x.critic.judging for x in ledgers]
    return Result(
        name=name,
        n=len(samples),
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        seconds=fmean(seconds),
        ratio=ratio.value,
        ratio_interval=(ratio.low, ratio.high),
        ratio_to_floor=sum(seconds) / floor if floor else None,
        share_large_tokens=kept_large / max(1, kept_large + kept_small),
        accept_rate=(
            sum(x.accepted for x in ledgers) / drafts
            if drafts and (repaired or any(judging))
            else None
        ),
        waste=sum(x.large.discarded + x.small.discarded for x in ledgers) / max(1, written),
        judge_tokens=fmean(judging),
        speculation=sum_acceptances(s.speculation for s in samples),
    )


def _floor(small: int, large: int, pace: Mapping[Role, float]) -> float | None:
    """
    Seconds to write the *small* and *large* tokens on their models; None if the pace of a model is
    unknown.
    """
    if (small and "small" not in pace) or (large and "large" not in pace):
        return None
    return small * pace.get("small", 0.0) + large * pace.get("large", 0.0)


def by_problem(values: Sequence[float], repeats: int) -> list[float]:
    """Add up the *repeats* of every problem."""
    return [sum(values[at : at + repeats]) for at in range(0, len(values), repeats)]


def share(values: Sequence[float], repeats: int = 1) -> Interval:
    """
    The mean of *values*, 0 or 1, with Wilson's interval; with several samples per problem,
    `bootstrap_mean`'s.
    """
    return (
        wilson(sum(values), len(values))
        if repeats == 1
        else bootstrap_mean(values, repeats, least=0)
    )


def bootstrap_mean(values: Sequence[float], repeats: int, least: int) -> Interval:
    """
    The mean of *values*, from *least* to 1, *repeats* of every problem; percentile bootstrap over
    the problems.

    Two more are drawn from, of which all values are *least* or 1: problems of a kind too rare to be
    among those solved.
    """
    sums = [*by_problem(values, repeats), least * repeats, repeats]
    drawn = bootstrap_ratio(sums, [repeats] * len(sums))
    return Interval(fmean(values), drawn.low, drawn.high)


def wilson(successes: float, n: float) -> Interval:
    """
    Wilson's score interval (1927) at 95% for a share, of which *successes* in *n* trials were
    observed.
    """
    value = successes / n
    centre = (value + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(value * (1 - value) / n + Z * Z / (4 * n * n))
    return Interval(value, max(0.0, centre - half), min(1.0, centre + half))


def bootstrap_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """
    The ratio of two sums over the same problems; percentile bootstrap over the problems.

    The percentiles are expanded for few problems, where plain ones are too narrow (Hesterberg
    2015).
    """
    rng = random.Random(0)
    n = len(ours)
    ratios: list[float] = []
    for _ in range(RESAMPLES):
        resample = rng.choices(range(n), k=n)
        # A problem that is too long takes no time at all.
        if total := sum(theirs[i] for i in resample):
            ratios.append(sum(ours[i] for i in resample) / total)
    ratios.sort()
    free = max(1, n - 1)
    student = Z + 2.37 / free + 2.82 / free**2  # its quantile, within 1% from six problems on
    beyond = int(NormalDist().cdf(-student * math.sqrt(n / free)) * len(ratios))
    return Interval(sum(ours) / sum(theirs), ratios[beyond], ratios[-1 - beyond])


def mcnemar(gained: int, lost: int) -> float:
    """
    The exact two-sided probability of a split at least this uneven if gains and losses were equally
    likely.

    McNemar 1947, with the binomial distribution in place of its approximation.
    """
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1)) / (1 << n)
    return min(1.0, 2 * tail)


def difference(n: int, gained: float, lost: float) -> Interval:
    """
    The difference of two shares of the same *n* problems, with its 95% score interval (Tango 1998).

    Unlike a bootstrap interval, it has a width even if both arms agree on every problem.
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

    return Interval(value, edge(-1.0, -1), edge(1.0, 1))


def _statistic(n: int, gained: float, lost: float, true: float) -> float:
    """
    The standard errors between the observed difference and a *true* difference under that
    hypothesis.
    """
    b = (2 * n - gained + lost) * true - gained - lost
    q = (math.sqrt(max(0.0, b * b + 8 * n * lost * true * (1 - true))) - b) / (4 * n)
    variance = n * (2 * q + true * (1 - true))
    above = gained - lost - n * true
    if variance <= 0:
        return math.copysign(math.inf, above) if above else 0.0
    return above / math.sqrt(variance)


def tables(summaries: Sequence[ArmSummary], baseline: str = LARGE.name) -> list[Table]:
    """
    Tables with one row per arm, compared with the *baseline*: what is right, what it takes, and
    with several samples of a problem what the best of them and most of them are worth.

    Each fits into 80 columns unless an arm has a long name. `small_print` explains the columns.
    """
    short = baseline.removesuffix(" alone")
    shown = noted_outcomes(summaries)
    right = ("", "n", "accuracy", f"against {short}", "p", *shown)
    parts = [
        _aligned(right, [(*_right(each, baseline), *map(each.count, shown)) for each in summaries]),
        _aligned(("", "seconds", f"vs {short}", *TOKENS), [_taken(each) for each in summaries]),
    ]
    several = [(each.result.name, each.several) for each in summaries if each.several is not None]
    if several:
        k = several[0][1].samples
        rows = [(name, f"{of.best:.1%}", f"{of.majority:.1%}") for name, of in several]
        parts.append(_aligned(("", f"pass@{k}", f"maj@{k}"), rows))
    return parts


def _aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    for column in columns:
        # A name may take several lines, a figure is never divided.
        rendered.add_column(
            column,
            justify="right" if column else "left",
            no_wrap=bool(column),
            overflow="fold",
        )
    for row in rows:
        rendered.add_row(*row)
    return rendered


def noted_outcomes(summaries: Sequence[ArmSummary]) -> list[Outcome]:
    """The outcomes with columns of their own: those that an arm of *summaries* has."""
    return [
        name for name in NOTED_OUTCOMES if any(summary.outcomes.get(name) for summary in summaries)
    ]


def _right(summary: ArmSummary, baseline: str) -> tuple[str, ...]:
    result = summary.result
    itself = result.name == baseline
    problems = result.n if summary.several is None else result.n // summary.several.samples
    counted = f"{result.n}" if problems == result.n else f"{problems} x {result.n // problems}"
    return (
        result.name,
        counted,
        f"{Interval(result.accuracy, *result.accuracy_interval):.1%}",
        "" if itself else f"{summary.difference.points:+.1f}",
        "" if itself or summary.p is None else f"{summary.p:.2g}",
    )


def _taken(summary: ArmSummary) -> tuple[str, ...]:
    result = summary.result
    tokens = summary.tokens
    return (
        result.name,
        f"{result.seconds:.2f}",
        f"{Interval(result.ratio, *result.ratio_interval):.2f}",
        f"{tokens.small:.0f}",
        f"{tokens.large:.0f}",
        f"{tokens.wasted:.0f}",
        f"{tokens.judging:.0f}" if tokens.judging else "",
        "" if result.accept_rate is None else f"{result.accept_rate:.0%}",
    )


def csv_text(summaries: Sequence[ArmSummary]) -> str:
    """The figures of each arm as a line of comma-separated values, below a line of their names."""
    rows = [_figures(summary) for summary in summaries]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _figures(summary: ArmSummary) -> dict[str, str | float | None]:
    result = summary.result
    several = summary.several
    samples = 1 if several is None else several.samples
    best = None if several is None else several.best.value
    majority = None if several is None else several.majority.value
    return {
        "arm": result.name,
        "problems": result.n // samples,
        "samples": result.n,
        "accuracy": result.accuracy,
        "accuracy_low": result.accuracy_interval[0],
        "accuracy_high": result.accuracy_interval[1],
        "difference": summary.difference.value,
        "difference_low": summary.difference.low,
        "difference_high": summary.difference.high,
        "p": summary.p,
        "pass_at_k": best,
        "maj_at_k": majority,
        "seconds": result.seconds,
        "ratio": result.ratio,
        "ratio_low": result.ratio_interval[0],
        "ratio_high": result.ratio_interval[1],
        "small_tokens": summary.tokens.small,
        "large_tokens": summary.tokens.large,
        "wasted_tokens": summary.tokens.wasted,
        "judging_tokens": summary.tokens.judging,
        "accept_rate": result.accept_rate,
    }


def small_print(baseline: str) -> str:
    """What the columns of `table` mean."""
    plain = " plain: the large model as one ordinary request." if baseline == PLAIN.name else ""
    return f"{SMALL_PRINT}{plain}"


SMALL_PRINT = (
    "Brackets: 95% intervals, over problems. n: problems x samples. docs/evals.md explains each"
    " column."
)
