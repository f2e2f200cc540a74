"""
Measure every method on the miniature pair.

``python -m lab.bench`` solves the same problems with every arm, interleaved, at the default
sampling and greedily. With ``--stacked`` it measures vLLM's token-level speculation under the large
model alone and under SpecReason instead.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from stepspec.api import Solver
from stepspec.cli.program import script
from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.progress import progress_bars
from stepspec.evals.results import Result, compare_arms
from stepspec.evals.sample import Arm, Sample, Task
from stepspec.evals.store import SampleStore
from stepspec.evals.testbed import Profile
from stepspec.evals.testbed.servers import (
    NO_SPECULATION,
    SPECULATIONS,
    Speculation,
    endpoint,
    running,
    weights_digest,
)
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.orchestrator.endpoints import GREEDY, Sampling
from stepspec.orchestrator.errors import ConfigurationError

from .arms import (
    BILD,
    READING,
    REFLECTIVE,
    SEED,
    SEQUENTIAL,
    THINKING,
    THINKING_SEQUENTIAL,
    measure,
)
from .tables import Sheet
from .worlds import describe_pace

COLUMNS = (
    "",
    "n",
    "accuracy",
    "seconds",
    "vs large",
    "by large",
    "accepted",
    "waste",
    "judging",
)


def markdown(results: Sequence[Result]) -> str:
    """A table with one row per arm; `small_print` explains the columns."""
    return Sheet(COLUMNS, [_row(result) for result in results]).markdown()


def _row(r: Result) -> tuple[str, ...]:
    return (
        r.name,
        str(r.n),
        f"{r.accuracy:.1%}",
        f"{r.seconds:.2f}",
        f"{r.ratio:.2f}",
        f"{r.share_large_tokens:.0%}",
        "" if r.accept_rate is None else f"{r.accept_rate:.0%}",
        f"{r.waste:.0%}",
        f"{r.total('judging'):.0f}" if r.total("judging") else "",
    )


def small_print(profile: Profile) -> str:
    """Return the explanation of the table: the models, their *profile*, and the columns."""
    pace = describe_pace(profile, "large", "small")
    return (
        "The miniature pair: two models of 0.1 and 1.3 million parameters, trained on arithmetic,"
        f" served by real vLLM on this CPU; {pace}. Seconds are the mean of one problem. Vs large:"
        " wall time divided by that of the large model alone. Brackets are 95% intervals. By large:"
        " the large model's share of the kept tokens. Accepted: share of the judged drafts. Waste:"
        " share of the written tokens that were not kept. Judging: tokens read or written to judge"
        " one problem, without those in a prefix cache."
    )


STACKED = (LARGE, SHIPPED)
WARM_UP_PROBLEMS = 2

STACKED_SMALL_PRINT = (
    "With ngram, both servers draft from what was written before; with draft_model, the small model"
    " drafts for the large one as well, within its server, each of its passes at the small model's"
    " pace."
)


@asynccontextmanager
async def solvers(
    profile: Profile,
    console: Console,
    warm_up: tuple[Arm, ...],
    seed: int,
    speculation: Speculation = NO_SPECULATION,
) -> AsyncGenerator[Solver]:
    """
    Start the pair, and yield a greedy solver over it.

    Each of the arms *warm_up* solves a few problems of *seed* first.
    """
    async with (
        running(profile, console=console, speculation=speculation) as served,
        Solver(
            endpoint(served["small"], "small"),
            endpoint(served["large"], "large"),
            sampling=GREEDY,
        ) as solver,
    ):
        await measure(solver, warm_up, fresh_tasks(WARM_UP_PROBLEMS, seed))
        yield solver


def arms(method: str) -> tuple[Arm, ...]:
    """Return the arms that run over the token-level *method*. Over "none" no name changes."""
    if method == "none":
        return STACKED
    return tuple(replace(arm, name=f"{arm.name} + {method}") for arm in STACKED)


async def measure_stacked(
    problems: int,
    profile: Profile,
    seed: int,
    samples: SampleStore,
    console: Console,
) -> list[Result]:
    """Measure the arms of every method on the same fresh problems. *samples* are not repeated."""
    tasks = fresh_tasks(problems, seed)
    all_arms: list[Arm] = []
    with samples:
        for method, speculation in SPECULATIONS.items():
            over = arms(method)
            all_arms.extend(over)
            left = missing(over, tasks, samples)
            if left == 0:
                continue
            async with solvers(
                profile,
                console,
                over,
                seed + 1,
                speculation,
            ) as solver:
                work = partial(measure, solver, over, tasks)
                await measure_missing(work, method, left, samples, console)
    done = {place: sample for place, sample in samples.done.items() if place[0] < problems}
    return compare_arms(done, [arm.name for arm in all_arms])


def missing(chosen: Sequence[Arm], tasks: Sequence[Task], samples: SampleStore) -> int:
    """Return how many samples of the *chosen* arms are still missing."""
    return sum(
        (number, arm.name) not in samples.done for number in range(len(tasks)) for arm in chosen
    )


async def measure_missing(
    work: Callable[..., Awaitable[None]],
    title: str,
    total: int,
    samples: SampleStore,
    console: Console,
) -> None:
    """Take the *total* samples that *samples* lacks by *work*, and keep them. Show the progress."""
    with progress_bars(console) as progress:
        bar = progress.add_task(title, total=total)

        def keep(number: int, sample: Sample) -> None:
            samples.add(number, sample)
            progress.advance(bar)

        await work(on_sample=keep, done=samples.done)


BASELINES = (LARGE, SMALL, SEQUENTIAL, SHIPPED, THINKING_SEQUENTIAL, THINKING)
OTHERS = (
    Arm.of("SpecReason, hedged", "specreason", hedge=0.9),
    Arm.of("SpecReason, greedy", "specreason", {"read": "greedy"}),
    Arm.of("SpecReason, large answers", "specreason", answer="large"),
    Arm.of("SpecReason, small ends", "specreason", ending="small"),
    Arm.of("choose", "choose"),
    Arm.of("random, p = 0.9", "random", {"p": 0.9}),
    Arm.of("speculative thinking", "speculative-thinking"),
    Arm.of("BiLD, tokens", "bild"),
    BILD,
    READING,
    REFLECTIVE,
    Arm.of("relay", "relay"),
    Arm.of("glimpse", "glimpse"),
    Arm.of("cascade", "cascade"),
    Arm.of("lookahead reasoning", "lookahead-reasoning"),
)
# in the order of the tables
SAMPLINGS: Mapping[str, Sampling] = {"default": Sampling(), "greedy": GREEDY}
FIGURES = Path("build/bench.json")
STACKED_FIGURES = Path("build/bench-stacked.json")
EXAMPLES = """
Examples:

  python -m lab.bench              # every arm at both samplings, 200 problems: three hours

  python -m lab.bench --baselines --sampling greedy --problems 20

  python -m lab.bench --arm choose --arm "BiLD, tokens"

  python -m lab.bench --stacked --problems 50

  python -m lab.bench --profile slow --output build/slow.json
"""


def named(arm: Arm, sampling: str) -> str:
    """Return the name of *arm* at one of `SAMPLINGS`. A greedy arm keeps its name."""
    if sampling == "greedy":
        return arm.name
    return f"{arm.name}, temperature {SAMPLINGS[sampling].temperature}"


def heading(sampling: str) -> str:
    """Return the heading of the table of one of `SAMPLINGS`."""
    if sampling == "greedy":
        return "Greedy (temperature 0)"
    chosen = SAMPLINGS[sampling]
    return f"Sampled at temperature {chosen.temperature}, top_p {chosen.top_p} (the default)"


async def bench(
    arms: Sequence[Arm],
    samplings: Sequence[str],
    problems: int,
    profile: Profile,
    samples: SampleStore,
    console: Console,
) -> Mapping[str, list[Result]]:
    """
    Run the *arms* on the same fresh problems at each of the *samplings*, in turns.

    What *samples* have is not run again. Return the results by sampling, with the arms' own names.
    """
    tasks = fresh_tasks(problems, SEED)
    all_arms: list[Arm] = []
    sampling_of: dict[str, Sampling] = {}
    for sampling in samplings:
        for arm in arms:
            name = named(arm, sampling)
            all_arms.append(replace(arm, name=name))
            sampling_of[name] = SAMPLINGS[sampling]
    solving = solvers(
        profile,
        console,
        tuple(arms),
        SEED + 1,
    )
    async with solving as solver:
        work = partial(
            measure,
            solver,
            all_arms,
            tasks,
            samplings=sampling_of,
        )
        with samples:
            left = missing(all_arms, tasks, samples)
            await measure_missing(
                work,
                "measuring",
                left,
                samples,
                console,
            )
    results: dict[str, list[Result]] = {}
    for sampling in samplings:
        done = {
            (number, arm.name): samples.done[number, named(arm, sampling)]
            for number in range(len(tasks))
            for arm in arms
        }
        found = compare_arms(done, [arm.name for arm in arms])
        results[sampling] = [result for result in found if result.kind != "bound"]
    return results


def main(
    problems: Annotated[int, typer.Option(min=2, help="Number of fresh problems.")] = 200,
    profile: Annotated[Profile, typer.Option(help="Pace of the miniature models.")] = "paced",
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Measure this arm and the baselines; by default all arms."),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Measure the baselines only."),
    ] = False,
    stacked: Annotated[
        bool,
        typer.Option(
            "--stacked",
            help="Measure token-level speculation under large alone and SpecReason instead.",
        ),
    ] = False,
    sampling: Annotated[
        str,
        typer.Option(
            help=(
                "Measure at the default sampling (default), greedily (greedy), or both; --stacked"
                " is greedy."
            ),
        ),
    ] = "both",
    fresh_start: Annotated[
        bool,
        typer.Option("--fresh", help="Discard the samples of an earlier run."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help=(
                "File for the figures, with the samples next to it; by default"
                " build/bench.json, or "
                "build/bench-stacked.json."
            ),
        ),
    ] = None,
) -> None:
    """Measure the miniature pair, sampled and greedy."""
    if stacked and (arm or baselines):
        raise ConfigurationError("--stacked has arms of its own: leave --arm and --baselines out")
    if sampling not in ("both", *SAMPLINGS):
        raise ConfigurationError(
            f"no such sampling: {sampling!r}; there are 'both', 'default', 'greedy'",
        )
    samplings = tuple(SAMPLINGS) if sampling == "both" else (sampling,)
    arms = chosen(arm, baselines=baselines)
    output = output or (STACKED_FIGURES if stacked else FIGURES)
    explanation = note(profile, stacked=stacked)
    about = _about(profile, stacked=stacked)
    samples = SampleStore(output.with_suffix(".samples.jsonl"), about, fresh=fresh_start)
    progress = Console(stderr=True)
    console = Console(width=180 if stacked else 150)
    results: Mapping[str, list[Result]]
    if stacked:
        measuring = measure_stacked(
            problems,
            profile,
            SEED,
            samples,
            progress,
        )
        results = {"greedy": asyncio.run(measuring)}
    else:
        results = asyncio.run(
            bench(
                arms,
                samplings,
                problems,
                profile,
                samples,
                progress,
            )
        )
    rows: list[dict[str, Any]] = []
    for name, summary in results.items():
        rows.extend(report(summary, profile, explanation, name))
    output.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    for name, summary in results.items():
        print(f"\n{heading(name)}:\n\n{markdown(summary)}\n")
    console.print(f"{datetime.date.today()}   {platform.machine()}, {output}")
    console.print(explanation, style="dim")


def chosen(names: Sequence[str] | None, *, baselines: bool) -> tuple[Arm, ...]:
    """
    Return the baselines, and the arms called *names* unless only *baselines* are measured.

    None stands for all arms.
    """
    known = {arm.name: arm for arm in OTHERS}
    wrong = [name for name in names or () if name not in known]
    if wrong:
        listed, there = (", ".join(map(repr, names)) for names in (wrong, known))
        raise ConfigurationError(f"no such arm: {listed}; there are {there}")
    if baselines:
        return BASELINES
    others = known if names is None else dict.fromkeys(names)
    return (*BASELINES, *(known[name] for name in others))


def note(profile: Profile, *, stacked: bool) -> str:
    """Return the explanation of the figures."""
    if stacked:
        return f"{small_print(profile)} {STACKED_SMALL_PRINT}"
    return small_print(profile)


def _about(profile: str, *, stacked: bool) -> dict[str, Any]:
    """Return the values that are equal for all samples of one run. The arms may differ."""
    about: dict[str, Any] = {
        "profile": profile,
        "seed": SEED,
        "models": weights_digest(),
    }
    if stacked:
        about["stacked"] = SPECULATIONS
    return about


def report(
    results: Sequence[Result],
    profile: str,
    note: str,
    sampling: str = "greedy",
) -> list[dict[str, Any]]:
    """Return the figures of each arm, and the conditions under which they were measured."""
    how = SAMPLINGS[sampling].model_dump(include={"temperature", "top_p"})
    about: dict[str, Any] = {
        "date": str(datetime.date.today()),
        "profile": profile,
        "seed": SEED,
        "concurrency": 1,
        "note": note,
        "sampling": how,
    }
    return [{**asdict(result), **about} for result in results]


if __name__ == "__main__":
    script(main, EXAMPLES)
