"""What the samples of a run come to: every arm, how it differs from the large model alone, and a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rich.table import Table

from .experiments.arms import (
    LARGE,
    SMALL,
    Interval,
    Result,
    bootstrap_ratio,
    by_problem,
    summarise,
)
from .sample import Arm, Outcome, Sample
from .significance import difference, mcnemar
from .store import Place

ORACLE = "oracle (bound)"
COLUMNS = (
    "",
    "n",
    "accuracy",
    "against large",
    "p",
    "seconds",
    "of large",
    "small",
    "large",
    "wasted",
    "judging",
    "accepted",
)
TOLD: tuple[Outcome, ...] = ("truncated", "ungraded", "failed")  # where there are any


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one sample, in the mean: *small* and *large* were kept, the rest was discarded or spent on judging."""

    small: float
    large: float
    wasted: float
    judging: float


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """
    What one arm did, and how it compares with the large model alone on the same problems.

    *difference* is of accuracy. *p* is McNemar's, exact; None where several samples of a problem depend on each other.
    *outcomes* counts them, and *cut_right* how many of the truncated ones answered right all the same.
    """

    result: Result
    difference: Interval
    p: float | None
    tokens: Tokens
    outcomes: Mapping[Outcome, int]
    cut_right: int


def complete(done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int) -> dict[str, list[Sample]]:
    """The samples of each arm, in order, of the problems that all arms have solved as often as wanted."""
    names = {arm.name for arm in arms}
    have = Counter(number // repeats for number, name in done if name in names)
    problems = sorted(problem for problem, count in have.items() if count == repeats * len(arms))
    numbers = [problem * repeats + repeat for problem in problems for repeat in range(repeats)]
    return {arm.name: [done[number, arm.name] for number in numbers] for arm in arms}


def stand(done: Mapping[Place, Sample], arms: Sequence[Arm], repeats: int = 1) -> list[ArmSummary]:
    """Compare the *arms*, and the oracle where both models ran alone; empty if no problem is complete."""
    by_arm = complete(done, arms, repeats)
    shown = list(arms)
    if SMALL.name in by_arm:
        by_arm[ORACLE] = oracle(by_arm[SMALL.name], by_arm[LARGE.name])
        shown.append(Arm(ORACLE, ""))
    large = by_arm[LARGE.name]
    if not sum(sample.seconds for sample in large):
        return []
    results = summarise([sample for samples in by_arm.values() for sample in samples], shown, repeats=repeats)
    return [_standing(result, by_arm[result.name], large, repeats) for result in results]


def oracle(small: Sequence[Sample], large: Sequence[Sample]) -> list[Sample]:
    """
    What a choice of model for each problem could reach, if it knew the outcome and cost nothing.

    Where the small model is right, its sample; elsewhere the large one's. No router can be better; a method that mixes
    both models within a problem can.
    """
    pairs = zip(small, large, strict=True)
    return [replace(ours if ours.correct else theirs, arm=ORACLE) for ours, theirs in pairs]


def _standing(result: Result, ours: Sequence[Sample], large: Sequence[Sample], repeats: int) -> ArmSummary:
    gained = sum(a.correct and not b.correct for a, b in zip(ours, large, strict=True))
    lost = sum(b.correct and not a.correct for a, b in zip(ours, large, strict=True))
    apart = difference(len(ours) // repeats, gained / repeats, lost / repeats)
    if repeats > 1:
        each = [int(a.correct) - int(b.correct) for a, b in zip(ours, large, strict=True)]
        drawn = bootstrap_ratio(by_problem(each, repeats), [repeats] * (len(each) // repeats))
        apart = drawn if drawn.low < drawn.high else apart  # which has a width where all problems are alike
    p = mcnemar(gained, lost) if repeats == 1 else None
    cut = sum(sample.correct for sample in ours if sample.outcome == "truncated")
    return ArmSummary(result, apart, p, _tokens(ours), dict(Counter(s.outcome for s in ours)), cut)


def _tokens(samples: Sequence[Sample]) -> Tokens:
    ledgers = [sample.ledger for sample in samples]
    return Tokens(
        fmean(x.small.kept for x in ledgers),
        fmean(x.large.kept for x in ledgers),
        fmean(x.small.discarded + x.large.discarded for x in ledgers),
        fmean(x.small.judging + x.large.judging + x.critic.judging for x in ledgers),
    )


def table(standings: Sequence[ArmSummary]) -> Table:
    """One row for each arm; `SMALL_PRINT` says what the columns mean."""
    shown: list[Outcome] = [name for name in TOLD if any(s.outcomes.get(name) for s in standings)]
    made = Table(box=None, padding=(0, 1, 0, 0))
    for column in (*COLUMNS, *shown):
        made.add_column(column, justify="right" if column else "left", no_wrap=True)
    for standing in standings:
        made.add_row(*_row(standing), *(_count(standing, name) for name in shown))
    return made


def _row(standing: ArmSummary) -> tuple[str, ...]:
    r, d, t = standing.result, standing.difference, standing.tokens
    (low, high), (least, most) = r.accuracy_interval, r.ratio_to_large_interval
    itself = r.name == LARGE.name
    return (
        r.name,
        str(r.n),
        f"{r.accuracy:.1%} [{low:.1%}, {high:.1%}]",
        "" if itself else f"{100 * d.value:+.1f} [{100 * d.low:+.1f}, {100 * d.high:+.1f}]",
        "" if itself or standing.p is None else f"{standing.p:.2g}",
        f"{r.seconds:.2f}",
        f"{r.ratio_to_large:.2f} [{least:.2f}, {most:.2f}]",
        f"{t.small:.0f}",
        f"{t.large:.0f}",
        f"{t.wasted:.0f}",
        f"{t.judging:.0f}" if t.judging else "",
        "" if r.accept_rate is None else f"{r.accept_rate:.0%}",
    )


def _count(standing: ArmSummary, name: Outcome) -> str:
    count = standing.outcomes.get(name, 0)
    right = f" ({standing.cut_right} right)" if name == "truncated" and standing.cut_right else ""
    return f"{count}{right}"


SMALL_PRINT = (
    "Brackets are 95% intervals. Against large: points of accuracy, on the same problems, with a score interval; p: "
    "McNemar's test, exact. Seconds: mean wall time of one problem, also as a multiple of the large model's alone. "
    "Small, large: kept tokens by author; wasted: written and not kept; judging: read or written to judge, beside "
    "those in a prefix cache. Accepted: of the drafts judged. Truncated runs ran out of tokens, time or context; what "
    "they answered is graded like any other answer. The oracle knows beforehand which problems the small model gets "
    "right, and gives it those."
)
