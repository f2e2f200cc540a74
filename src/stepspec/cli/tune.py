"""The command ``tune``: whether a pair pays, with which method, and the settings to use."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from stepspec import prompts
from stepspec.evals.benchmarks import BENCHMARKS, choose, load
from stepspec.evals.grading.graders import Answer, require_graders
from stepspec.evals.plan import check_arm
from stepspec.evals.sample import Arm, Task
from stepspec.evals.testbed.solving_pair import fresh_tasks
from stepspec.evals.tune.accuracy import compare_answers
from stepspec.evals.tune.drafts import has_ended
from stepspec.evals.tune.judging import numbers
from stepspec.evals.tune.measuring import Measured, Measuring
from stepspec.evals.tune.report import Report
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings

from .command_line import finite, only_without_testbed, print_json, writable, write_file
from .eval import BASELINES, configured
from .eval import arms as named_arms
from .flags import (
    BUDGET,
    SAMPLING,
    Json,
    Pace,
    Policies,
    SettingsOutput,
    Testbed,
    with_settings,
)
from .problems import ANSWERS, PROBLEMS, read_problems
from .program import log, stderr, stdout, wait

CANDIDATES = (
    "specreason",
    "reading",
    "reading:threshold=0",
    "reading:tokens=formulas,threshold=2,draft_tokens=null,repair_tokens=null",
    "bild",
    "reflective",
)
"""The methods that are compared, with their options, unless --policy names others."""
WITH_CRITIC = ("reward",)
"""Further methods, if a reward model is known."""
ANSWER_SHARE = 0.3  # of the time, for answers, if the right ones are known
ANSWER_CHARACTERS = 300  # at the end of a chain, in which its answer stands
SEED = 0  # of generated problems
EXIT_CODES = {"pays": 0, "does not pay": 1, "not known": 2}
TUNE_EXAMPLES = """
Examples:

  stepspec tune --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1 -o stepspec.toml

  # both servers are in stepspec.toml; your problems, with answers, and longer
  stepspec tune --problems problems.jsonl -n 40 --minutes 15 --users 16

  stepspec tune --problems gsm8k -p specreason:threshold=8 -p bild

  # the miniature pair; no GPU
  stepspec tune --testbed --json | jq .headline
"""


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """Problems to measure with."""

    texts: tuple[str, ...]
    """What the models read."""
    words: str
    """What they are, in words."""
    answers: tuple[str, ...] = ()
    """The right answers; empty if they are unknown, or if a benchmark's own code grades them."""
    tasks: tuple[Task, ...] = ()
    """The same problems, if answers of both are to be compared."""


@with_settings("system", *SAMPLING, *BUDGET)
def command(
    policy: Policies = None,
    problems: Annotated[
        Path | None,
        Option(
            help=(
                "A benchmark, or a file of problems: one a line, or JSONL or Parquet with answers."
            ),
        ),
    ] = None,
    limit: Annotated[int, Option("--limit", "-n", min=1, help="Maximum number of problems.")] = len(
        PROBLEMS
    ),
    users: Annotated[int, Option(min=2, help="Number of users to measure for, beside one.")] = 8,
    minutes: Annotated[
        float, Option(min=0.1, help="Limit of the measurement; there is an answer then.")
    ] = 4.0,
    testbed: Testbed = False,
    profile: Pace = "paced",
    output: SettingsOutput = None,
    json: Json = False,
) -> None:
    """
    Measure both servers for four minutes, say whether a method pays and which one, and write the
    settings.

    First the paces of both servers, where it ends if the small model cannot pay. Then the large
    model writes chains, the small one drafts at their steps, and every method judges the same
    drafts. Nobody else should use the servers meanwhile. With --verbose, more is printed. The exit
    code is 0 if a method pays, 1 if none does or a server fails, 2 if that is not known yet.
    """
    finite("--minutes", minutes)
    if output is not None:
        writable("--output", output)
    chosen = read_set(problems, limit, testbed=testbed)
    opening, settings = configured(profile, testbed=testbed)
    arms = choose_arms(policy, settings)
    graded = minutes * ANSWER_SHARE if chosen.tasks else 0.0

    async def work(on_part: Callable[[str], object]) -> tuple[Report, Settings]:
        async with opening as solver:
            solver.require_both()
            measuring = Measuring(solver, arms, chosen.texts, users, on_part)
            measured = await measuring.measure(minutes - graded)
            report = make_report(measured, minutes, chosen)
            best = report.best
            if chosen.tasks and best is not None and not measured.interrupted:
                on_part("answers")
                try:
                    accuracy = await compare_answers(
                        solver,
                        best.arm,
                        chosen.tasks,
                        users,
                        60 * graded,
                    )
                    report = replace(report, accuracy=accuracy)
                except asyncio.CancelledError:
                    measured.interrupted = True
            return report, solver.settings

    with prompts.replacing(settings.prompts), stderr.status("measuring") as status:
        report, used = wait(work(lambda part: status.update(f"measuring {part}")))
    toml = report.settings(used, str(datetime.date.today()))
    if json:
        print_json(report.record(toml))
    else:
        show(report, str(output or ""))
    if output is not None:
        write_file(output, toml)
    code = 130 if report.measured.interrupted else EXIT_CODES[report.verdict]
    if code:
        raise typer.Exit(code)


def read_set(path: Path | None, limit: int, *, testbed: bool = False) -> ProblemSet:
    """
    The first problems of the file at *path*, or of the benchmark of that name; None: built-in ones.

    Those of the *testbed* are its own. Raise `ConfigurationError` for a file or a name that is
    neither.
    """
    if testbed:
        only_without_testbed(problems=path)
        return with_answers(tuple(fresh_tasks(limit, SEED)), "the miniature pair")
    if path is None:
        texts = PROBLEMS[:limit]
        return ProblemSet(texts, f"{len(texts)} built-in ones; give yours", ANSWERS[:limit])
    name = str(path)
    if path.suffix == ".parquet" or name in BENCHMARKS or _has_answers(path):
        benchmark, data = choose(name)
        return with_answers(tuple(load(benchmark, data, seed=SEED, limit=limit)), name)
    texts = tuple(problem.text for problem in read_problems(path, limit))
    return ProblemSet(texts, f"{len(texts)} of {name}, without answers")


def _has_answers(path: Path) -> bool:
    """Whether the first line of the file at *path* has a problem and its answer, as JSON."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = next(lines, "")
    return '"problem"' in first and '"answer"' in first


def with_answers(tasks: tuple[Task, ...], source: str) -> ProblemSet:
    """The problems of *tasks*. Raise `ConfigurationError` if their answers cannot be graded."""
    require_graders(task.gold for task in tasks)
    texts = tuple(task.problem for task in tasks)
    answers = tuple(str(task.gold) for task in tasks if isinstance(task.gold, Answer))
    if len(answers) < len(tasks):
        answers = ()  # a gold of a benchmark's own has no text that a reply has to contain
    return ProblemSet(texts, f"{len(tasks)} of {source}", answers, tasks)


def choose_arms(specs: list[str] | None, settings: Settings) -> tuple[Arm, ...]:
    """
    The methods to compare: those of *specs*, or `CANDIDATES`.

    Raise `ConfigurationError` for a method that is unknown, that is there twice, or that the
    settings have no servers for.
    """
    candidates = CANDIDATES + (WITH_CRITIC if settings.rates_steps else ())
    arms = named_arms(specs or candidates, [])
    for arm in arms:
        if arm.policy in BASELINES:
            raise ConfigurationError(
                "--policy: large, small and plain are no methods; methods are compared with the"
                " large model alone"
            )
        check_arm(arm, settings)
    return arms


def make_report(measured: Measured, minutes: float, chosen: ProblemSet) -> Report:
    """Report what was *measured* on the *chosen* problems."""
    ended = {number: chain for number, chain in measured.chains.items() if has_ended(chain)}
    solved = None
    if chosen.answers:
        solved = sum(states(chain.text, chosen.answers[number]) for number, chain in ended.items())
    return Report.of(measured, minutes, chosen.words, solved=solved, ended=len(ended))


def states(text: str, answer: str) -> bool:
    """Whether the end of *text* has every number of *answer*, or *answer* itself."""
    end = text[-ANSWER_CHARACTERS:]
    wanted = set(numbers(answer))
    return answer in end or (bool(wanted) and wanted <= set(numbers(end)))


def show(report: Report, written: str) -> None:
    """Print *report*: the headline first, then one line for each method."""
    headline, *lines = report.lines(written)
    stdout.print(headline, style="bold", soft_wrap=True)
    for line in lines:
        stdout.print(line, soft_wrap=True)
    if report.methods:
        stdout.print()
        stdout.print(report.table())
    notes = [*report.notes()]
    if log.isEnabledFor(logging.DEBUG):
        notes += report.details()
    for note in notes:
        stdout.print(f"- {note}", soft_wrap=True)
