"""
Name every wait of one run: ``python -m lab.gpu.waits TRACE...``.

A run waits for one thing at a time: for the next step to be committed. The time until then is
divided by what is missing: the first token of a draft, the rest of it, its verdict, the first token
of a repair, the rest of it. Work beside the thing that is waited for (drafts and verdicts ahead)
takes no time of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from stepspec.orchestrator import trace
from stepspec.orchestrator.events import (
    Answered,
    Called,
    Committed,
    Drafted,
    Judged,
    Purpose,
    Repaired,
)
from stepspec.orchestrator.trace import Moment

KEPT_FIRST = "draft, kept: first token"
KEPT = "draft, kept: the rest"
KEPT_VERDICT = "verdict that accepts"
LOST_FIRST = "draft, rejected: first token"
LOST = "draft, rejected: the rest"
LOST_VERDICT = "verdict that rejects"
REPAIR_FIRST = "repair: first token"
REPAIR = "repair: the rest"
ANSWER = "answer"
REST = "end"


@dataclass
class Waits:
    """
    Seconds by the name of the wait, with the number of waits and the tokens that were written
    meanwhile.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    now: float = 0.0

    def until(self, at: float, name: str, tokens: int = 0) -> None:
        """The run waited for *name* up to second *at*, if it was not there already."""
        self.seconds[name] = self.seconds.get(name, 0.0) + max(0.0, at - self.now)
        self.counts[name] = self.counts.get(name, 0) + 1
        self.tokens[name] = self.tokens.get(name, 0) + tokens
        self.now = max(self.now, at)


def first_token(calls: Iterable[Called], step: int, *purposes: Purpose) -> float:
    """
    When the first token of *step* came that one of the *calls* for these *purposes* wrote; 0 if
    none did.
    """
    found = [
        call.started + call.first
        for call in calls
        if call.verb == "write"
        and call.purpose in purposes
        and call.step == step
        and call.first is not None
    ]
    return max(found, default=0.0)


def name_waits(moments: Sequence[Moment]) -> Waits:
    """Divide the run of *moments* into its waits."""
    waits = Waits()
    drafted = dict[int, float]()
    judged = dict[int, float]()
    calls = [moment.event for moment in moments if isinstance(moment.event, Called)]
    repaired = -1
    for moment in moments:
        match moment.event:
            case Drafted(index):
                drafted[index] = moment.at
            case Judged(index):
                judged[index] = moment.at
            case Repaired(index, step, _) if index in drafted:
                waits.until(min(first_token(calls, index, "draft"), drafted[index]), LOST_FIRST)
                waits.until(drafted[index], LOST)
                waits.until(judged[index], LOST_VERDICT)
                waits.until(
                    min(first_token(calls, index, "repair", "hedge"), moment.at), REPAIR_FIRST
                )
                waits.until(moment.at, REPAIR, len(step.tokens))
                repaired = index
            case Committed(index, step, _) if index != repaired and index in drafted:
                waits.until(min(first_token(calls, index, "draft"), drafted[index]), KEPT_FIRST)
                waits.until(drafted[index], KEPT, len(step.tokens))
                waits.until(moment.at, KEPT_VERDICT)
            case Answered(step):
                waits.until(moment.at, ANSWER, len(step.tokens))
            case _:
                pass
    waits.until(moments[-1].at, REST)
    return waits


def lines(waits: Waits) -> Iterable[str]:
    whole = sum(waits.seconds.values())
    yield "| wait for | times | seconds | share | ms each | ms a token |\n|---|---|---|---|---|---|"
    for name, seconds in waits.seconds.items():
        count = waits.counts[name]
        tokens = waits.tokens[name]
        pace = f"{seconds / tokens * 1e3:.1f}" if tokens else ""
        yield (
            f"| {name} | {count} | {seconds:.3f} | {seconds / whole:.1%} |"
            f" {seconds / count * 1e3:.0f} | {pace} |"
        )
    yield f"| all | | {whole:.3f} | | | |"


def main(
    files: Annotated[
        list[Path], typer.Argument(help="Traces, as --trace and the campaign write them.")
    ],
) -> None:
    """Print a table of the waits of each run."""
    for file in files:
        print(f"\n{file.name}\n")
        print("\n".join(lines(name_waits(trace.read(file)))))


if __name__ == "__main__":
    typer.run(main)
