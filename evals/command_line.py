"""Helpers that the command-line programs share: run a command, refuse wrong options early, show progress."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from stepspec.orchestrator.errors import ConfigurationError, StepspecError

M = TypeVar("M", bound=BaseModel)


def script(command: Callable[..., None], examples: str | None = None) -> None:
    """Run *command* with the words of the command line, with *examples* in its help."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    verbatim = examples and examples.replace("\n\n", "\n\n\b\n")  # Click wraps no paragraph that begins with \b.
    app.command(epilog=verbatim)(command)
    run(app)


def run(app: Callable[[], object]) -> None:
    """Run *app*; print the project's own errors as one line, without a traceback."""
    try:
        app()
    except StepspecError as exc:
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(exc)), soft_wrap=True)
        sys.exit(2 if isinstance(exc, ConfigurationError) else 1)


def changed(settings: M, flags: Mapping[str, tuple[str, object]]) -> M:
    """
    Return *settings* changed by *flags*: for each field the flag's name and its value; None changes nothing.

    Raise `ConfigurationError`, which names the flag, for a wrong value.
    """
    values = {field: value for field, (_, value) in flags.items() if value is not None}
    for field, value in values.items():
        finite(flags[field][0], value)
    try:
        return type(settings).model_validate({**settings.model_dump(), **values})
    except ValidationError as exc:
        errors = [(str(error["loc"][0]), error) for error in exc.errors()]
        reasons = (f"{flags[field][0] if field in flags else field} {e['input']}: {e['msg']}" for field, e in errors)
        raise ConfigurationError("; ".join(reasons)) from exc


def finite(flag: str, *values: object) -> None:
    """Raise `ConfigurationError`, which names the *flag*, if any of its *values* is no number or infinite."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{flag} {value}: a finite number is needed")


def writable(flag: str, path: Path) -> None:
    """Make the folder of the file at *path*. Raise `ConfigurationError` if that file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"{flag} {path}: {exc.filename}: {exc.strerror}") from exc
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{flag} {path}: no file that can be written; name another")


def only_without_testbed(**urls: str | None) -> None:
    """Raise `ConfigurationError` if a server is named where the miniature pair is going to be started."""
    if flags := [f"--{role}" for role, url in urls.items() if url is not None]:
        raise ConfigurationError(f"--testbed starts a pair of its own: leave out either it or {', '.join(flags)}")


def progress_bars(console: Console) -> Progress:
    """Return progress bars that count, with the remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
