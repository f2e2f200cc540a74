"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

from typing import Annotated

import typer

from stepspec import __version__
from stepspec.evals import cli as eval_cli
from stepspec.evals.calibration import command as calibration
from stepspec.evals.command_line import add_command, new_app, run, stdout, verbatim
from stepspec.evals.report import command as report
from stepspec.evals.tune import command as tune

from . import config, inspect, serve, solve, up

EXAMPLES = """
Examples:

  stepspec solve "What is 6 x 7?" --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  stepspec solve - -O threshold=8 --trace run.jsonl < problem.txt

  stepspec config show             # every setting, and where it comes from

  stepspec up --testbed            # a miniature pair on this CPU, no downloads

  stepspec demo                    # the pair, a few problems, a table

Exit codes:

  0    done
  1    something failed: a server, a problem, a calibration without a result;
       tune: no method pays
  2    wrong usage or settings; nothing was started; tune: not known yet
  130  interrupted with Ctrl-C

Settings come from flags, then STEPSPEC_* variables, then stepspec.toml or the
file of --config. docs/command-line.md has the whole grammar.
"""

app = new_app(
    help="Reasoning-step-level speculation over two vLLM endpoints.",
    epilog=verbatim(EXAMPLES),
    no_args_is_help=True,
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
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


add_command(app, solve.solve, solve.EXAMPLES)
add_command(app, serve.serve, serve.EXAMPLES)
add_command(app, inspect.show_trace, inspect.TRACE_EXAMPLES, name="trace")
add_command(app, inspect.list_policies, inspect.POLICIES_EXAMPLES, name="policies")
add_command(app, inspect.doctor, inspect.DOCTOR_EXAMPLES)
app.add_typer(config.app, name="config")
add_command(app, tune.command, tune.EXAMPLES, name="tune")
add_command(app, eval_cli.command, eval_cli.EXAMPLES, name="eval")
add_command(app, calibration.calibrate, calibration.EXAMPLES)
add_command(app, report.command, report.EXAMPLES, name="report")
add_command(app, up.up, up.EXAMPLES)
add_command(app, up.demo, up.DEMO_EXAMPLES)
