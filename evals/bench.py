"""
Measure the miniature pair: each model alone, SpecReason without and with lookahead, and every other method.

``python -m stepspec.evals.bench`` prints a table and writes ``build/bench.json``; it exits with 1 if a bar is missed.
Interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import platform
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from ..orchestrator.errors import ConfigurationError
from . import stacked as stacking
from .arms import LARGE, SEQUENTIAL, SHIPPED, SMALL, Arm, Result, measure, summarise
from .nested import NESTED, THREE
from .nested import SMALL_PRINT as NESTED_SMALL_PRINT
from .samples import Samples
from .script import script
from .tables import markdown, small_print, table
from .testbed.progress import counting
from .testbed.servers import weights
from .testbed.solving_pair import solvers
from .testbed.tasks import fresh

BASELINES = (LARGE, SMALL, SEQUENTIAL, SHIPPED)
OTHERS = (
    Arm("SpecReason, hedged", "specreason", hedge=0.9),
    Arm("SpecReason, greedy", "specreason", {"read": "greedy"}),
    Arm("SpecReason, sure bets", "specreason", sure_bets=True),
    Arm("SpecReason, adapted", "specreason", adapt=0.05),
    Arm("choose", "choose"),
    THREE,
    Arm("random, p = 0.9", "random", {"p": 0.9}),
    Arm("speculative thinking", "speculative-thinking"),
    Arm("BiLD, tokens", "bild"),
    Arm("BiLD, steps", "bild", {"scale": "step"}),
    Arm("reflective", "reflective"),
    Arm("relay", "relay"),
    Arm("glimpse", "glimpse"),
    Arm("cascade", "cascade"),
    Arm("lookahead reasoning", "lookahead-reasoning"),
)
POINTS_LOST, OF_LARGE, OF_SEQUENTIAL = 0.02, 0.45, 0.8
BEST_OF_LARGE, BEST_POINTS_LOST = 0.40, 0.01  # SpecReason and at least one other method
SEED = 2026  # of the problems; none of them is trained on, whatever it is
FIGURES = Path("build/bench.json")
EXAMPLES = """
Examples:

  python -m stepspec.evals.bench              # every arm, 200 problems: an hour and a half

  python -m stepspec.evals.bench --baselines --problems 20 --markdown

  python -m stepspec.evals.bench --arm choose --arm "BiLD, tokens"

  python -m stepspec.evals.bench --stacked --problems 50

  python -m stepspec.evals.bench --profile slow --output build/slow.json
"""


def missed(results: Sequence[Result]) -> list[str]:
    """Which of the bars are missed, in words; those of arms that were not measured are not asked about."""
    by_name = {result.name: result for result in results}
    large, sequential, shipped = (by_name[arm.name] for arm in (LARGE, SEQUENTIAL, SHIPPED))
    bars = (
        ("accuracy lost against the large model alone", large.accuracy - shipped.accuracy, POINTS_LOST),
        ("wall time over the large model alone", shipped.ratio_to_large, OF_LARGE),
        ("wall time over sequential", shipped.seconds / sequential.seconds, OF_SEQUENTIAL),
    )
    found = [f"{what}: {value:.3f}, bar {bar}" for what, value, bar in bars if value > bar + 1e-9]
    others = [by_name[arm.name] for arm in OTHERS if arm.name in by_name and arm.policy != SHIPPED.policy]
    if others:
        good = [r.name for r in (shipped, *others) if _good(r, large)]
        if SHIPPED.name not in good or len(good) < 2:
            bar = f"{BEST_OF_LARGE} of large alone at {BEST_POINTS_LOST:.0%} of accuracy"
            found.append(f"SpecReason and another method within {bar}: {', '.join(good) or 'none'}")
    return found


def _good(result: Result, large: Result) -> bool:
    return result.ratio_to_large <= BEST_OF_LARGE and result.accuracy >= large.accuracy - BEST_POINTS_LOST - 1e-9


async def bench(arms: Sequence[Arm], problems: int, profile: str, samples: Samples, console: Console) -> list[Result]:
    """Run the *arms* on the same fresh problems, one at a time, interleaved; what *samples* have is not run again."""
    tasks, nested = fresh(problems, SEED), {arm.name: NESTED[arm.name] for arm in arms if arm.name in NESTED}
    solving = solvers(profile, console, tuple(arms), SEED + 1, problems=2, nested=nested)
    async with solving as (solver, others):
        with samples, counting(console) as progress:
            left = stacking.missing(arms, tasks, samples)
            bar = progress.add_task("measuring", total=problems * len(arms), completed=problems * len(arms) - left)

            def keep(number: int, sample: Any) -> None:
                samples.add(number, sample)
                progress.advance(bar)

            measured = await measure(solver, arms, tasks, on_sample=keep, done=samples.done, solvers=others)
    return summarise(measured, arms)


def main(
    problems: Annotated[int, typer.Option(min=2, help="How many fresh problems.")] = 200,
    profile: Annotated[str, typer.Option(help="How the models' passes are paced.")] = "paced",
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Measure this arm besides the baselines; all unless given."),
    ] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Measure the baselines only.")] = False,
    stacked: Annotated[
        bool,
        typer.Option("--stacked", help="Measure token-level speculation under large alone and SpecReason instead."),
    ] = False,
    fresh_start: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run measured.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the figures, the samples beside it; build/bench.json unless given, or "
            "build/bench-stacked.json."
        ),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown too.")] = False,
) -> None:
    """Measure the miniature pair and compare with the bars."""
    if stacked and (arm or baselines):
        raise ConfigurationError("--stacked has arms of its own: leave --arm and --baselines out")
    arms = chosen(arm, baselines=baselines)
    output = output or (FIGURES.with_stem(f"{FIGURES.stem}-stacked") if stacked else FIGURES)
    said = note(arms, profile, stacked=stacked)
    about = _about(profile, stacked=stacked)
    samples = Samples(output.with_suffix(".samples.jsonl"), about, fresh=fresh_start)
    progress, console = Console(stderr=True), Console(width=180 if stacked else 150)
    measuring: Coroutine[Any, Any, list[Result]] = (
        stacking.stacked(problems, profile, SEED, samples, progress)
        if stacked
        else bench(arms, problems, profile, samples, progress)
    )
    results = asyncio.run(measuring)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(orjson.dumps(report(results, profile, said), option=orjson.OPT_INDENT_2))
    console.print(table(results))
    if as_markdown:
        print(markdown(results))
    console.print(f"{datetime.date.today()}   {platform.machine()}, {output}")
    console.print(said, style="dim")
    if not stacked:
        _compare(results, console)


def _compare(results: Sequence[Result], console: Console) -> None:
    """Print how the baselines compare; exit with 1 if a bar is missed."""
    by_name = {result.name: result for result in results}
    ratio = by_name[SHIPPED.name].seconds / by_name[SEQUENTIAL.name].seconds
    console.print(f"SpecReason over sequential: {ratio:.2f}")
    lost = missed(results)
    for bar in lost:
        console.print(f"missed: {bar}", style="red")
    if lost:
        sys.exit(1)


def chosen(names: Sequence[str] | None, *, baselines: bool) -> tuple[Arm, ...]:
    """The baselines and the arms called *names*; without names all there are, but for *baselines* alone."""
    known = {arm.name: arm for arm in OTHERS}
    wrong = [name for name in names or () if name not in known]
    if wrong:
        listed, there = (", ".join(map(repr, names)) for names in (wrong, known))
        raise ConfigurationError(f"no such arm: {listed}; there are {there}")
    others = () if baselines else OTHERS if names is None else tuple(known[name] for name in dict.fromkeys(names))
    return *BASELINES, *others


def note(arms: Sequence[Arm], profile: str, *, stacked: bool) -> str:
    """What has to be said wherever the figures stand. Raise `ConfigurationError` if there is no such *profile*."""
    if stacked:
        return f"{small_print(profile)} {stacking.SMALL_PRINT}"
    return f"{small_print(profile, 'tiny')} {NESTED_SMALL_PRINT}" if THREE in arms else small_print(profile)


def _about(profile: str, *, stacked: bool) -> dict[str, Any]:
    """What has to be the same for samples to belong together; which arms there are is not."""
    about = {"profile": profile, "seed": SEED, "models": weights("large", "small", "tiny")}
    return {**about, "stacked": stacking.described()} if stacked else about


def report(results: Sequence[Result], profile: str, note: str) -> list[dict[str, Any]]:
    """A list of arms; each carries what it was measured on, so that no figure stands alone."""
    about = {"date": str(datetime.date.today()), "profile": profile, "seed": SEED, "note": note}
    return [{**dataclasses.asdict(result), **about} for result in results]


if __name__ == "__main__":
    script(main, EXAMPLES)
