"""The figures in the columns of the papers' tables, by the papers' definitions, for comparison with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..arms import SMALL
from .figures import ArmFigures
from .section import Section
from .tables import Row, Table, number, percent


def paper_tables(section: Section) -> Iterator[Table]:
    """Yield a table per paper, with all arms that ran."""
    ran = [f for f in section.figures if not f.bound]
    large = next(f for f in ran if f.arm.name == section.baseline)
    small = next((f for f in ran if f.arm.name == SMALL.name), None)
    yield _specreason(ran, large)
    yield _speculative_thinking(ran)
    yield _bild(ran, large)
    yield _lookahead_reasoning(section, ran, small, large)
    yield _reward_guided(section, ran)


def _specreason(ran: list[ArmFigures], large: ArmFigures) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            percent(f.standing.result.accuracy, 1),
            number(f.standing.result.seconds),
            f"{1 / f.standing.result.ratio:.2f}x" if f.standing.result.ratio else "",
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
        "Speed-up: mean end-to-end seconds of the baseline divided by those of the method, so shorter chains "
        "count as speed. Steps by small: acceptance in the paper. The paper's gains in accuracy are those of a budget "
        "of 8,192 tokens.",
    )


def _speculative_thinking(ran: list[ArmFigures]) -> Table:
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
        ("", "accuracy", "length", "modify ratio", "tokens per second"),
        tuple(rows),
        "Length: kept tokens, the answer included. Modify ratio: the large model's share of them. The paper estimates "
        "its speed from FLOPs; this speed is measured and not comparable with it.",
    )


def _bild(ran: list[ArmFigures], large: ArmFigures) -> Table:
    rows: list[Row] = [
        (
            f.arm.name,
            percent(f.standing.result.accuracy, 1),
            f"{1 / f.standing.result.ratio:.2f}x" if f.standing.result.ratio else "",
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
        "Fallbacks and rollbacks: in percent of the kept tokens. Speed-up: over the baseline, one problem "
        "at a time unless a remark above states otherwise.",
    )


def _lookahead_reasoning(section: Section, ran: list[ArmFigures], small: ArmFigures | None, large: ArmFigures) -> Table:
    methods = [f for f in ran if f.method]
    rows: list[Row] = [("small accuracy", _accuracy(small))] if small else []
    rows.append(("large accuracy", _accuracy(large)))
    for f in methods:
        rows.append((f"{f.arm.name} accuracy", _accuracy(f)))
        rows.append((f"{f.arm.name} accept", number(f.accept_rate)))
        rows.append((f"{f.arm.name} speed-up", f"{_pace(f) / _pace(large):.2f}" if _pace(large) else ""))
    return Table(
        "Lookahead Reasoning (arXiv:2506.19830, table 1)",
        ("", section.title),
        tuple(rows),
        "Speed-up: tokens per second divided by those of the baseline, so shorter chains do not count as "
        "speed. Accept: accepted divided by judged drafts. ±: half of the 95% interval.",
    )


def _reward_guided(section: Section, ran: list[ArmFigures]) -> Table:
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
        ("", section.title, "small kept"),
        tuple(rows),
        "Small kept: the share of the small model's written tokens that were kept; acceptance in the paper.",
    )


def _accuracy(f: ArmFigures) -> str:
    low, high = f.standing.result.accuracy_interval
    return f"{100 * f.standing.result.accuracy:.1f}±{50 * (high - low):.1f}"


def _pace(f: ArmFigures) -> float:
    """Kept tokens per second."""
    return f.kept / f.standing.result.seconds if f.standing.result.seconds else 0.0


def _per_token(f: ArmFigures, reason: str) -> str:
    kept = f.kept * f.standing.result.n
    return percent(f.rejections.get(reason, 0) / kept, 2) if kept and f.method else ""


def _kept_small(f: ArmFigures) -> float | None:
    small = f.spent.get("small")
    written = small.kept + small.discarded if small else 0.0
    return small.kept / written if small and written else None
