"""The commands that start servers: ``up`` and ``demo``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from stepspec.evals.arms import PLAIN
from stepspec.evals.testbed import SpeculationMethod, commands
from stepspec.evals.testbed import servers as testbed
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.servers.launcher import up as launcher
from stepspec.servers.launcher.commands import solver_settings

from .command_line import writable
from .eval import show_results
from .flags import Json, Pace
from .program import stderr, wait
from .terminal import RunPrinter

UP_EXAMPLES = """
Examples:

  # check it, and print the commands
  stepspec up recipes/qwen3-32b.toml --dry-run

  # what it prints, `solve` and `serve` read
  stepspec up recipes/qwen3-32b.toml > stepspec.toml

  # the miniature pair, on this CPU
  stepspec up --testbed --speculation ngram
"""

DEMO_EXAMPLES = """
Examples:

  stepspec demo

  stepspec demo --limit 20 --seed 1

  # as fast as this machine is; JSON on standard output
  stepspec demo --profile off --json
"""


def up(
    pair: Annotated[
        Path | None, Argument(help="A pair of models as a TOML file; see recipes/.")
    ] = None,
    use_testbed: Annotated[
        bool, Option("--testbed", help="Start the miniature pair, on this CPU.")
    ] = False,
    profile: Pace = "paced",
    speculation: Annotated[
        SpeculationMethod,
        Option(
            help="Token-level speculation under the miniature pair: none, ngram, draft_model.",
            metavar="METHOD",
        ),
    ] = "none",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only check the file and print the commands.")
    ] = False,
    log_dir: Annotated[
        Path | None, Option(help="Folder for the servers' logs.", metavar="FOLDER")
    ] = None,
    json: Json = False,
) -> None:
    """
    Start the vLLM servers of a pair, print settings of a solver that uses them, and stop them on
    Ctrl-C.

    A pair that cannot run is refused before
    anything is downloaded or started, with what to change. If a server dies, all stop, the end of
    its log is printed, and the exit code is 1.
    """
    if use_testbed == (pair is not None):
        raise ConfigurationError(
            "name a pair's file, as in recipes/, or pass --testbed for the miniature pair"
        )
    if log_dir is not None:
        writable("--log-dir", log_dir / "large.log")
    if pair is not None:
        if (profile, speculation) != ("paced", "none"):
            raise ConfigurationError(
                "--profile and --speculation are only for --testbed: write `flags.hf-overrides`"
                f" and `speculation` of each model into {pair}"
            )
        checked = launcher.load_checked(pair)
        if dry_run:
            # A console would change tabs, and words such as :key: to emoji.
            print(launcher.command_lines(checked))
        else:
            starting = launcher.running(checked, stderr, log_dir=log_dir)
            wait(launcher.up(starting, partial(solver_settings, checked), stderr, json_output=json))
        return
    if dry_run:
        raise ConfigurationError(
            "--dry-run is for a pair's file: recipes/miniature.toml has the miniature pair"
        )
    starting = testbed.running(
        profile,
        console=stderr,
        log_dir=log_dir,
        speculation=testbed.SPECULATIONS[speculation],
    )
    wait(launcher.up(starting, testbed.solver_settings, stderr, json_output=json))


def demo(
    limit: Annotated[
        int,
        Option(
            "--limit",
            "-n",
            min=1,
            help="Number of problems.",
        ),
    ] = 6,
    seed: Annotated[int, Option(help="Seed that selects the problems.")] = 0,
    profile: Pace = "paced",
    json: Json = False,
) -> None:
    """
    Start the miniature pair and solve a few problems: the large model as it is, the small one
    alone, SpecReason.

    The models are tiny and their passes are paced like a GPU's, so that it runs anywhere; all else
    is real.
    """
    results = wait(commands.demo(limit, seed, profile, stderr, RunPrinter))
    note = commands.SMALL_PRINT.format(profile=profile)
    show_results(results, PLAIN.name, note, as_json=json)
