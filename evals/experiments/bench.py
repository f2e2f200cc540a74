"""A nested pair in the small model's place: the tiny model drafts for the small one, and both for the large one."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from stepspec.orchestrator.endpoints import GREEDY, Sampling
from stepspec.orchestrator.errors import ConfigurationError

from ..command_line import script
from ..results import Result, summarise
from ..sample import Arm, Sample, Task
from ..store import SampleStore
from ..testbed.servers import SPECULATIONS, counting, weights_digest
from ..testbed.solving_pair import fresh_tasks, pair_solver, solvers
from .arms import LARGE, SEQUENTIAL, SHIPPED, SMALL, THINKING, THINKING_SEQUENTIAL, measure
from .tables import markdown, small_print, table

THREE = Arm.of("three models", "specreason")
NESTED: Mapping[str, Mapping[str, Any]] = {
    # The small miniature model has not learnt to judge: its grades of the tiny one's steps have an AUROC of 0.49. Its
    # probabilities tell right from wrong (0.95): with this rollback it passes 95% of the right steps, 11% of the wrong.
    THREE.name: {"policy": "bild", "options": {"scale": "step", "fallback": 0.4, "rollback": 1.0}, "ahead": 2},
}

NESTED_SMALL_PRINT = (
    "Three models: SpecReason, whose small model is a pair in its turn. A tiny one drafts, the small one "
    "reads its drafts and writes on where it disagrees (BiLD), and the large one grades what comes of it. What each of "
    "them wrote and read is in the samples' ledgers."
)


OVER = (LARGE, SHIPPED)
WARM_UP = 2  # problems

STACKED_SMALL_PRINT = (
    "With ngram, both servers draft from what was written before; with draft_model, the small model drafts for the "
    "large one as well, within its server, each of its passes at the small model's pace. Tokens of a role: the share "
    "of the drafted tokens that its model accepted, and the tokens that a pass with a draft gave, its own included."
)


def arms(method: str) -> tuple[Arm, ...]:
    """The arms that are measured over *method*; without one, they have their usual names."""
    return OVER if method == "none" else tuple(replace(arm, name=f"{arm.name} + {method}") for arm in OVER)


def described() -> dict[str, object]:
    """What the servers are told, so that samples of other settings are not taken for these."""
    return {
        method: {role: one.configuration("small") for role, one in speculation.items()}
        for method, speculation in SPECULATIONS.items()
    }


async def measure_stacked(
    problems: int, profile: str, seed: int, samples: SampleStore, console: Console
) -> list[Result]:
    """Measure every method's arms on the same fresh problems; what *samples* have is not run again."""
    tasks, chosen = fresh_tasks(problems, seed), {method: arms(method) for method in SPECULATIONS}
    with samples:
        for method, over in chosen.items():
            if left := missing(over, tasks, samples):
                speculation = SPECULATIONS[method]
                pair = pair_solver(profile, console, over, seed + 1, problems=WARM_UP, speculation=speculation)
                async with pair as solver:
                    with counting(console) as progress:
                        tell = partial(progress.advance, progress.add_task(method, total=left))
                        await measure(solver, over, tasks, on_sample=_keeping(samples, tell), done=samples.done)
    every = [arm for over in chosen.values() for arm in over]
    return summarise([samples.done[number, arm.name] for number in range(len(tasks)) for arm in every], every)


def missing(chosen: Sequence[Arm], tasks: Sequence[Task], samples: SampleStore) -> int:
    """How many samples of *chosen* are still to be measured."""
    return sum((number, arm.name) not in samples.done for number in range(len(tasks)) for arm in chosen)


def _keeping(samples: SampleStore, tell: Callable[[], None]) -> Callable[[int, Sample], None]:
    def keep(number: int, sample: Sample) -> None:
        samples.add(number, sample)
        tell()

    return keep


BASELINES = (LARGE, SMALL, SEQUENTIAL, SHIPPED, THINKING_SEQUENTIAL, THINKING)
OTHERS = (
    Arm.of("SpecReason, hedged", "specreason", hedge=0.9),
    Arm.of("SpecReason, greedy", "specreason", {"read": "greedy"}),
    Arm.of("SpecReason, sure bets", "specreason", sure_bets=True),
    Arm.of("SpecReason, large answers", "specreason", answer="large"),
    Arm.of("SpecReason, small ends", "specreason", ending="small"),
    Arm.of("choose", "choose"),
    THREE,
    Arm.of("random, p = 0.9", "random", {"p": 0.9}),
    Arm.of("speculative thinking", "speculative-thinking"),
    Arm.of("BiLD, tokens", "bild"),
    Arm.of("BiLD, steps", "bild", {"scale": "step"}),
    Arm.of("reflective", "reflective"),
    Arm.of("relay", "relay"),
    Arm.of("glimpse", "glimpse"),
    Arm.of("cascade", "cascade"),
    Arm.of("lookahead reasoning", "lookahead-reasoning"),
)
SAMPLINGS: Mapping[str, Sampling] = {"default": Sampling(), "greedy": GREEDY}  # in the order of the tables
POINTS_LOST, OF_LARGE, OF_SEQUENTIAL = 0.02, 0.45, 0.8
BEST_OF_LARGE, BEST_POINTS_LOST = 0.40, 0.01  # SpecReason and at least one other method
SEED = 2026  # of the problems; none of them is trained on, whatever it is
FIGURES = Path("build/bench.json")
EXAMPLES = """
Examples:

  python -m stepspec.evals.experiments.bench              # every arm at both samplings, 200 problems: three hours

  python -m stepspec.evals.experiments.bench --baselines --sampling greedy --problems 20 --markdown

  python -m stepspec.evals.experiments.bench --arm choose --arm "BiLD, tokens"

  python -m stepspec.evals.experiments.bench --stacked --problems 50

  python -m stepspec.evals.experiments.bench --profile slow --output build/slow.json
"""


def missed(results: Sequence[Result]) -> list[str]:
    """
    Which of the bars are missed, in words; those of arms that were not measured are not checked.

    The bars are those of `THINKING`: the miniature judge was never taught to grade an answer, and refuses all of them.
    """
    by_name = {result.name: result for result in results}
    large, sequential, thinking = (by_name[arm.name] for arm in (LARGE, THINKING_SEQUENTIAL, THINKING))
    bars = (
        ("accuracy lost against the large model alone", large.accuracy - thinking.accuracy, POINTS_LOST),
        ("wall time over the large model alone", thinking.ratio_to_large, OF_LARGE),
        ("wall time over sequential", thinking.seconds / sequential.seconds, OF_SEQUENTIAL),
    )
    found = [f"{what}: {value:.3f}, bar {bar}" for what, value, bar in bars if value > bar + 1e-9]
    others = [by_name[arm.name] for arm in OTHERS if arm.name in by_name and arm.policy != SHIPPED.policy]
    if others:
        good = [r.name for r in (thinking, *others) if _good(r, large)]
        if THINKING.name not in good or len(good) < 2:
            bar = f"{BEST_OF_LARGE} of large alone at {BEST_POINTS_LOST:.0%} of accuracy"
            found.append(f"SpecReason and another method within {bar}: {', '.join(good) or 'none'}")
    return found


def _good(result: Result, large: Result) -> bool:
    return result.ratio_to_large <= BEST_OF_LARGE and result.accuracy >= large.accuracy - BEST_POINTS_LOST - 1e-9


def sampled(arms: Sequence[Arm], sampling: str) -> tuple[Arm, ...]:
    """The *arms* at one of `SAMPLINGS`; those that are greedy keep their names, the others say what they are."""
    own = SAMPLINGS[sampling].model_dump(include={"temperature", "top_p"})
    return tuple(replace(arm, name=named(arm, sampling), sampling=own) for arm in arms)


def named(arm: Arm, sampling: str) -> str:
    """The name of *arm* at one of `SAMPLINGS`."""
    return arm.name if sampling == "greedy" else f"{arm.name}, temperature {SAMPLINGS[sampling].temperature}"


def heading(sampling: str) -> str:
    """What stands above the table of one of `SAMPLINGS`."""
    chosen = SAMPLINGS[sampling]
    return (
        f"Sampled at temperature {chosen.temperature}, top_p {chosen.top_p} (the default)"
        if chosen.temperature
        else "Greedy (temperature 0)"
    )


async def bench(
    arms: Sequence[Arm], samplings: Sequence[str], problems: int, profile: str, samples: SampleStore, console: Console
) -> Mapping[str, list[Result]]:
    """
    Run the *arms* on the same fresh problems at each of the *samplings*, one at a time, all of them interleaved.

    What *samples* have is not run again. Return the results by sampling; the arms have their own names in them.
    """
    tasks, nested = fresh_tasks(problems, SEED), {arm.name: NESTED[arm.name] for arm in arms if arm.name in NESTED}
    every = [arm for sampling in samplings for arm in sampled(arms, sampling)]
    solving = solvers(profile, console, tuple(arms), SEED + 1, problems=2, nested=nested)
    async with solving as (solver, others):
        by_arm = {named(arm, one): others[arm.name] for one in samplings for arm in arms if arm.name in others}
        with samples, counting(console) as progress:
            left = missing(every, tasks, samples)
            bar = progress.add_task("measuring", total=problems * len(every), completed=problems * len(every) - left)

            def keep(number: int, sample: Any) -> None:
                samples.add(number, sample)
                progress.advance(bar)

            await measure(solver, every, tasks, on_sample=keep, done=samples.done, solvers=by_arm, base=SEED)
    results: dict[str, list[Result]] = {}
    for sampling in samplings:
        places = [(number, arm) for number in range(len(tasks)) for arm in arms]
        found = [replace(samples.done[number, named(arm, sampling)], arm=arm.name) for number, arm in places]
        results[sampling] = summarise(found, arms)
    return results


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
    sampling: Annotated[
        str,
        typer.Option(
            help="Measure at the default sampling (default), greedily (greedy), or both; --stacked is greedy."
        ),
    ] = "both",
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
    """Measure the miniature pair, sampled and greedy, and compare the greedy runs with the bars."""
    if stacked and (arm or baselines):
        raise ConfigurationError("--stacked has arms of its own: leave --arm and --baselines out")
    if sampling not in ("both", *SAMPLINGS):
        raise ConfigurationError(f"no such sampling: {sampling!r}; there are 'both', 'default', 'greedy'")
    samplings = tuple(SAMPLINGS) if sampling == "both" else (sampling,)
    arms = chosen(arm, baselines=baselines)
    output = output or (FIGURES.with_stem(f"{FIGURES.stem}-stacked") if stacked else FIGURES)
    said = note(arms, profile, stacked=stacked)
    about = _about(profile, stacked=stacked)
    samples = SampleStore(output.with_suffix(".samples.jsonl"), about, fresh=fresh_start)
    progress, console = Console(stderr=True), Console(width=180 if stacked else 150)
    results: Mapping[str, list[Result]]
    if stacked:
        results = {"greedy": asyncio.run(measure_stacked(problems, profile, SEED, samples, progress))}
    else:
        results = asyncio.run(bench(arms, samplings, problems, profile, samples, progress))
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for one, found in results.items() for row in report(found, profile, said, one)]
    output.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    for one, found in results.items():
        console.print(heading(one), style="bold")
        console.print(table(found))
        if as_markdown:
            print(f"\n{heading(one)}:\n\n{markdown(found)}\n")
    console.print(f"{datetime.date.today()}   {platform.machine()}, {output}")
    console.print(said, style="dim")
    if not stacked:
        _compare(results, console)


def _compare(results: Mapping[str, Sequence[Result]], console: Console) -> None:
    """Print how the baselines compare; exit with 1 if a bar is missed, which are those of greedy runs."""
    for sampling, found in results.items():
        by_name = {result.name: result for result in found}
        for arm, sequential in ((SHIPPED, SEQUENTIAL), (THINKING, THINKING_SEQUENTIAL)):
            ratio, of_large = (
                by_name[arm.name].seconds / by_name[sequential.name].seconds,
                by_name[arm.name].ratio_to_large,
            )
            console.print(
                f"{heading(sampling)}: {arm.name} over sequential {ratio:.2f}, over large alone {of_large:.2f}"
            )
    lost = missed(results["greedy"]) if "greedy" in results else []
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
        return f"{small_print(profile)} {STACKED_SMALL_PRINT}"
    return f"{small_print(profile, 'tiny')} {NESTED_SMALL_PRINT}" if THREE in arms else small_print(profile)


def _about(profile: str, *, stacked: bool) -> dict[str, Any]:
    """What has to be the same for samples to belong together; which arms there are is not."""
    about = {"profile": profile, "seed": SEED, "models": weights_digest("large", "small", "tiny")}
    return {**about, "stacked": described()} if stacked else about


def report(results: Sequence[Result], profile: str, note: str, sampling: str = "greedy") -> list[dict[str, Any]]:
    """A list of arms; each carries what it was measured on, so that no figure stands alone."""
    how = SAMPLINGS[sampling].model_dump(include={"temperature", "top_p"})
    about = {"date": str(datetime.date.today()), "profile": profile, "seed": SEED, "note": note, "sampling": how}
    return [{**dataclasses.asdict(result), **about} for result in results]


if __name__ == "__main__":
    script(main, EXAMPLES)
