"""A run as lines on a terminal, as it happens: every step in its author's colour, rejected ones struck out."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import Degraded, Event, Moved
from stepspec.orchestrator.ledger import Ledger, Speculation
from stepspec.orchestrator.solution import Solution, SolvedStep, solved_steps
from stepspec.orchestrator.trace import Moment

COLOURS = {"small": "green", "large": "blue"}


class Narrator:
    """An observer that prints what becomes of every step; its clock begins when it is made."""

    def __init__(self, console: Console) -> None:
        self._console, self._began = console, time.perf_counter()

    def __call__(self, event: Event) -> None:
        for step in solved_steps(Moment(time.perf_counter() - self._began, event)):
            if step.fate != "lost":
                self._console.print(line(step), soft_wrap=True)
        if isinstance(event, Degraded):
            self._console.print(
                f"the {event.path or event.role} model failed, going on without it: {event.cause}", style="yellow"
            )
        elif isinstance(event, Moved):
            self._console.print(
                f"the {event.path or event.role} model at {event.url} failed, going on at {event.to}", style="yellow"
            )


def line(step: SolvedStep) -> Text:
    """One step: the second, who wrote it, its grade, what it says."""
    grade = "" if step.grade is None else f"{step.grade:.3g}"
    style = COLOURS[step.author] if step.fate == "kept" else "dim strike"
    note = f"  ({step.fate}: {step.reason})" if step.fate == "rejected" else ""
    head = f"{step.at:6.2f} s  {step.author:<5}  {grade:>4}  "
    return Text.assemble((head, "dim"), (" ".join(step.text.split()), style), (note, "dim"))


def summary(solution: Solution) -> Text:
    """What the run cost, in one line."""
    ledger = solution.ledger
    rate = "" if ledger.accept_rate is None else f"{ledger.accept_rate:.0%} of {ledger.drafts} drafts accepted, "
    wasted = ledger.small.discarded + ledger.large.discarded
    return Text(
        f"{solution.seconds:.2f} s, {rate}{ledger.share_large:.0%} of the kept tokens by the large model, "
        f"{wasted} tokens discarded, finish reason: {solution.finish_reason}"
        f"{'' if solution.seed is None else f', seed: {solution.seed}'}",
        style="dim",
    )


def within(ledger: Ledger) -> Iterator[Text]:
    """What the models within a nested pair did, in a line each, and how many of their drafts stood there."""
    sifted = {f"{path}.small": f", {stood} of {judged} drafts stood" for path, judged, stood in ledger.sifted}
    for one in ledger.nested:
        drafts = sifted.get(one.path, "")
        yield Text(f"{one.path}: {one.kept} tokens kept, {one.discarded} discarded{drafts}", style="dim")


def underneath(speculation: Speculation) -> Text:
    """What the servers of a model count of the tokens that they draft themselves, in one line."""
    others = "others at work there too" if speculation.shared else "nobody else known to be at work there"
    return Text(
        f"token-level speculation under {speculation.name}: {speculation.counted} "
        f"(its servers' counters over {speculation.seconds:.1f} s, {others})",
        style="dim",
    )
