"""Commands that are no part of ``stepspec``: modules that are run by their name."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer
from rich.console import Console
from rich.text import Text

from stepspec.orchestrator.errors import ConfigurationError, StepspecError


def script(command: Callable[..., None], examples: str | None = None) -> None:
    """Run *command* with the words of the command line, with *examples* in its help."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command(epilog=examples)(command)
    run(app)


def run(app: Callable[[], object]) -> None:
    """Run *app*; print the project's own errors as one line, without a traceback."""
    try:
        app()
    except StepspecError as exc:
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(exc)), soft_wrap=True)
        sys.exit(2 if isinstance(exc, ConfigurationError) else 1)
