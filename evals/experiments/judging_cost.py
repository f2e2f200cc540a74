"""
Measure what judging costs the large model of the miniature pair, each way beside the plain one, on one long chain.

``python -m stepspec.evals.experiments.judging_cost`` prints a table and writes ``build/scoring.json``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import platform
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeAlias

import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.endpoints import Endpoint, VllmEndpoint
from stepspec.orchestrator.events import Called, Event
from stepspec.policies import Reflective
from stepspec.prompts import load

from ..command_line import script
from ..testbed.problems import generate, worked_steps
from ..testbed.servers import endpoint, running

GRADE = load("specreason.grade")
DIGITS = "0123456789"
SEED = 2026  # of the texts
WARM_UP = 3  # rounds that are not counted
Judge: TypeAlias = Callable[[Chain, Sequence[Step]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Way:
    """
    One way to judge *steps* drafts that follow the same chain, at one endpoint or at several.

    *plain* names the way that it is to be compared with; *events* collects its requests.
    """

    name: str
    plain: str
    steps: int
    judge: Judge
    events: list[Event]
    at: Sequence[VllmEndpoint] = ()

    async def drafts(self, steps: Iterator[Step]) -> list[Step]:
        """Take drafts whose token ids are known, as those of a small model with the same vocabulary are."""
        drafts = list(islice(steps, self.steps))
        for each in self.at:
            for draft in drafts:
                await each.encoder.encode(draft.text)
        return drafts


@dataclass(frozen=True, slots=True)
class Timing:
    """What *n* rounds of one way took, in seconds, and how many tokens a round read that were in no cache: medians."""

    name: str
    n: int
    seconds: float
    least: float
    most: float
    read: float
    requests: float
    plain: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Round:
    """One way, once."""

    name: str
    seconds: float
    read: int
    requests: int


def fresh_steps(seed: int) -> Iterator[Step]:
    """Yield steps of worked problems, every text once: the server has not read what comes after the chain."""
    seen: set[str] = set()
    for problem in generate(seed, "test"):
        for text in worked_steps(problem)[:-1]:
            if text not in seen:
                seen.add(text)
                yield Step(text, "small")


async def long_chain(large: VllmEndpoint, tokens: int) -> Chain:
    """Make a chain of steps that fills *tokens* of the model's context, the problem included."""
    chain = Chain.of(next(generate(SEED, "test")).text)
    for step in fresh_steps(SEED):
        grown = chain.extend(step)
        if len(await large.encoder.chain(grown)) > tokens:
            return chain
        chain = grown
    raise AssertionError("there is no end of problems")


@asynccontextmanager
async def ways(large: Endpoint, together: int) -> AsyncGenerator[tuple[VllmEndpoint, tuple[Way, ...]]]:
    """Connect to the large model, which scores suffixes, in every way there is to judge; *together* is how many."""
    async with AsyncExitStack() as stack:

        async def connected(**changes: Any) -> VllmEndpoint:
            return await stack.enter_async_context(VllmEndpoint(large.model_copy(update=changes)))

        whole, suffix = await connected(suffix_scoring=False), await connected()
        await suffix.capabilities()

        def score(name: str, at: VllmEndpoint) -> Way:
            events: list[Event] = []
            model = at.model(observe=events.append)
            return Way(name, plain, 1, lambda chain, steps: model.score(chain, steps[0].text), events, [at])

        def reflect(name: str, at: VllmEndpoint) -> Way:
            events: list[Event] = []
            model = at.model(observe=events.append)
            policy = Reflective(model, model)
            return Way(name, plain, 1, lambda chain, steps: policy.verify(chain, steps[0]), events, [at])

        def ask(name: str, plain: str, at: Sequence[VllmEndpoint], *, at_once: bool = True) -> Way:
            events: list[Event] = []
            models = [one.model(observe=events.append) for one in at]

            async def judge(chain: Chain, steps: Sequence[Step]) -> None:
                asking = [
                    model.ask(chain.extend(step), GRADE.text, DIGITS, opening=GRADE.opening)
                    for model, step in zip(models, steps, strict=True)
                ]
                if at_once:
                    await asyncio.gather(*asking)
                else:
                    for each in asking:
                        await each

            return Way(name, plain, len(at), judge, events, at)

        plain, asked = "one question", f"{together} questions, one after the other"
        yield (
            suffix,
            (
                ask(plain, plain, [suffix]),
                score("BiLD's score, the step alone", suffix),
                score("BiLD's score, the chain again", whole),
                reflect("reflective, the step alone", suffix),
                reflect("reflective, the chain again", whole),
                ask(asked, asked, [suffix] * together, at_once=False),
                ask(f"{together} questions at once", asked, [suffix] * together),
            ),
        )


async def measure(
    chain: Chain, ways: Sequence[Way], rounds: int, on_round: Callable[[], object] = lambda: None
) -> list[Round]:
    """Judge drafts that nobody has read, in every way, in turns; the first rounds warm up and are left out."""
    steps = fresh_steps(SEED + 1)
    measured: list[Round] = []
    for number in range(-WARM_UP, rounds):
        turn = number % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            drafts = await way.drafts(steps)
            way.events.clear()
            began = time.perf_counter()
            await way.judge(chain, drafts)
            seconds = time.perf_counter() - began
            calls = [event for event in way.events if isinstance(event, Called)]
            if number >= 0:
                measured.append(Round(way.name, seconds, sum(e.prompt - e.cached for e in calls), len(calls)))
        on_round()
    return measured


def summarise(measured: Sequence[Round], ways: Sequence[Way]) -> list[Timing]:
    """Compare every way with its plain one, by the medians."""
    by_name = {way.name: [each for each in measured if each.name == way.name] for way in ways}
    seconds = {name: sorted(each.seconds for each in each_round) for name, each_round in by_name.items()}
    return [
        Timing(
            way.name,
            len(by_name[way.name]),
            median(seconds[way.name]),
            seconds[way.name][0],
            seconds[way.name][-1],
            median(each.read for each in by_name[way.name]),
            median(each.requests for each in by_name[way.name]),
            way.plain,
            median(seconds[way.name]) / median(seconds[way.plain]),
        )
        for way in ways
    ]


def table(timings: Sequence[Timing]) -> Table:
    """One row per way; the small print says what the columns mean."""
    made = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("", "n", "median", "least", "most", "of plain", "tokens read"):
        made.add_column(column, justify="right" if column else "left", no_wrap=True)
    for t in timings:
        times = (f"{value * 1000:.0f} ms" for value in (t.seconds, t.least, t.most))
        made.add_row(t.name, str(t.n), *times, f"{t.ratio:.2f}", f"{t.read:.0f}")
    return made


SMALL_PRINT = (
    "The large miniature model, served by real vLLM on this CPU at the pace of the profile, and one chain that it has "
    "read before. Every round judges new drafts of about 14 tokens with known ids, in every way in turn. Of plain: the "
    "median over that of one question, for several over that of as many one after the other. Tokens read: prompt "
    "tokens that were in no prefix cache."
)


async def scoring(rounds: int, tokens: int, together: int, profile: str, console: Console) -> tuple[list[Timing], int]:
    """Start the large server and measure; return the timings and the length of the chain in tokens."""
    async with (
        running(profile, ["large"], console=console) as served,
        ways(endpoint(served["large"], "large"), together) as (large, all_ways),
    ):
        chain = await long_chain(large, tokens)
        with Progress(console=console) as progress:
            bar = progress.add_task("measuring", total=rounds + WARM_UP)
            measured = await measure(chain, all_ways, rounds, lambda: progress.advance(bar))
        return summarise(measured, all_ways), len(await large.encoder.chain(chain))


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each way is measured.")] = 40,
    tokens: Annotated[int, typer.Option(min=100, help="Length of the chain; the context is 2048.")] = 1900,
    together: Annotated[int, typer.Option(min=2, help="How many questions are asked at the same moment.")] = 6,
    profile: Annotated[str, typer.Option(help="How the model's passes are paced.")] = "paced",
    output: Annotated[Path, typer.Option(help="Where to write the figures.")] = Path("build/scoring.json"),
) -> None:
    """Measure scores and questions on one long chain."""
    timings, length = asyncio.run(scoring(rounds, tokens, together, profile, Console(stderr=True)))
    about = {"date": str(datetime.date.today()), "profile": profile, "chain_tokens": length, "note": SMALL_PRINT}
    output.parent.mkdir(parents=True, exist_ok=True)
    report = [{**dataclasses.asdict(timing), **about} for timing in timings]
    output.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    console = Console(width=120)
    console.print(table(timings))
    console.print(f"a chain of {length} tokens   {datetime.date.today()}   {platform.machine()}, {output}")
    console.print(SMALL_PRINT, style="dim")


if __name__ == "__main__":
    script(main)
