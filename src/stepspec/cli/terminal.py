"""How runs are printed."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.events import AnswerJudged, Decided, Degraded, Event, FellBack, Moved
from stepspec.orchestrator.solution import Solution, SolvedStep, solved_steps
from stepspec.orchestrator.trace import Moment

VERIFIED = {True: ", verified", False: ", NOT verified", None: ""}
ANSWERS = {
    True: ("accepted by the verifier", "green"),
    False: ("REJECTED by the verifier", "red"),
    None: ("not judged: the verifier failed", "yellow"),
}
"""The words and the colour of each verdict about an answer."""
COLOURS = {"small": "green", "large": "blue"}


class RunPrinter:
    """An observer that prints the fate of every step. Times count from its creation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.perf_counter()
        self._writer = "method"

    def __call__(self, event: Event) -> None:
        for step in solved_steps(Moment(time.perf_counter() - self._began, event)):
            if step.fate != "lost":
                self._console.print(step_line(step), soft_wrap=True)
        match event:
            case Degraded(role=role, cause=cause):
                self._print(f"the {role} model failed, going on without it: {cause}")
            case FellBack(stage=stage, fallback=by, cause=cause):
                self._print(
                    f"the verifier failed, its fallback decides about the {stage} ({by}): {cause}"
                )
            case Moved(role=role, url=url, to=to):
                self._print(f"the {role} model at {url} failed, going on at {to}")
            case AnswerJudged() if event.final or event.accepted:
                self._judged(event)
            case Decided() if event.choice != self._writer:
                self._writer = event.choice
                self._decided(event)
            case _:
                pass

    def _print(self, text: str, style: str = "yellow") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    def _decided(self, event: Decided) -> None:
        """Print who writes from now on, unless the log has advice about it."""
        if event.advice:
            return
        writer = "the method goes on"
        if event.choice == "large":
            writer = "the large model writes alone"
        self._print(f"{writer}: {event.reason or event.figures}", "dim")

    def _judged(self, event: AnswerJudged) -> None:
        """Print the verifier's last verdict about the answer."""
        words, colour = ANSWERS[event.accepted]
        is_rated = event.accepted is not None
        reason = f": {event.reason}" if is_rated and event.reason else ""
        self._print(f"answer {words}{reason}", colour)


def step_line(step: SolvedStep) -> Text:
    """Return one line: the second, the author, the grade and the text of *step*."""
    grade = "" if step.grade is None else f"{step.grade:.3g}"
    style = COLOURS[step.author] if step.fate == "kept" else "dim strike"
    note = ""
    if step.fate == "rejected":
        reasons = [step.reason, " ".join(step.detail.split())]
        note = f"  (rejected: {': '.join(filter(None, reasons))})"
    head = f"{step.at:6.2f} s  {step.author:<5}  {grade:>4}  "
    return Text.assemble(
        (head, "dim"),
        (" ".join(step.text.split()), style),
        (note, "dim"),
    )


def summary(solution: Solution) -> Text:
    """Return the cost of the run in one line."""
    ledger = solution.ledger
    wasted = ledger.small.discarded + ledger.large.discarded
    parts = [f"{solution.seconds:.2f} s"]
    if ledger.accept_rate is not None:
        parts.append(f"{ledger.accept_rate:.0%} of {ledger.drafts} drafts accepted")
    parts.append(f"{ledger.share_large:.0%} of the kept tokens by the large model")
    if solution.share_alone is not None:
        parts.append(f"{solution.share_alone:.0%} of the steps by the large model alone")
    parts.append(f"{wasted} {'token' if wasted == 1 else 'tokens'} discarded")
    parts.append(f"finish reason: {solution.finish_reason}")
    if solution.seed is not None:
        parts.append(f"seed: {solution.seed}")
    return Text(", ".join(parts) + VERIFIED[solution.verified], style="dim")
