"""The command line. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
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


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """Where a command is found."""

    module: str
    """The module with the command."""
    name: str = "command"
    """The function, or the application with more commands."""
    examples: str = "EXAMPLES"
    """The name of the examples for its help, in the same module."""


COMMANDS: Mapping[str, CommandPlace] = {
    "solve": CommandPlace("stepspec.cli.solve", "solve"),
    "serve": CommandPlace("stepspec.cli.serve", "serve"),
    "trace": CommandPlace("stepspec.cli.inspect", "show_trace", "TRACE_EXAMPLES"),
    "policies": CommandPlace("stepspec.cli.inspect", "list_policies", "POLICIES_EXAMPLES"),
    "doctor": CommandPlace("stepspec.cli.inspect", "doctor", "DOCTOR_EXAMPLES"),
    "config": CommandPlace("stepspec.cli.config", "app", "SHOW_EXAMPLES"),
    "tune": CommandPlace("stepspec.cli.tune"),
    "eval": CommandPlace("stepspec.cli.eval"),
    "calibrate": CommandPlace("stepspec.cli.calibrate", "calibrate"),
    "report": CommandPlace("stepspec.cli.report"),
    "up": CommandPlace("stepspec.cli.up", "up"),
    "demo": CommandPlace("stepspec.cli.up", "demo", "DEMO_EXAMPLES"),
}
"""Every command. It is imported when it is run, or when the list of commands is shown."""


class Commands(Mapping[str, Any]):
    """The commands as typer runs them, by name; each is made when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, COMMANDS[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _make(name: str, place: CommandPlace) -> Any:
    module = importlib.import_module(place.module)
    found = getattr(module, place.name)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = new_app(add_completion=False)
    add_command(alone, found, getattr(module, place.examples), name=name)
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
