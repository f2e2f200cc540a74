"""
Does reflecting on a draft find its mistakes, or does a copy only like what it copies?

``python -m stepspec.evals.experiments.reflection_control`` puts right and deliberately wrong steps before the miniature
large model and
counts which of them reflective verification accepts: without a second reading, after the call to reflect, and after a
neutral text of the same length, each blended as usual and the second reading alone. It prints a table and writes
``build/confound.json``. Were a neutral text to do as much as the call to reflect, the gain would be that of repetition.
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

from stepspec.orchestrator import Accept, Chain, Model, Step
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.policies import Reflective

from ..command_line import script
from ..results import wilson
from ..testbed.problems import Problem, State, advance, begin, corrupt, expected, generate
from ..testbed.servers import counting, running

Kind: TypeAlias = Literal["right", "wrong result", "wrong step"]
Rule: TypeAlias = Literal["match", "typical"]

KINDS: tuple[Kind, ...] = ("right", "wrong step", "wrong result")
SEED = 5026  # of the problems; none of them is trained on, whatever it is
AT_ONCE = 16  # as many as the miniature server works on


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a draft."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


READINGS = (
    Reading("first reading only", {"alpha": 0.0}),
    Reading("blended with reflection", {"prompt": "reflect"}),
    Reading("blended with neutral text", {"prompt": "neutral"}),
    Reading("reflection alone", {"alpha": 1.0, "prompt": "reflect"}),
    Reading("neutral text alone", {"alpha": 1.0, "prompt": "neutral"}),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A draft of the next step of *chain*, and what is known of it."""

    chain: Chain
    draft: Step
    kind: Kind


@dataclass(frozen=True, slots=True)
class Rate:
    """How many drafts of one *kind* a reading accepted whole, with the 95% interval of the share."""

    reading: str
    kind: Kind
    n: int
    accepted: int
    share: float
    low: float
    high: float


def cases(problems: Iterable[Problem], seed: int) -> list[Case]:
    """
    Three drafts for a random place of each problem: the right step, a wrong one, and one wrong only in its result.

    What comes before is right, so that the draft alone decides.
    """
    rng, made = random.Random(f"confound {seed}"), list[Case]()
    for problem in problems:
        states = list(_states(problem))
        chain, state = rng.choice(states)
        drafts: tuple[tuple[Kind, str], ...] = (
            ("right", expected(problem, state)),
            ("wrong step", corrupt(rng, problem, state)),
            ("wrong result", corrupt(rng, problem, state, sums=1.0)),
        )
        made += [Case(chain, Step(text, "small"), kind) for kind, text in drafts]
    return made


def _states(problem: Problem) -> Iterable[tuple[Chain, State]]:
    chain, state = Chain.of(problem.text), begin(problem)
    while state.index <= len(problem.operations):
        yield chain, state
        step = expected(problem, state)
        chain, state = chain.extend(Step(step, "large")), advance(problem, state, step)


async def rates(
    large: Model,
    cases: Sequence[Case],
    *,
    accept: Rule = "match",
    readings: Sequence[Reading] = READINGS,
    on_verdict: Callable[[], object] = lambda: None,
) -> list[Rate]:
    """Let *large* judge every case by every reading; a draft of which only a part is kept is not accepted."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def accepts(policy: Reflective, case: Case) -> bool:
        async with slots:
            verdict = await policy.verify(case.chain, case.draft)
        on_verdict()
        return isinstance(verdict, Accept)

    found: list[Rate] = []
    for reading in readings:
        policy = Reflective(large, large, accept=accept, **reading.options)
        stood = await asyncio.gather(*(accepts(policy, case) for case in cases))
        present = {case.kind for case in cases}
        found += [_rate(reading.name, kind, cases, stood) for kind in KINDS if kind in present]
    return found


def _rate(reading: str, kind: Kind, cases: Sequence[Case], stood: Sequence[bool]) -> Rate:
    mine = [accepted for case, accepted in zip(cases, stood, strict=True) if case.kind == kind]
    interval = wilson(sum(mine), len(mine))
    return Rate(reading, kind, len(mine), sum(mine), interval.value, interval.low, interval.high)


def table(rates: Sequence[Rate]) -> Table:
    """One row per reading: the shares of right steps and of wrong ones that were accepted."""
    by_reading: dict[str, dict[Kind, Rate]] = {}
    for rate in rates:
        by_reading.setdefault(rate.reading, {})[rate.kind] = rate
    first = by_reading[rates[0].reading]
    kinds: list[Kind] = [kind for kind in KINDS if kind in first]
    made = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("accepted", *(f"{kind}, n={first[kind].n}" for kind in kinds)):
        made.add_column(column, justify="left" if column == "accepted" else "right", no_wrap=True)
    for name, row in by_reading.items():
        made.add_row(name, *(f"{row[kind].share:.1%} [{row[kind].low:.1%}, {row[kind].high:.1%}]" for kind in kinds))
    return made


async def confound(problems: int, accept: Rule, console: Console) -> list[Rate]:
    """Start the miniature large model and measure it on fresh problems."""
    drafts = cases(islice(generate(SEED, "test"), problems), SEED)
    async with running("off", ("large",), console=console) as served:
        settings = Endpoint(role="large", url=served["large"].base_url)
        async with VllmEndpoint(settings) as endpoint:
            with counting(console) as progress:
                bar = progress.add_task("reading", total=len(drafts) * len(READINGS))
                large = endpoint.model()
                return await rates(large, drafts, accept=accept, on_verdict=lambda: progress.advance(bar))


def main(
    problems: Annotated[int, typer.Option(min=1, help="How many fresh problems, with three drafts each.")] = 300,
    accept: Annotated[Rule, typer.Option(help="The rule by which a token is accepted.")] = "match",
    output: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("build/confound.json"),
) -> None:
    """Measure whether reflection finds mistakes, against a neutral text of the same length."""
    found = asyncio.run(confound(problems, accept, Console(stderr=True)))
    about = {"date": str(datetime.date.today()), "accept": accept, "seed": SEED}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(
        orjson.dumps([{**dataclasses.asdict(rate), **about} for rate in found], option=orjson.OPT_INDENT_2)
    )
    Console(width=120).print(table(found))


if __name__ == "__main__":
    script(main)
