"""
Whether `stepspec judge` ranks the readings of a pair as steps do that it never saw: GSM8K's own solutions, with slips.

``python -m lab.real.held_back gsm8k.jsonl judged.json``, where judged.json is the output of ``stepspec judge --json``.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from scipy.stats import spearmanr

from stepspec.api import Solver
from stepspec.evals.command_line import progress_bars, script
from stepspec.evals.estimate.command import parts
from stepspec.evals.flags import SERVERS, with_settings
from stepspec.evals.judge.cases import Case, make_slip, spread
from stepspec.evals.judge.command import table
from stepspec.evals.judge.figures import ReadingFigures, figures
from stepspec.evals.judge.measuring import judge_cases
from stepspec.orchestrator import Chain, Step

CALCULATION = re.compile(r"<<[^>]*>>")
EXAMPLES = """
Examples:

  stepspec judge --json > judged.json && python -m lab.real.held_back gsm8k.jsonl judged.json
"""
stdout, stderr = Console(), Console(stderr=True)


def solved_steps(path: Path, first: int, count: int) -> list[Case]:
    """The steps of the solutions of *count* problems of GSM8K, from the *first* one on, each with a slip."""
    rng, cases = random.Random(first), list[Case]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[first : first + count]):
        row = json.loads(line)
        chain = Chain.of(row["question"])
        for text in CALCULATION.sub("", row["answer"]).partition("####")[0].splitlines():
            step = f"{text.strip()}{chain.ends.text}"
            if text.strip() and (made := make_slip(step, rng)) is not None:
                cases.append(Case(chain, step, *made, number, own=True))
            chain = chain.extend(Step(step, "large"))
    return spread(cases, first)


def agreement(judged: Mapping[str, float], held_back: Mapping[str, float]) -> float:
    """Spearman's rank correlation of the readings' AUROC in both."""
    names = sorted(judged.keys() & held_back.keys())
    return float(spearmanr([judged[name] for name in names], [held_back[name] for name in names]).statistic)


@with_settings("judge", SERVERS)
def command(
    data: Annotated[Path, typer.Argument(help="GSM8K's test set, JSONL.")],
    judged: Annotated[Path, typer.Argument(help="The output of `stepspec judge --json` for the same pair.")],
    first: Annotated[int, typer.Option(min=0, help="The first problem.")] = 400,
    count: Annotated[int, typer.Option(min=1, help="Number of problems.")] = 20,
    minutes: Annotated[float, typer.Option(help="Deadline of the judging.")] = 5,
) -> None:
    """Judge steps of GSM8K's own solutions, and compare the ranking of the readings with that of `stepspec judge`."""
    known = {row["name"]: row["area"] for row in json.loads(judged.read_text())["readings"]}

    async def work() -> Sequence[ReadingFigures]:
        with progress_bars(stderr) as progress:
            async with Solver() as solver:
                steps = await judge_cases(solver, solved_steps(data, first, count), minutes, 0, parts(progress))
                return figures(steps.steps, steps.seconds)

    rows = asyncio.run(work())
    found = {row.reading.name: row.area for row in rows}
    stdout.print(table(rows))
    stdout.print(f"\nrank correlation with {judged}: {agreement(known, found):.2f} over {len(known)} readings")


if __name__ == "__main__":
    script(command, EXAMPLES)
