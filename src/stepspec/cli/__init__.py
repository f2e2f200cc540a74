"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from stepspec import __version__

from .program import add_command, new_app, run, stdout, verbatim

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


COMMANDS: Mapping[str, str] = {
    "solve": "solve:solve",
    "serve": "serve:serve",
    "trace": "inspect:show_trace",
    "policies": "inspect:list_policies",
    "doctor": "inspect:doctor",
    "config": "config:app",
    "tune": "tune:command",
    "eval": "eval:command",
    "calibrate": "calibrate:calibrate",
    "report": "report:command",
    "up": "up:up",
    "demo": "up:demo",
}
"""
The module of every command in this folder, and its function, or the application with more commands.

A command is imported when it is run, or when the list of commands is shown. The examples of its
help are in the same module, such as ``SOLVE_EXAMPLES``.
"""


class Commands(Mapping[str, Any]):
    """The commands as typer runs them, by name; each is made when it is first looked up."""

    def __getitem__(self, name: str) -> Any:
        return _make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _make(name: str) -> Any:
    found = resolve_name(f"{__name__}.{COMMANDS[name]}")
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = new_app(add_completion=False)
    examples = vars(sys.modules[found.__module__])[f"{name.upper()}_EXAMPLES"]
    add_command(alone, found, examples, name=name)
    return typer.main.get_command(alone)


class CommandGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.commands: Any = Commands()


app = new_app(
    cls=CommandGroup,
    help="Reasoning-step-level speculation over two vLLM endpoints.",
    epilog=verbatim(EXAMPLES),
    no_args_is_help=True,
)


def main() -> None:
    """Run the command; print the project's own errors as one line, without a traceback."""
    run(app)


def _print_version(requested: bool) -> None:
    if requested:
        stdout.print(__version__)
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool,
        Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass
