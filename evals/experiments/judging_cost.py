"""
Measure the cost of judging for the large model of the miniature pair: several methods on one long chain.

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
class JudgingMethod:
    """
    A method to judge *steps* drafts that follow the same chain, at one endpoint or several.

    *plain* names the method that it is compared with; *events* collects its requests.
    """

    name: str
    plain: str
    steps: int
    judge: Judge
    events: list[Event]
    at: Sequence[VllmEndpoint] = ()

    async def drafts(self, steps: Iterator[Step]) -> list[Step]:
        """Take drafts with known token ids, like those of a small model with the same vocabulary."""
        drafts = list(islice(steps, self.steps))
        for vllm in self.at:
            for draft in drafts:
                await vllm.encoder.encode(draft.text)
        return drafts


Connected: TypeAlias = tuple[VllmEndpoint, tuple[JudgingMethod, ...]]


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over *n* rounds of one method: seconds, and tokens read that were in no prefix cache."""

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
    """One measurement of one method."""

    name: str
    seconds: float
    read: int
    requests: int


def fresh_steps(seed: int) -> Iterator[Step]:
    """Yield steps of worked problems, every text once, so that no draft is in the server's cache."""
    texts: set[str] = set()
    for problem in generate(seed, "test"):
        for text in worked_steps(problem)[:-1]:
            if text not in texts:
                texts.add(text)
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
async def judging_methods(large: Endpoint, together: int) -> AsyncGenerator[Connected]:
    """Connect to the large model and yield all methods to judge; *together* is the number of questions at once."""
    async with AsyncExitStack() as stack:

        async def connected(**changes: Any) -> VllmEndpoint:
            return await stack.enter_async_context(VllmEndpoint(large.model_copy(update=changes)))

        full, suffix = await connected(suffix_scoring=False), await connected()
        await suffix.capabilities()

        def score(name: str, at: VllmEndpoint) -> JudgingMethod:
            events: list[Event] = []
            model = at.model(observe=events.append)
            return JudgingMethod(name, plain, 1, lambda chain, steps: model.score(chain, steps[0].text), events, [at])

        def reflect(name: str, at: VllmEndpoint) -> JudgingMethod:
            events: list[Event] = []
            model = at.model(observe=events.append)
            policy = Reflective(model, model)
            return JudgingMethod(name, plain, 1, lambda chain, steps: policy.verify(chain, steps[0]), events, [at])

        def ask(name: str, plain: str, at: Sequence[VllmEndpoint], *, at_once: bool = True) -> JudgingMethod:
            events: list[Event] = []
            models = [endpoint.model(observe=events.append) for endpoint in at]

            async def judge(chain: Chain, steps: Sequence[Step]) -> None:
                questions = [
                    model.ask(chain.extend(step), GRADE.text, DIGITS, opening=GRADE.opening)
                    for model, step in zip(models, steps, strict=True)
                ]
                if at_once:
                    await asyncio.gather(*questions)
                else:
                    for question in questions:
                        await question

            return JudgingMethod(name, plain, len(at), judge, events, at)

        plain, in_turn = "one question", f"{together} questions, one after the other"
        yield (
            suffix,
            (
                ask(plain, plain, [suffix]),
                score("BiLD's score, the step alone", suffix),
                score("BiLD's score, the chain again", full),
                reflect("reflective, the step alone", suffix),
                reflect("reflective, the chain again", full),
                ask(in_turn, in_turn, [suffix] * together, at_once=False),
                ask(f"{together} questions at once", in_turn, [suffix] * together),
            ),
        )


async def measure(
    chain: Chain, methods: Sequence[JudgingMethod], rounds: int, on_round: Callable[[], object] = lambda: None
) -> list[Round]:
    """Judge new drafts with every method in turn; the first `WARM_UP` rounds are not counted."""
    steps = fresh_steps(SEED + 1)
    measured: list[Round] = []
    for number in range(-WARM_UP, rounds):
        turn = number % len(methods)
        for method in (*methods[turn:], *methods[:turn]):
            drafts = await method.drafts(steps)
            method.events.clear()
            began = time.perf_counter()
            await method.judge(chain, drafts)
            seconds = time.perf_counter() - began
            calls = [event for event in method.events if isinstance(event, Called)]
            if number >= 0:
                measured.append(Round(method.name, seconds, sum(e.prompt - e.cached for e in calls), len(calls)))
        on_round()
    return measured


def summarise(measured: Sequence[Round], methods: Sequence[JudgingMethod]) -> list[Timing]:
    """Compare the median of every method with that of its plain method."""
    by_name = {
        method.name: [each_round for each_round in measured if each_round.name == method.name] for method in methods
    }
    seconds = {name: sorted(r.seconds for r in rounds) for name, rounds in by_name.items()}
    return [
        Timing(
            method.name,
            len(by_name[method.name]),
            median(seconds[method.name]),
            seconds[method.name][0],
            seconds[method.name][-1],
            median(r.read for r in by_name[method.name]),
            median(r.requests for r in by_name[method.name]),
            method.plain,
            median(seconds[method.name]) / median(seconds[method.plain]),
        )
        for method in methods
    ]


def table(timings: Sequence[Timing]) -> Table:
    """A table with one row per method; `SMALL_PRINT` explains the columns."""
    rendered = Table(box=None, padding=(0, 1, 0, 0))
    for column in ("", "n", "median", "least", "most", "of plain", "tokens read"):
        rendered.add_column(column, justify="right" if column else "left", no_wrap=True)
    for t in timings:
        times = (f"{value * 1000:.0f} ms" for value in (t.seconds, t.least, t.most))
        rendered.add_row(t.name, str(t.n), *times, f"{t.ratio:.2f}", f"{t.read:.0f}")
    return rendered


SMALL_PRINT = (
    "The large miniature model, served by real vLLM on this CPU at the pace of the profile, and one chain that it has "
    "read before. Every round judges new drafts of about 14 tokens with known ids, by every method in turn. Of plain: "
    "the median as a multiple of that of one question, for several questions of that of as many one after the other. "
    "Tokens read: prompt tokens that were in no prefix cache."
)


async def scoring(rounds: int, tokens: int, together: int, profile: str, console: Console) -> tuple[list[Timing], int]:
    """Start the large server and measure; return the timings and the length of the chain in tokens."""
    async with (
        running(profile, ["large"], console=console) as served,
        judging_methods(endpoint(served["large"], "large"), together) as (large, methods),
    ):
        chain = await long_chain(large, tokens)
        with Progress(console=console) as progress:
            bar = progress.add_task("measuring", total=rounds + WARM_UP)
            measured = await measure(chain, methods, rounds, lambda: progress.advance(bar))
        return summarise(measured, methods), len(await large.encoder.chain(chain))


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each method.")] = 40,
    tokens: Annotated[int, typer.Option(min=100, help="Length of the chain; the context is 2048.")] = 1900,
    together: Annotated[int, typer.Option(min=2, help="Number of questions asked at the same time.")] = 6,
    profile: Annotated[str, typer.Option(help="Pace of the model.")] = "paced",
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
