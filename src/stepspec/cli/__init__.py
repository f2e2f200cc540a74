"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from stepspec.evals import cli as evaluating
from stepspec.evals.calibration import command as calibrating
from stepspec.evals.report import command as reporting
from stepspec.evals.script import run

from . import learning, listing, looking, running, serving, solving
from .terminal import stdout

EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 --large http://localhost:8002/v1

  stepspec solve - -o threshold=8 --trace run.jsonl < problem.txt

  stepspec up --testbed            # a miniature pair on this CPU, no downloads

  stepspec demo                    # the pair, a few problems, a table
"""

app = typer.Typer(
    help="Reasoning-step-level speculation over two vLLM endpoints.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command; print the project's own errors as one line, without a traceback."""
    run(app)


def _version(wanted: bool) -> None:
    if wanted:
        stdout.print(importlib.metadata.version("stepspec"), highlight=False)
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(epilog=solving.EXAMPLES)(solving.solve)
app.command(epilog=serving.EXAMPLES)(serving.serve)
app.command("trace", epilog=looking.TRACE_EXAMPLES)(looking.show_trace)
app.command("policies", epilog=listing.EXAMPLES)(listing.policies_command)
app.command(epilog=looking.DOCTOR_EXAMPLES)(looking.doctor)
app.command("profile", epilog=learning.PROFILE_EXAMPLES)(learning.profile_pair)
app.command(epilog=learning.ADAPT_EXAMPLES)(learning.adapt)
app.command("eval", epilog=evaluating.EXAMPLES)(evaluating.command)
app.command("calibrate", epilog=calibrating.EXAMPLES)(calibrating.calibrate)
app.command("report", epilog=reporting.EXAMPLES)(reporting.command)
app.command(epilog=running.EXAMPLES)(running.up)
app.command(epilog=running.DEMO_EXAMPLES)(running.demo)
