"""The command ``judge``: what the opinion of a pair's large model is worth, and which method fits it."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import Progress

from stepspec.api import Solver
from stepspec.settings import Settings

from ..cli import WIDTH
from ..command_line import finite, only_without_testbed, progress_bars, script, writable
from ..estimate.command import check_pair, parts
from ..estimate.problems import load_problems
from ..flags import SAMPLING, SERVERS, Json, Pace, ProblemsFile, Testbed, with_settings
from ..plan import testbed_settings
from ..testbed.solving_pair import fresh_tasks, pair_solver
from .figures import DraftFigures, ReadingFigures, best, figures
from .measuring import JudgedSteps, judge_cases, make_cases, try_drafts
from .report import SMALL_PRINT, conclusion, record, settings_file, table

PROBLEMS = 20  # of a file of problems, unless --limit says otherwise
EXAMPLES = """
Examples:

  stepspec judge --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # both servers are in stepspec.toml; write the settings that fit
  stepspec judge --write fit.toml && stepspec solve --config fit.toml "..."

  # steps of your own kind of problems, which the large model writes
  stepspec judge --problems problems.txt -n 40

  stepspec judge --testbed --json | jq '.readings[] | [.name, .area.value]'
"""
stdout, stderr = Console(), Console(stderr=True)


@with_settings("judge", SERVERS, SAMPLING, before="testbed")
def command(
    problems: ProblemsFile = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")] = PROBLEMS,
    minutes: Annotated[float, typer.Option(min=0.1, help="Deadline of the judging, and a quarter for drafts.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the slips and of the order of the steps.")] = 0,
    testbed: Testbed = False,
    profile: Pace = "paced",
    write: Annotated[
        Path | None, typer.Option("--write", help="Where to write the settings that fit, as TOML.", metavar="FILE")
    ] = None,
    json: Json = False,
) -> None:
    """
    Measure what the large model's opinion of a step is worth, without labels, and which method and settings fit.

    About 60 short steps are judged in every way that a method does, each once right and once with a slip. With
    --problems, the steps are the large model's own. Then the small model drafts some steps, and the method that fits
    best judges them. The exit code is 0 if a method fits, 1 if none does or the servers cannot be measured, and 2 for
    wrong options.
    """
    finite("--minutes", minutes)
    if write is not None:
        writable("--write", write)
    if testbed:
        only_without_testbed(problems=problems)
        texts = [task.problem for task in fresh_tasks(limit, seed)]  # the only problems that its models know
    else:
        texts = load_problems(problems, limit) if problems else []
    settings = testbed_settings() if testbed else Solver().settings
    if not testbed:
        check_pair(settings)
    solving = pair_solver(profile, stderr, (), seed, problems=0) if testbed else Solver(settings)

    async def work(
        progress: Progress,
    ) -> tuple[Settings, JudgedSteps, list[ReadingFigures], ReadingFigures | None, DraftFigures | None]:
        part = parts(progress)
        async with solving as solver:
            solver.require_both()
            cases = await make_cases(solver, texts, seed, part)
            judged = await judge_cases(solver, cases, minutes, seed, part)
            rows = figures(judged.steps, judged.seconds)
            chosen = best(rows)
            drafts = (
                await try_drafts(solver, cases, chosen.reading.policy, chosen.options, minutes / 4, part)
                if chosen
                else None
            )
            return solver.settings if testbed else settings, judged, rows, chosen, drafts

    with progress_bars(stderr) as progress:
        try:
            settings, judged, rows, chosen, drafts = asyncio.run(work(progress))
        except KeyboardInterrupt:
            stderr.print("interrupted", style="yellow")
            raise typer.Exit(130) from None
    sentence = conclusion(rows, chosen, drafts)
    toml = settings_file(settings, chosen, drafts, sentence, str(datetime.date.today()))
    if json:
        print(orjson.dumps(record(rows, chosen, drafts, judged.cases, judged.skipped, sentence, toml)).decode())
    else:
        Console(width=max(stdout.width, WIDTH)).print(table(rows))  # so that no cell is cut off
        for request, why in judged.skipped.items():
            stdout.print(f"- {request} was left out: {why}", highlight=False, markup=False)
        stdout.print(
            f"\n{judged.cases} steps, each right and with a slip. {SMALL_PRINT}\n", style="dim", highlight=False
        )
        stdout.print(sentence, style="bold", highlight=False, markup=False, soft_wrap=True)
    if write is not None:
        write.write_text(toml, encoding="utf-8")
        stderr.print(f"wrote {write}: name it with --config, or make it stepspec.toml", highlight=False)
    if chosen is None:
        raise typer.Exit(1)


if __name__ == "__main__":
    script(command, EXAMPLES)
