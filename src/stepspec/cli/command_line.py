"""
Shared by the command-line programs: refuse wrong options early, write files, show progress.

What runs a command is in `program`, with names that are here too.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from stepspec.orchestrator.errors import ConfigurationError, StepspecError
from stepspec.setting_sources import ROLES, command_line

from .program import stderr as stderr
from .program import stdout as stdout


def print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


def numbers(
    flag: str, text: str, kind: Callable[[str], Any], *, positive: bool = True
) -> list[Any]:
    """
    Read the numbers of *text*, each once, above 0 if *positive*; none if it is empty. Raise
    `ConfigurationError`.
    """
    try:
        numbers = [kind(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ConfigurationError(
            f"{flag} {text!r}: write numbers with commas between them"
        ) from None
    finite(flag, *numbers)
    if positive and any(number <= 0 for number in numbers):
        raise ConfigurationError(f"{flag} {text!r}: every number has to be above 0")
    return list(dict.fromkeys(numbers))


def finite(flag: str, *values: object) -> None:
    """
    Raise `ConfigurationError`, which names the *flag*, if any of its *values* is no number or
    infinite.
    """
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{flag} {value}: a finite number is needed")


def writable(flag: str, path: Path) -> None:
    """
    Make the folder of the file at *path*. Raise `ConfigurationError` if that file cannot be
    written.

    No folder is made directly below the root, where a path with a spelling error would leave one.
    """
    top = Path(*path.absolute().parts[:2])
    if not top.exists() and top != path.absolute():
        raise ConfigurationError(
            f"{flag} {path}: there is no folder {top}; make it, or name another"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"{flag} {path}: {exc.filename}: {exc.strerror}") from exc
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{flag} {path}: no file that can be written; name another")


def write_file(path: Path, text: str) -> None:
    """
    Write *text* to the file at *path*. Raise `StepspecError`, which names the file, if that fails.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise StepspecError(f"{path} cannot be written: {exc.strerror}") from exc


def write_settings(path: Path | None, toml: str) -> None:
    """Write the settings file at *path*, if there is one, and say how it is used."""
    if path is not None:
        write_file(path, toml)
        stderr.print(
            f"wrote {path}: name it with --config, or make it stepspec.toml",
            highlight=False,
            soft_wrap=True,
        )


def only_without_testbed(**others: object) -> None:
    """
    Raise `ConfigurationError` if a server is named, or one of *others* is set, beside the miniature
    pair.
    """
    flags = [name for place, name in command_line().flags.items() if place[0] in ROLES]
    if flags := [*flags, *(f"--{name}" for name, value in others.items() if value is not None)]:
        raise ConfigurationError(
            f"--testbed starts a pair of its own: leave out either it or {', '.join(flags)}"
        )
