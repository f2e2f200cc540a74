"""
Measure whether reflection finds mistakes in a draft, or whether any second reading makes the model approve of it.

``python -m lab.reflection_control`` shows right and deliberately wrong steps to the miniature
large model and counts which of them reflective verification accepts: without a second reading, after the call to
reflect, and after a neutral text of the same length, each blended as usual and the second reading alone. It prints a
table and writes ``build/confound.json``. If a neutral text helps as much as the call to reflect, the gain comes from
repetition.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import orjson
import typer
from rich.console import Console
from rich.table import Table

from stepspec.evals.command_line import progress_bars, script
from stepspec.evals.results import wilson
from stepspec.evals.testbed.problems import Problem, State, advance, begin, corrupt, expected, generate
from stepspec.evals.testbed.servers import running
from stepspec.orchestrator import Accept, Chain, Model, Step
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.policies import Reflective

Kind: TypeAlias = Literal["right", "wrong result", "wrong step"]
Rule: TypeAlias = Literal["match", "typical"]

KINDS: tuple[Kind, ...] = ("right", "wrong step", "wrong result")
SEED = 5026  # of the problems; training never uses them, with any seed
AT_ONCE = 16  # the miniature server's batch size


@dataclass(frozen=True, slots=True)
class ReadingVariant:
    """A variant of reflective verification."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


READINGS = (
    ReadingVariant("first reading only", {"alpha": 0.0}),
    ReadingVariant("blended with reflection", {"prompt": "reflect"}),
    ReadingVariant("blended with neutral text", {"prompt": "neutral"}),
    ReadingVariant("reflection alone", {"alpha": 1.0, "prompt": "reflect"}),
    ReadingVariant("neutral text alone", {"alpha": 1.0, "prompt": "neutral"}),
)


@dataclass(frozen=True, slots=True)
class DraftCase:
    """A draft of the next step of *chain*, and whether it is right."""

    chain: Chain
    draft: Step
    kind: Kind


@dataclass(frozen=True, slots=True)
class Rate:
    """The drafts of one *kind* that a reading accepted completely, with the 95% interval of the share."""

    reading: str
    kind: Kind
    n: int
    accepted: int
    share: float
    low: float
    high: float


def cases(problems: Iterable[Problem], seed: int) -> list[DraftCase]:
    """
    Three drafts for a random place of each problem: the right step, a wrong one, and one wrong only in its result.

    All steps before the draft are right, so that the draft alone decides.
    """
    rng, drafted = random.Random(f"confound {seed}"), list[DraftCase]()
    for problem in problems:
        states = list(_states(problem))
        chain, state = rng.choice(states)
        drafts: tuple[tuple[Kind, str], ...] = (
            ("right", expected(problem, state)),
            ("wrong step", corrupt(rng, problem, state)),
            ("wrong result", corrupt(rng, problem, state, sums=1.0)),
        )
        drafted += [DraftCase(chain, Step(text, "small"), kind) for kind, text in drafts]
    return drafted


def _states(problem: Problem) -> Iterable[tuple[Chain, State]]:
    chain, state = Chain.of(problem.text), begin(problem)
    while state.index <= len(problem.operations):
        yield chain, state
        step = expected(problem, state)
        chain, state = chain.extend(Step(step, "large")), advance(problem, state, step)


async def rates(
    large: Model,
    cases: Sequence[DraftCase],
    *,
    accept: Rule = "match",
    readings: Sequence[ReadingVariant] = READINGS,
    on_verdict: Callable[[], object] = lambda: None,
) -> list[Rate]:
    """Let *large* judge every case by every reading; a draft of which only a part is kept is not accepted."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def accepts(policy: Reflective, case: DraftCase) -> bool:
        async with slots:
            verdict = await policy.verify(case.chain, case.draft)
        on_verdict()
        return isinstance(verdict, Accept)

    results: list[Rate] = []
    for reading in readings:
        policy = Reflective(large, large, accept=accept, **reading.options)
        accepted = await asyncio.gather(*(accepts(policy, case) for case in cases))
        present = {case.kind for case in cases}
        results += [_rate(reading.name, kind, cases, accepted) for kind in KINDS if kind in present]
    return results


def _rate(reading: str, kind: Kind, cases: Sequence[DraftCase], accepted: Sequence[bool]) -> Rate:
    mine = [verdict for case, verdict in zip(cases, accepted, strict=True) if case.kind == kind]
    interval = wilson(sum(mine), len(mine))
    return Rate(reading, kind, len(mine), sum(mine), interval.value, interval.low, interval.high)


def table(rates: Sequence[Rate]) -> Table:
    """One row per reading: the shares of right steps and of wrong ones that were accepted."""
    by_reading: dict[str, dict[Kind, Rate]] = {}
    for rate in rates:
        by_reading.setdefault(rate.reading, {})[rate.kind] = rate
    first = by_reading[rates[0].reading]
    kinds: list[Kind] = [kind for kind in KINDS if kind in first]
    rendered = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("accepted", *(f"{kind}, n={first[kind].n}" for kind in kinds)):
        rendered.add_column(column, justify="left" if column == "accepted" else "right", no_wrap=True)
    for name, row in by_reading.items():
        rendered.add_row(
            name, *(f"{row[kind].share:.1%} [{row[kind].low:.1%}, {row[kind].high:.1%}]" for kind in kinds)
        )
    return rendered


async def confound(problems: int, accept: Rule, console: Console) -> list[Rate]:
    """Start the miniature large model and measure it on fresh problems."""
    drafts = cases(islice(generate(SEED, "test"), problems), SEED)
    async with running("off", ("large",), console=console) as served:
        settings = Endpoint(role="large", url=served["large"].base_url)
        async with VllmEndpoint(settings) as endpoint:
            with progress_bars(console) as progress:
                bar = progress.add_task("reading", total=len(drafts) * len(READINGS))
                large = endpoint.model()
                return await rates(large, drafts, accept=accept, on_verdict=lambda: progress.advance(bar))


def main(
    problems: Annotated[int, typer.Option(min=1, help="Number of fresh problems, with three drafts each.")] = 300,
    accept: Annotated[Rule, typer.Option(help="The rule by which a token is accepted.")] = "match",
    output: Annotated[Path, typer.Option(help="File for the figures.")] = Path("build/confound.json"),
) -> None:
    """Measure whether reflection finds mistakes, against a neutral text of the same length."""
    results = asyncio.run(confound(problems, accept, Console(stderr=True)))
    about = {"date": str(datetime.date.today()), "accept": accept, "seed": SEED}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(
        orjson.dumps([{**dataclasses.asdict(rate), **about} for rate in results], option=orjson.OPT_INDENT_2)
    )
    Console(width=120).print(table(results))


if __name__ == "__main__":
    script(main)
