"""The figures in the papers' own columns, by their own definitions, to be laid side by side with theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..experiments.arms import LARGE, SMALL
from .figures import Figures
from .section import Section
from .tables import Row, Table, number, percent


def tables(section: Section) -> Iterator[Table]:
    """One table for each paper, of all arms that ran: what its columns show is worth seeing of every method."""
    ran = [f for f in section.figures if not f.bound]
    large = next(f for f in ran if f.arm.name == LARGE.name)
    small = next((f for f in ran if f.arm.name == SMALL.name), None)
    yield _specreason(ran, large)
    yield _speculative_thinking(ran)
    yield _bild(ran, large)
    yield _lookahead_reasoning(section, ran, small, large)
    yield _reward_guided(section, ran)


def _specreason(ran: list[Figures], large: Figures) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            percent(f.standing.result.accuracy, 1),
            number(f.standing.result.seconds),
            f"{1 / f.standing.result.ratio_to_large:.2f}x" if f.standing.result.ratio_to_large else "",
            f"{100 * f.standing.difference.value:+.1f}",
            percent(f.steps.share_small, 1),
            f"{large.kept / f.kept:.2f}x" if f.kept else "",
        )
        for f in ran
    ]
    return Table(
        "SpecReason (arXiv:2504.07891, section 5.2)",
        ("", "pass@1", "latency, s", "speed-up", "accuracy delta", "steps by small", "fewer tokens"),
        tuple(rows),
        "Speed-up: mean end-to-end seconds of the large model alone over those of the method, so shorter chains "
        "count as speed. Steps by small is what the paper calls acceptance. Its gains in accuracy are those of a "
        "budget of 8,192 tokens.",
    )


def _speculative_thinking(ran: list[Figures]) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            percent(f.standing.result.accuracy, 1),
            number(f.kept, 0),
            percent(f.standing.result.share_large_tokens, 1),
            number(_pace(f), 1),
        )
        for f in ran
    ]
    return Table(
        "Speculative Thinking (arXiv:2504.12329, table 2)",
        ("", "accuracy", "length", "modify ratio", "tokens a second"),
        tuple(rows),
        "Length: kept tokens, the answer included. Modify ratio: the large model's share of them. The paper's speed is "
        "estimated from FLOPs; this one is measured, and not comparable with it.",
    )


def _bild(ran: list[Figures], large: Figures) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            percent(f.standing.result.accuracy, 1),
            f"{1 / f.standing.result.ratio_to_large:.2f}x" if f.standing.result.ratio_to_large else "",
            _per_token(f, "fallback"),
            _per_token(f, "rollback"),
        )
        for f in ran
        if f is large or f.arm.policy == "bild"
    ]
    return Table(
        "Big Little Decoder (arXiv:2302.07863, table 1)",
        ("", "score", "speed-up", "fallbacks", "rollbacks"),
        tuple(rows),
        "Fallbacks and rollbacks are percent of the kept tokens. Speed-up: over the large model alone, one problem "
        "at a time unless it says otherwise above.",
    )


def _lookahead_reasoning(section: Section, ran: list[Figures], small: Figures | None, large: Figures) -> Table:
    methods = [f for f in ran if f.method]
    rows: list[Row] = [("small accuracy", _accurate(small))] if small else []
    rows.append(("large accuracy", _accurate(large)))
    for f in methods:
        rows.append((f"{f.arm.name} accuracy", _accurate(f)))
        rows.append((f"{f.arm.name} accept", number(f.accept_rate)))
        rows.append((f"{f.arm.name} speed-up", f"{_pace(f) / _pace(large):.2f}" if _pace(large) else ""))
    return Table(
        "Lookahead Reasoning (arXiv:2506.19830, table 1)",
        ("", section.title),
        tuple(rows),
        "Speed-up: tokens a second over those of the large model alone, so shorter chains do not count. Accept: "
        "accepted over judged drafts. ± is half of the 95% interval.",
    )


def _reward_guided(section: Section, ran: list[Figures]) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            f"{100 * f.standing.result.accuracy:.1f}",
            percent(_kept_small(f), 1),
        )
        for f in ran
    ]
    return Table(
        "Reward-guided Speculative Decoding (arXiv:2501.19324, table 2)",
        ("", section.title, "kept of small"),
        tuple(rows),
        "Kept of small: the small model's tokens that were kept over all that it wrote, which is what the paper calls "
        "acceptance.",
    )


def _accurate(f: Figures) -> str:
    low, high = f.standing.result.accuracy_interval
    return f"{100 * f.standing.result.accuracy:.1f}±{50 * (high - low):.1f}"


def _pace(f: Figures) -> float:
    """Kept tokens a second."""
    return f.kept / f.standing.result.seconds if f.standing.result.seconds else 0.0


def _per_token(f: Figures, reason: str) -> str:
    kept = f.kept * f.standing.result.n
    return percent(f.rejections.get(reason, 0) / kept, 2) if kept and f.method else ""


def _kept_small(f: Figures) -> float | None:
    small = f.spent.get("small")
    written = small.kept + small.discarded if small else 0.0
    return small.kept / written if small and written else None
