"""
Could an exact method win? Rejection sampling over two servers, beside token-level speculation.

A method that accepts a draft's token with probability min(1, p/q), and else draws from what p has
above q, writes as the large model samples (Leviathan et al. 2023; Chen et al. 2023). `collect`
reads texts that the large model sampled with both models. Given the text, a token came from the
draft with probability min(1, q/p). `compare` draws these outcomes and adds up modelled seconds: by
steps through the loop, with the drawn tokens for free, and by tokens within one server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated, TypeAlias

import typer

from lab.tables import Sheet, written
from stepspec.api import Solver
from stepspec.cli.program import script
from stepspec.evals.plain import PLAIN
from stepspec.evals.results import Interval, bootstrap_ratio
from stepspec.orchestrator import Chain, Model, Token
from stepspec.orchestrator.endpoints import Endpoint

from .modelled import LARGE, SMALL, Recorded, play
from .runs import (
    PATIENT,
    RUNS,
    TOP_K,
    TOP_P,
    Cell,
    RunStore,
    Work,
    chosen_problems,
    read_samples,
)

Odds: TypeAlias = Sequence[tuple[float, float]]
"""For each token of a text, its probability by the large and by the small model's sampling."""

ROUNDING = 1e-9
"""Relative difference of two weights that count as equal."""
CONCURRENCY = 8
"""Texts read at the same time."""
DRAWS = 5
"""Draws of the outcomes for each text."""
STEP_LENGTHS = (4, 6, 8, 12, 16, 24)
"""Tokens of a draft by steps that are tried."""
TOKEN_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 12)
"""Tokens of a draft within the server that are tried."""
AHEAD = 2
"""Drafts ahead of the verdict."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Seconds over those of the large model alone, all texts together."""

    texts: int
    """Number of texts."""
    accepted: float
    """Mean probability that a token of the texts came from the draft."""
    by_steps: Mapping[int, Interval]
    """Over two servers, by the tokens of a draft; the verdict brings the token at a cut."""
    by_requests: Mapping[int, Interval]
    """The same, where the large model is asked for the token at a cut."""
    by_tokens: Mapping[int, Interval]
    """Within the large model's server, by the tokens of a draft."""

    def table(self) -> str:
        """Markdown, with a row for each length of a draft."""
        rows = [
            (
                str(length),
                written(self.by_requests.get(length)),
                written(self.by_steps.get(length)),
                written(self.by_tokens.get(length)),
            )
            for length in sorted(self.by_steps.keys() | self.by_tokens.keys())
        ]
        columns = (
            "tokens of a draft",
            "two servers, a token asked for",
            "two servers, a token from the verdict",
            "one server, token by token",
        )
        title = f"{self.texts} texts; {self.accepted:.3f} of the tokens come from a draft"
        return Sheet(columns, rows, title).markdown()


def processed(token: Token, temperature: float) -> float:
    """
    Return the probability of *token* after temperature, top k and top p.

    Its `top` has the likeliest tokens of its position, with log-probabilities at temperature 1.
    """
    likeliest = sorted((other.logprob for other in token.top), reverse=True)[:TOP_K]
    weights = [exp((logprob - likeliest[0]) / temperature) for logprob in likeliest]
    least = TOP_P * sum(weights)
    kept = [
        weight
        for weight, before in zip(weights, accumulate(weights, initial=0.0), strict=False)
        if before < least
    ]
    weight = exp((token.logprob - likeliest[0]) / temperature)
    return weight / sum(kept) if weight >= kept[-1] * (1 - ROUNDING) else 0.0


async def read_odds(
    small: Model, large: Model, problem: str, text: str, temperature: float
) -> Odds:
    """
    Read a *text* that the large model wrote with both models; at temperature 0, each token is its
    choice.
    """
    chain = replace(Chain.of(problem), thinks=False)
    (ours,) = await small.score(chain, text, top=TOP_K)
    if temperature == 0:
        return [(1.0, float(q.rank == 1)) for q in ours]
    (theirs,) = await large.score(chain, text, top=TOP_K)
    return [
        (round(processed(p, temperature), 4), round(processed(q, temperature), 4))
        for p, q in zip(theirs, ours, strict=True)
    ]


async def collect(urls: Mapping[str, str], cell: Cell, work: Work, file: Path) -> None:
    """Read the texts of *cell* with both models; add those that *file* lacks."""
    tasks = work.tasks()[cell.benchmark]
    (texts,) = read_samples(work.folder, [cell], work.problems).values()
    small = Endpoint(role="small", url=urls["small"], deadlines=PATIENT)
    large = Endpoint(role="large", url=urls["large"], deadlines=PATIENT)
    with RunStore(file, cell.about()) as store:
        async with Solver(small, large) as solver:
            queue = iter([number for number in texts if number not in store.done])

            async def read_next() -> None:
                for number in queue:
                    ours = solver.small.model()
                    theirs = solver.large.model()
                    problem = tasks[number].problem
                    text = texts[number]["text"]
                    odds = await read_odds(ours, theirs, problem, text, cell.temperature)
                    store.add({"problem": number, "odds": odds})

            async with asyncio.TaskGroup() as group:
                for _ in range(work.concurrency):
                    group.create_task(read_next())


def compare(texts: Sequence[Odds]) -> Exact:
    """Compare both ways to sample exactly, on texts whose tokens have these odds."""
    rng = Random(0)
    chances = [[min(1.0, q / p) if p else 0.0 for p, q in odds] for odds in texts]
    drawn = [
        [{at for at, chance in enumerate(text) if rng.random() >= chance} for _ in range(DRAWS)]
        for text in chances
    ]
    alone = [LARGE * len(odds) for odds in texts]
    tokens = [chance for text in chances for chance in text]

    def ratio(seconds: Callable[[set[int], int], float]) -> Interval:
        mean = [
            fmean(seconds(cuts, len(odds)) for cuts in outcomes)
            for outcomes, odds in zip(drawn, texts, strict=True)
        ]
        return bootstrap_ratio(mean, alone)

    return Exact(
        texts=len(texts),
        accepted=fmean(tokens),
        by_steps={length: ratio(partial(by_steps, length, 0.0)) for length in STEP_LENGTHS},
        by_requests={length: ratio(partial(by_steps, length, LARGE)) for length in STEP_LENGTHS},
        by_tokens={length: ratio(partial(by_tokens, length)) for length in TOKEN_LENGTHS},
    )


def by_steps(length: int, repair_seconds: float, cuts: set[int], total: int) -> float:
    """Seconds of a text over two servers; the token at a cut takes *repair_seconds*."""
    record = Recorded(dict.fromkeys(cuts, 1), total, length, repair_seconds=repair_seconds)
    return play(record, AHEAD)


def by_tokens(length: int, cuts: set[int], total: int) -> float:
    """Seconds of a text within a server whose large model reads each draft in one pass."""
    at = 0
    seconds = 0.0
    while at < total:
        seconds += length * SMALL + LARGE
        accepted = next((size for size in range(length) if at + size in cuts), length)
        at += accepted + 1
    return seconds


def command(
    file: Annotated[Path, typer.Argument(help="The odds of the texts; new ones are added.")],
    folder: Annotated[Path, typer.Option(help="The samples of plain.")] = RUNS,
    temperature: Annotated[float, typer.Option(help="That of the samples.")] = 0.6,
    problems: Annotated[str, typer.Option(help="The first and the last, from 0.")] = "140-169",
    small: Annotated[str | None, typer.Option(help="URL of the small model's server.")] = None,
    large: Annotated[str | None, typer.Option(help="URL of the large model's server.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder with gsm8k.jsonl.")] = None,
) -> None:
    """Compare exact sampling over two servers with token-level speculation in one."""
    cell = Cell("gsm8k", temperature, PLAIN)
    if small and large:
        work = Work([cell], chosen_problems(problems), CONCURRENCY, folder, data)
        asyncio.run(collect({"small": small, "large": large}, cell, work, file))
    store = RunStore(file, cell.about())
    print(compare([line["odds"] for line in store.done.values()]).table())


if __name__ == "__main__":
    script(command)
