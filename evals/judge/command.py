"""
The command ``judge``: what the opinion of a pair's large model is worth, and which method fits it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from stepspec.api import Solver
from stepspec.orchestrator.auto import SLOW, Prior
from stepspec.settings import Settings

from ..cli import WIDTH
from ..command_line import print_json, stderr, stdout, write_settings
from ..estimate.command import prepare, with_bars
from ..estimate.measuring import OnPart
from ..estimate.report import settings_file
from ..flags import (
    SAMPLING,
    SERVERS,
    Json,
    Pace,
    ProblemsFile,
    SettingsOutput,
    Testbed,
    with_settings,
)
from ..testbed.solving_pair import pair_solver
from .figures import ACCEPTED, MOST_PASSED, DraftFigures, ReadingFigures, best, figures
from .measuring import JudgedSteps, judge_cases, make_cases, try_drafts
from .readings import Request

PROBLEMS = 20  # of a file of problems, unless --limit says otherwise
EXAMPLES = """
Examples:

  stepspec judge --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # both servers are in stepspec.toml; write the settings that fit
  stepspec judge -o fit.toml && stepspec solve --config fit.toml "..."

  # steps of your own kind of problems, which the large model writes
  stepspec judge --problems problems.txt -n 40

  stepspec judge --testbed --json | jq '.readings[] | [.name, .area.value]'
"""
SMALL_PRINT = (
    "AUROC: the probability that a right step is read as better than a slip; 0.5 is chance;"
    " brackets: 95% intervals. Own steps: the large model samples them at 0.6 in the same places,"
    " and slips are made in them; they set the threshold, which accepts 90% of the right ones,"
    " because each model has a style of its own. Slips let through: their share at this threshold,"
    " with Wilson's 95% interval. Gaps and log-probabilities: in nats, larger ones for worse steps:"
    " of all tokens of a step, of those with digits, or of formulas, which are digits, operators"
    " and what follows a digit. ms: the median of the request with nothing beside it. In"
    " parentheses: a method with no threshold for this reading. Steps are short here, and slips are"
    " one kind of error: `stepspec eval` measures answers."
)


@with_settings("judge", SERVERS, SAMPLING, before="testbed")
def command(
    problems: ProblemsFile = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")
    ] = PROBLEMS,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Deadline of the judging, and a quarter for drafts.")
    ] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the slips and of the order of the steps.")] = 0,
    testbed: Testbed = False,
    profile: Pace = "paced",
    output: SettingsOutput = None,
    json: Json = False,
) -> None:
    """
    Measure what the large model's opinion of a step is worth, without labels, and which method and
    settings fit.

    About 60 short steps are judged in every way that a method does, each once right and once with a
    slip. With --problems, the steps are the large model's own. Then the small model drafts some
    steps, and the method that fits best judges them. The exit code is 0 if a method fits, 1 if none
    does or the servers cannot be measured.
    """
    settings, texts = prepare(problems, limit, minutes, seed, output, testbed=testbed)
    solving = pair_solver(profile, stderr) if testbed else Solver(settings)

    async def work(
        part: OnPart,
    ) -> tuple[
        Settings, JudgedSteps, list[ReadingFigures], ReadingFigures | None, DraftFigures | None
    ]:
        async with solving as solver:
            solver.require_both()
            cases = await make_cases(solver, texts, seed, part, minutes)
            judged = await judge_cases(solver, cases, minutes, seed, part)
            rows = figures(judged.steps, judged.seconds)
            chosen = best(rows)
            drafts = None
            if chosen is not None:
                drafts = await try_drafts(
                    solver, cases, chosen.reading.policy, chosen.options, minutes / 4, part
                )
            return solver.settings if testbed else settings, judged, rows, chosen, drafts

    settings, judged, rows, chosen, drafts = with_bars(settings, work)
    sentence = conclusion(rows, chosen, drafts)
    lines = sentence, f"Measured by `stepspec judge` on {datetime.date.today()}."
    policy = {"policy": chosen.reading.policy if chosen else "large"}
    prior = None
    if drafts:
        prior = Prior(
            accept_rate=drafts.accepted.value,
            verdict_seconds=drafts.verdict_seconds,
            pace=drafts.pace,
        )
    toml = settings_file(settings, lines, policy, chosen.options if chosen else None, prior)
    if json:
        print_json(record(rows, chosen, drafts, judged.cases, judged.skipped, sentence, toml))
    else:
        # so that no cell is cut off
        Console(width=max(stdout.width, WIDTH), markup=False).print(table(rows))
        for request, why in judged.skipped.items():
            stdout.print(f"- {request} was left out: {why}", highlight=False)
        stdout.print(
            f"\n{judged.cases} steps, right and with a slip. {SMALL_PRINT}\n",
            style="dim",
            highlight=False,
        )
        stdout.print(sentence, style="bold", highlight=False, soft_wrap=True)
    write_settings(output, toml)
    if chosen is None:
        raise typer.Exit(1)


def table(rows: Sequence[ReadingFigures]) -> Table:
    """One row for each reading, the best first."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = max((len(row.areas) for row in rows), default=1)
    areas = ("AUROC", "AUROC, own steps")[:shown]
    for column in ("reading", "method", *areas, "ms", "threshold", "slips let through"):
        made.add_column(
            column, justify="left" if column in ("reading", "method") else "right", no_wrap=True
        )
    for row in rows:
        reading = row.reading
        method = reading.policy if reading.options else f"({reading.policy})"
        # surprises are read as negative numbers, so that more is better
        threshold = abs(row.threshold)
        ms = f"{1000 * row.seconds:.0f}"
        intervals = [f"{area:.2f}" for area in row.areas]
        intervals += [""] * (shown - len(intervals))
        made.add_row(reading.name, method, *intervals, ms, f"{threshold:.2f}", f"{row.passed:.0%}")
    return made


def conclusion(
    rows: Sequence[ReadingFigures], chosen: ReadingFigures | None, drafts: DraftFigures | None
) -> str:
    """Which method and settings fit the pair, or that none does."""
    if chosen is None:
        row = min(
            (row for row in rows if row.reading.options),
            key=lambda row: row.passed.value,
            default=rows[0],
        )
        most = f"and {MOST_PASSED:.0%} would be the most"
        why = "but that is known of too few steps" if row.passed.value <= MOST_PASSED else most
        return (
            f"No method fits this pair: the best reading, {row.reading.name}, lets"
            f" {row.passed.value:.0%} of the slips through where it accepts {ACCEPTED:.0%} of the"
            f" right steps, {why}; use the large model alone, or a reward model (--critic)."
        )
    options = ", ".join(f"{name} = {value}" for name, value in chosen.options.items())
    text = (
        f"The method {chosen.reading.policy} with {options} fits this pair: it accepts"
        f" {chosen.accepted:.0%} of the right steps and lets {chosen.passed.value:.0%} of the slips"
        " through"
    )
    if drafts is not None:
        text += (
            f", and it accepts {drafts.accepted:.0%} of {drafts.drafts} drafts of the small model,"
            f" which writes a token in {drafts.pace:.0%} of the large model's time"
        )
        if drafts.pace > SLOW:
            text += ": no draft can save time, choose a smaller model"
    return f"{text}. Only slips were tried: `stepspec eval` measures whether answers stay right."


def record(
    rows: Sequence[ReadingFigures], chosen: ReadingFigures | None, drafts: DraftFigures | None, steps: int,
    skipped: Mapping[Request, str], sentence: str, toml: str,
) -> dict[str, Any]:  # fmt: skip
    """All figures, for ``--json``."""
    return {
        "fits": chosen is not None,
        "conclusion": sentence,
        "policy": chosen.reading.policy if chosen else None,
        "options": dict(chosen.options) if chosen else None,
        "steps": steps,
        "drafts": asdict(drafts) if drafts else None,
        "readings": [_row(row) for row in rows],
        "skipped": dict(skipped),
        "settings": toml,
    }


def _row(row: ReadingFigures) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(row).items() if name != "reading"}
    return {
        "name": row.reading.name,
        "policy": row.reading.policy,
        "area": row.area,
        **fields,
        "options": dict(row.options),
    }
