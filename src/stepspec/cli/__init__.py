"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

from typing import Annotated

import typer

from stepspec import __version__
from stepspec.evals import cli as eval_cli
from stepspec.evals.calibration import command as calibration
from stepspec.evals.command_line import run
from stepspec.evals.estimate import command as estimate
from stepspec.evals.report import command as report

from . import inspect, serve, solve, tune, up
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


def _print_version(requested: bool) -> None:
    if requested:
        stdout.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(epilog=solve.EXAMPLES)(solve.solve)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command("trace", epilog=inspect.TRACE_EXAMPLES)(inspect.show_trace)
app.command("policies", epilog=inspect.POLICIES_EXAMPLES)(inspect.list_policies)
app.command(epilog=inspect.DOCTOR_EXAMPLES)(inspect.doctor)
app.command("estimate", epilog=estimate.EXAMPLES)(estimate.command)
app.command("profile", epilog=tune.PROFILE_EXAMPLES)(tune.profile_pair)
app.command(epilog=tune.ADAPT_EXAMPLES)(tune.adapt)
app.command("eval", epilog=eval_cli.EXAMPLES)(eval_cli.command)
app.command("calibrate", epilog=calibration.EXAMPLES)(calibration.calibrate)
app.command("report", epilog=report.EXAMPLES)(report.command)
app.command(epilog=up.EXAMPLES)(up.up)
app.command(epilog=up.DEMO_EXAMPLES)(up.demo)
