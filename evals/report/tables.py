"""A table before it is written in any format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..experiments.arms import LARGE
from ..results import TOLD
from .figures import Figures
from .section import Section


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to the page of a trace."""

    text: str
    target: str


Cell: TypeAlias = str | Link
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """*columns*, the first of which names the rows, and a *note* that says what they mean."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    words: int = 1  # so many columns, from the first, are words; the rest are numbers


def percent(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}%}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def interval(value: str, low: str, high: str) -> str:
    return f"{value} [{low}, {high}]"


def accuracy(section: Section) -> Table:
    shown = [name for name in TOLD if any(f.standing.outcomes.get(name) for f in section.figures)]
    return Table(
        "Accuracy",
        ("", "right", "accuracy", "against large, points", "p", *shown),
        tuple((*_accurate(f, section.run.repeats), *(_count(f, name) for name in shown)) for f in section.figures),
        "Brackets are 95% intervals: of accuracy Wilson's, of the difference on the same problems Tango's score "
        "interval (of several samples a problem, both by a bootstrap over the problems). p: McNemar's exact test. "
        "The oracle gives the small model what it gets right and the large one the rest: no choice of a model per "
        "problem is better."
        + (
            " Truncated runs ran out of tokens, time or context, and count as right if their answer is."
            if shown
            else ""
        ),
    )


def _accurate(f: Figures, repeats: int) -> Row:
    r, d = f.standing.result, f.standing.difference
    low, high = r.accuracy_interval
    itself = r.name == LARGE.name
    return (
        r.name,
        f"{round(r.accuracy * r.n)} of {r.n}",
        interval(percent(r.accuracy, 1), percent(low, 1), percent(high, 1)),
        "" if itself else interval(_points(d.value), _points(d.low), _points(d.high)),
        "" if itself or repeats > 1 else number(f.standing.p, 3),
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _count(f: Figures, name: str) -> str:
    count = {str(outcome): found for outcome, found in f.standing.outcomes.items()}.get(name, 0)
    right = f.standing.cut_right if name == "truncated" else 0
    return f"{count} ({right} right)" if right else str(count)


def time(section: Section) -> Table:
    return Table(
        "Time of a problem, seconds",
        ("", "mean", "median", "p95", "of large", "of floor", "first step", "large busy", "judging"),
        tuple(_timed(f) for f in section.figures),
        "Of large: the sum over all problems, over that of the large model alone, with a 95% bootstrap interval "
        "over the problems. Of floor: over the time to write every kept token on the model that wrote it. First "
        "step: the median time until a step was committed. Large busy, judging: mean seconds that a request to the "
        "large model, or to judge, was open; both overlap with drafting.",
    )


def _timed(f: Figures) -> Row:
    r = f.standing.result
    low, high = r.ratio_to_large_interval
    judged = sum(spent.judged for spent in f.spent.values())
    return (
        r.name,
        number(r.seconds),
        number(f.median),
        number(f.tail),
        interval(number(r.ratio_to_large), number(low), number(high)),
        number(r.ratio_to_floor),
        number(f.first),
        number(f.busy["large"]) if "large" in f.spent else "",
        number(judged) if judged else "",
    )


def tokens(section: Section) -> Table:
    return Table(
        "Tokens of a problem, by model and fate",
        (
            "", "small kept", "large kept", "small discarded", "large discarded", "waste", "judging", "by large",
            "requests", "small cached", "large cached",
        ),
        tuple(_told(f) for f in section.figures),
        "Means. Kept: in the chain or the answer. Discarded: written for nothing, in rejected drafts and lost bets; "
        "waste is their share of all written tokens. Judging: read or written to judge, beside those in a prefix "
        "cache. By large: its share of the kept tokens. Cached: the share of its prompt tokens that a server found "
        "in its prefix cache, from the ledgers.",
    )  # fmt: skip


def _told(f: Figures) -> Row:
    small, large = f.spent.get("small"), f.spent.get("large")
    judging = sum(spent.judging for spent in f.spent.values())
    return (
        f.arm.name,
        number(small.kept if small else None, 1),
        number(large.kept if large else None, 1),
        number(small.discarded if small else None, 1),
        number(large.discarded if large else None, 1),
        percent(f.standing.result.waste),
        number(judging, 0) if judging else "",
        percent(f.standing.result.share_large_tokens),
        number(sum(spent.requests for spent in f.spent.values()), 1),
        percent(small.hits if small else None),
        percent(large.hits if large else None),
    )


def steps(section: Section) -> Table:
    return Table(
        "Steps of a problem, by author and fate",
        ("", "by small", "by large", "share by small", "rejected", "lost", "drafts accepted", "repaired because of"),
        tuple(_stepped(f) for f in section.figures if not f.bound),
        "Means. By small, by large: steps of the chain. Rejected: drafts that a verdict threw away, wholly or from "
        "some point on. Lost: drafts made as bets on a rejected one. Drafts accepted: of those judged that were no "
        "such bets.",
    )


def _stepped(f: Figures) -> Row:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(f.rejections.items(), key=lambda one: -one[1]))
    return (
        f.arm.name,
        number(f.steps.small, 1),
        number(f.steps.large, 1),
        percent(f.steps.share_small),
        number(f.steps.rejected),
        number(f.steps.lost),
        percent(f.accept_rate),
        reasons,
    )


def judges(section: Section) -> Table:
    note = (
        "AUROC: the chance that a right one is scored better than a wrong one, with a 95% bootstrap interval over the "
        "problems (Wilson's where no resample differs). By step: every judged step that follows nothing wrong is "
        "known to be right or wrong; passed is what the verdicts let through. By answer: steps are not known, so "
        "the worst accepted score of a problem stands for it; that says less, for the judge has acted already. What "
        "a score did not decide, as the fallbacks of BiLD, is counted, but not on the curve."
    )
    if section.title == "arithmetic" and not any(_level(judge.separation) == "step" for judge in section.judges):
        note += " Steps of this benchmark can be known: `stepspec eval --traces` keeps what it takes."
    rows: list[Row] = []
    for judge in section.judges:
        found = judge.separation
        if found is None:
            rows.append((judge.arm, "", str(len(judge.graded)), "", "", "too few to say", "", ""))
            continue
        wrong, right = found.passed or (None, None)
        value, low, high = (number(x, 3) for x in (found.area.value, found.area.low, found.area.high))
        rows.append(
            (
                judge.arm, found.level, str(len(judge.graded)), str(found.right), str(found.wrong),
                interval(value, low, high), percent(right, 1), percent(wrong, 1),
            )
        )  # fmt: skip
    columns = ("", "known by", "scores", "right", "wrong", "AUROC", "right passed", "wrong passed")
    return Table("How far the judge tells right from wrong", columns, tuple(rows), note, words=2)


def _level(separation: object) -> str:
    return str(getattr(separation, "level", ""))


def servers(section: Section) -> Table:
    return Table(
        "What the servers counted",
        ("", "prompt tokens", "prefix-cache hits", "drafted tokens", "accepted", "tokens a pass"),
        tuple(
            (
                one.role,
                number(one.queried, 0),
                percent(one.hits, 1),
                number(one.speculation.drafted, 0) if one.speculation else "none",
                percent(one.speculation.rate, 1) if one.speculation else "",
                number(one.speculation.length) if one.speculation else "",
            )
            for one in section.counted
        ),
        f"Counters of /metrics after the run less those before it{_seen(section)}: all arms and the warm-up, and "
        "whoever else used the servers. Drafted, accepted: by the servers' own token-level speculation.",
    )


def _seen(section: Section) -> str:
    """Which sessions are missing, if any: one that was killed did not look at the end."""
    seen, held = min(one.sessions for one in section.counted), len(section.run.sessions)
    return "" if seen == held else f", of {seen} of {held} sessions"


def cost(section: Section) -> Table:
    money = section.prices.currency
    thousand = f"{money} for 1,000"
    priced = ("held", thousand, "busy", f"{thousand}, busy", f"{money} for 1,000 right", "of large")
    return Table(
        "What a problem costs, in GPU-seconds" + (f" and {money}" if money else ""),
        ("", *(priced if money else ("held", "busy", "of large"))),
        tuple(
            (
                c.name, number(c.held), number(1000 * c.money_held), number(c.busy), number(1000 * c.money_busy),
                number(1000 * c.money_right) if c.money_right is not None else "", number(c.of_large),
            )
            if c.money_held is not None and c.money_busy is not None
            else (c.name, number(c.held), number(c.busy), number(c.of_large))
            for c in section.costs
        ),
        f"{section.prices.said[0].upper()}{section.prices.said[1:]}. Held: all GPUs that the arm needs, for as long "
        "as it takes, as on servers of its own. Busy: only while a request of its own was open, as where others use "
        "the servers in between. Of large: held, over the large model alone" + (", in money." if money else "."),
    )  # fmt: skip
