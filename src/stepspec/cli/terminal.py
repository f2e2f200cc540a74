"""How runs are printed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import AnswerJudged, Decided, Degraded, Event, FellBack, Moved
from stepspec.orchestrator.ledger import Ledger
from stepspec.orchestrator.solution import Solution, SolvedStep, solved_steps
from stepspec.orchestrator.trace import Moment

VERIFIED = {True: ", verified", False: ", NOT verified", None: ""}
COLOURS = {"small": "green", "large": "blue"}


class RunPrinter:
    """An observer that prints the fate of every step; times count from when it is created."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.perf_counter()
        self._writer = "method"

    def __call__(self, event: Event) -> None:
        for step in solved_steps(Moment(time.perf_counter() - self._began, event)):
            if step.fate != "lost":
                self._console.print(step_line(step), soft_wrap=True)
        if line := self._line(event):
            self._console.print(line, soft_wrap=True)

    def _line(self, event: Event) -> Text | None:
        match event:
            case Degraded(path=path, role=role, cause=cause):
                return Text(
                    f"the {path or role} model failed, going on without it: {cause}", "yellow"
                )
            case FellBack(stage=stage, fallback=by, cause=cause):
                return Text(
                    f"the verifier failed, its fallback decides about the {stage} ({by}): {cause}",
                    "yellow",
                )
            case Moved(path=path, role=role, url=url, to=to):
                return Text(f"the {path or role} model at {url} failed, going on at {to}", "yellow")
            case AnswerJudged() if event.final or event.accepted:
                return _verdict(event)
            case Decided(choice=choice, reason=reason, advice=advice) if choice != self._writer:
                self._writer = choice
                who = "the large model writes alone" if choice == "large" else "the method goes on"
                return None if advice else Text(f"{who}: {reason}", "dim")  # the log has the advice
            case _:
                return None


def _verdict(event: AnswerJudged) -> Text:
    """Return one line: what the verifier said in the end about the answer."""
    if event.accepted is None:
        return Text("answer not judged: the verifier failed", "yellow")
    verdict = (
        "answer accepted by the verifier" if event.accepted else "answer REJECTED by the verifier"
    )
    return Text(
        f"{verdict}{event.reason and f': {event.reason}'}", "green" if event.accepted else "red"
    )


def step_line(step: SolvedStep) -> Text:
    """Return one line: the second, the author, the grade and the text of *step*."""
    grade = "" if step.grade is None else f"{step.grade:.3g}"
    style = COLOURS[step.author] if step.fate == "kept" else "dim strike"
    why = f"{step.reason}: {' '.join(step.detail.split())}" if step.detail else step.reason
    note = f"  ({step.fate}: {why})" if step.fate == "rejected" else ""
    head = f"{step.at:6.2f} s  {step.author:<5}  {grade:>4}  "
    return Text.assemble((head, "dim"), (" ".join(step.text.split()), style), (note, "dim"))


def summary(solution: Solution) -> Text:
    """Return the cost of the run in one line."""
    ledger = solution.ledger
    rate = (
        ""
        if ledger.accept_rate is None
        else f"{ledger.accept_rate:.0%} of {ledger.drafts} drafts accepted, "
    )
    wasted = ledger.small.discarded + ledger.large.discarded
    alone = (
        f"{solution.share_alone:.0%} of the steps by the large model alone, "
        if solution.stretches
        else ""
    )
    return Text(
        f"{solution.seconds:.2f} s, {rate}{ledger.share_large:.0%} of the kept tokens by the large"
        " model, "
        f"{alone}{wasted} {'token' if wasted == 1 else 'tokens'} discarded, finish reason:"
        f" {solution.finish_reason}"
        f"{'' if solution.seed is None else f', seed: {solution.seed}'}{VERIFIED[solution.verified]}",
        style="dim",
    )


def nested_lines(ledger: Ledger) -> Iterator[Text]:
    """
    Yield a line per model of a nested pair: its tokens, and how many of its drafts the pair itself
    accepted.
    """
    sifted = {
        f"{path}.small": f", {stood} of {judged} drafts stood"
        for path, judged, stood in ledger.sifted
    }
    for model in ledger.nested:
        drafts = sifted.get(model.path, "")
        yield Text(
            f"{model.path}: {model.kept} tokens kept, {model.discarded} discarded{drafts}",
            style="dim",
        )
