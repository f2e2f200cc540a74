"""
Watch one run: every step as it is committed, every rejected draft struck through, then the answer
and the waste.

    export STEPSPEC_SMALL=http://localhost:8001/v1 STEPSPEC_LARGE=http://localhost:8002/v1
    python examples/stream_events.py "What is 6 x 7?"

The settings come from these variables or from stepspec.toml.
"""

import asyncio
import sys

from rich.console import Console

from stepspec import Event, Rollback, Solution, Solver, Step, events

PROBLEM = (
    "Lily has 3 cards. On Monday she finds 9. On Tuesday she buys 9 more. "
    "On Wednesday she doubles them. How many cards does Lily have now?"
)
COLOURS = {"small": "green", "large": "blue"}
console = Console(markup=False, highlight=False, soft_wrap=True)


async def main(problem: str) -> None:
    # Leaving the block of `stream` before the run is over cancels it, with all its requests.
    async with Solver() as solver, solver.stream(problem) as run:
        async for event in run:
            show(event)
    show_costs(run.solution)


def show(event: Event) -> None:
    """
    Print a step or a rejected draft; a draft that was judged early may be rejected before earlier
    steps commit.
    """
    match event:
        case events.Committed(index=index, step=step, score=grade):
            console.print(f"+ {line(index, step, grade)}", style=COLOURS[step.author])
        case events.Judged(index=index, draft=draft, verdict=Rollback(score=grade, reason=reason)):
            console.print(f"- {line(index, draft, grade)}", style="dim strike", end="  ")
            console.print(f"(rejected: {reason})", style="dim")
        case _:  # There are more events, such as requests and lost bets: see stepspec.events.
            pass


def line(index: int, step: Step, grade: float | None) -> str:
    """
    Return the number of *step*, its author, its grade if the large model judged it, and its text.
    """
    shown = "" if grade is None else f"{grade:.1f}"
    return f"{index:>3}  {step.author}  {shown:>3}  {' '.join(step.text.split())}"


def show_costs(solution: Solution) -> None:
    ledger = solution.ledger
    console.print(f"\nanswer: {solution.answer}", style="bold")
    console.print(f"{ledger.accepted} of {ledger.drafts} drafts accepted, {solution.seconds:.1f} s")
    for account in (ledger.small, ledger.large):
        console.print(
            f"{account.role}: {account.discarded} of {account.written} tokens wasted"
            f" ({account.waste:.0%})"
        )


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or PROBLEM))
