"""The commands that derive settings from runs: ``profile`` and ``adapt``."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import typer

from stepspec.evals.calibration import cue_profile as profiling
from stepspec.evals.command_line import only_without_testbed, progress_bars, writable
from stepspec.evals.flags import BUDGET, PAIR, SAMPLING, with_settings
from stepspec.evals.testbed.solving_pair import pair_solver
from stepspec.orchestrator import trace
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Started
from stepspec.orchestrator.feedback.learning import Learning, Learnings
from stepspec.orchestrator.trace import Moment

from .. import policies
from .. import settings as configuration
from ..api import Solver
from ..settings import Settings
from .terminal import (
    Json,
    print_json,
    stderr,
    stdout,
    wait,
)

PROFILE_EXAMPLES = """
Examples:

  stepspec profile problems.txt --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  stepspec profile --testbed --limit 200 --output relay.toml

  stepspec solve "What is 6 x 7?" --config relay.toml --small ... --large ...
"""


@with_settings("profile", PAIR, SAMPLING, BUDGET)
def profile_pair(
    problems: Annotated[
        Path | None, typer.Argument(help="A file of problems, one a line: a text, or JSON with its problem.")
    ] = None,
    testbed: Annotated[
        bool, typer.Option("--testbed", help="Use the miniature pair, on problems of its training half.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of problems.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed that selects the testbed's problems.")] = 0,
    least: Annotated[
        int, typer.Option(min=2, help="Minimum number of sentences in which a cue must occur.")
    ] = profiling.LEAST,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the settings for `solve`.", metavar="FILE")
    ] = Path("relay.toml"),
    json: Json = False,
) -> None:
    """
    Find the cues of a pair for the method relay: words after which the small model may finish the sentence.

    The large model solves the problems alone, and the small one scores its text. Use other problems than those of your
    evaluation.
    """
    if testbed == (problems is not None):
        raise ConfigurationError("name a file of problems, or pass --testbed")
    writable("--output", output)
    texts = profiling.load_problems(problems, limit) if problems else profiling.training_problems(limit, seed)
    if testbed:
        only_without_testbed()
    pair = pair_solver("off", stderr, (), seed, problems=0) if testbed else Solver()
    result, origin = wait(_profile(pair, texts, least))
    if json:
        print_json(dataclasses.asdict(result))
    else:
        stdout.print(profiling.table(result))
        stdout.print(profiling.caption(result), style="dim", highlight=False)
    if not result.cues:
        raise typer.Exit(1)
    _write_settings(output, profiling.snippet(result, origin))


async def _profile(
    pair: AbstractAsyncContextManager[Solver], problems: list[str], least: int
) -> tuple[profiling.PairProfile, str]:
    async with pair as solver:
        solver.require_both()
        with progress_bars(stderr) as progress:
            bar = progress.add_task("solving and reading", total=len(problems))
            result = await profiling.profile(solver, problems, least=least, on_problem=lambda: progress.advance(bar))
        names = f"{solver.large.name} with {solver.small.name}"
        return result, f"Found by `stepspec profile` on {datetime.date.today()} for {names}."


ADAPT_EXAMPLES = """
Examples:

  stepspec adapt runs/gsm8k/traces/*.jsonl --adapt 0.05 --output learnt.toml

  stepspec serve --config learnt.toml --small ... --large ...
"""


@with_settings("adapt", help={"policy": "The method; traces of other methods are skipped."})
def adapt(
    traces: Annotated[
        list[Path], typer.Argument(help="Traces that --trace or --traces wrote, in the order of their runs.")
    ],
    limit: Annotated[
        float | None,
        typer.Option("--adapt", help="The maximum share of the accepted steps that may be bad.", min=0, max=1),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; default: standard output.", metavar="FILE"),
    ] = None,
) -> None:
    """
    Print a settings file with the threshold and the depth that adaptation learns from recorded runs.

    The same traces in the same order lead to the same decisions as while they were recorded.
    """
    settings = configuration.load(adapt=limit)
    try:
        policies.check(settings.policy, settings.options)
    except ConfigurationError as exc:
        raise configuration.named(exc, settings, {}) from exc
    learnt = learn_from(settings, traces).toml()
    if output is None:
        stdout.print(learnt, end="", markup=False, highlight=False, soft_wrap=True)
        return
    _write_settings(output, learnt)


def learn_from(settings: Settings, paths: Sequence[Path]) -> Learning:
    """
    Learn from recorded traces, in their order, as a solver of *settings* would have; other policies' are skipped.

    Raise `ConfigurationError` if there is nothing to learn from, or nothing that could be.
    """
    learning = Learnings(settings.run, policies.adaptable, settings.calibration).of(settings.run)
    if learning is None:
        if settings.policy in policies.BASELINES:
            cure = f"name a policy other than {' and '.join(policies.BASELINES)}"
        elif not settings.adapt:
            cure = "pass --adapt, or set `adapt`, above 0"
        else:
            cure = "its options leave nothing to adapt: name another policy, or other options"
        raise ConfigurationError(
            f"there is nothing to adapt with adapt = {settings.adapt:g} and the policy {settings.policy!r}: {cure}"
        )
    traced: set[str] = set()
    for path in paths:
        moments = _read(path)
        ran = next((moment.event.policy for moment in moments if isinstance(moment.event, Started)), "none")
        traced.add(ran)
        if ran == settings.policy:
            learning.learn(moments)
    if settings.policy not in traced:
        raise ConfigurationError(
            f"no trace of {settings.policy!r} among {len(paths)}, which are of: {', '.join(sorted(traced))}"
        )
    return learning


def _read(path: Path) -> list[Moment]:
    try:
        return trace.read(path)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{path}: {exc}") from exc
    except OSError as exc:
        raise ConfigurationError(f"{path}: {exc.strerror}") from exc


def _write_settings(output: Path, settings: str) -> None:
    output.write_text(settings, encoding="utf-8")
    stderr.print(f"wrote {output}: name it with --config, or make it stepspec.toml", highlight=False)
