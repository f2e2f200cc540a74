"""Results of arms as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from stepspec.orchestrator.chain import Role

from ..results import Result
from .servers import SHORT, World, describe_pace

ROLES: tuple[Role, ...] = ("large", "small")
COLUMNS = ("", "n", "accuracy", "seconds", "vs large", "vs floor", "by large", "accepted", "waste", "judging")


def table(results: Sequence[Result], *, intervals: bool = True) -> Table:
    """A table with one row per arm; `small_print` explains the columns."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    speculating = _speculating(results)
    for column in _columns(speculating):
        rendered.add_column(column, justify="right" if column else "left", no_wrap=True)
    for result in results:
        rendered.add_row(*_row(result, speculating, intervals=intervals))
    return rendered


def markdown(results: Sequence[Result]) -> str:
    """The same table for a document."""
    speculating = _speculating(results)
    columns = _columns(speculating)
    rule = tuple("---" if not column else "--:" for column in columns)
    rows = (columns, rule, *(_row(result, speculating) for result in results))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _speculating(results: Sequence[Result]) -> tuple[Role, ...]:
    """The roles whose servers drafted tokens for some arm: a column for each."""
    return tuple(role for role in ROLES if any(role in result.speculation for result in results))


def _columns(speculating: Sequence[Role]) -> tuple[str, ...]:
    return (*COLUMNS, *(f"tokens of {role}" for role in speculating))


def _row(r: Result, speculating: Sequence[Role], *, intervals: bool = True) -> tuple[str, ...]:
    (low, high), (least, most) = r.accuracy_interval, r.ratio_interval
    return (
        r.name,
        str(r.n),
        f"{r.accuracy:.1%}" + (f" [{low:.1%}, {high:.1%}]" if intervals else ""),
        f"{r.seconds:.2f}",
        f"{r.ratio:.2f}" + (f" [{least:.2f}, {most:.2f}]" if intervals else ""),
        "" if r.ratio_to_floor is None else f"{r.ratio_to_floor:.2f}",
        f"{r.share_large_tokens:.0%}",
        "" if r.accept_rate is None else f"{r.accept_rate:.0%}",
        f"{r.waste:.0%}",
        f"{r.judge_tokens:.0f}" if r.judge_tokens else "",
        *(str(r.speculation[role]) if role in r.speculation else "" for role in speculating),
    )


def small_print(profile: str, *more: str, world: World = SHORT) -> str:
    """The explanation of the table: models of *world*, *profile* and columns; *more* names further models."""
    sizes, pace = world.sizes, describe_pace(profile, "large", "small", *more)
    return (
        f"The miniature pair: two models of {sizes} parameters, trained on arithmetic, served by real vLLM on this "
        f"CPU; {pace}. Seconds are the mean of one problem. "
        "Vs large: wall time divided by that of the large model alone. Vs floor: divided by the time to write every "
        "kept token on the model that wrote it. Brackets are 95% intervals. By large: the large model's share of the "
        "kept tokens. Accepted: share of the judged drafts. Waste: share of the written tokens that were not kept. "
        "Judging: tokens read or written to judge one problem, without those in a prefix cache."
    )
