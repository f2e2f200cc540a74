"""
Check the options of commands early, and write files.

`program` runs the commands.
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


def print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


def numbers(flag: str, text: str, kind: Callable[[str], Any]) -> list[Any]:
    """
    Return the different numbers in *text*, with commas between them; [] if it is empty.

    Raise `ConfigurationError` for other words.
    """
    if not text.strip():
        return []
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"{flag} {text!r}: write numbers with commas between them"
        ) from None
    finite(flag, *numbers)
    return list(dict.fromkeys(numbers))


def finite(flag: str, *values: object) -> None:
    """Raise `ConfigurationError`, which names the *flag*, for a value that is not finite."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigurationError(f"{flag} {value}: a finite number is needed")


def writable(flag: str, path: Path) -> None:
    """Make the folder of the file at *path*. Raise `ConfigurationError` if it cannot be written."""
    possible_folder(flag, path, path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(f"{flag} {path}: {exc.strerror}") from exc
    if path.exists() and (path.is_dir() or not os.access(path, os.W_OK)):
        raise ConfigurationError(f"{flag} {path}: no file that can be written; name another")


def possible_folder(flag: str, path: Path, folder: Path) -> None:
    """
    Raise `ConfigurationError` if *folder*, which *path* needs, is not there and cannot be made.

    No folder is made directly below the root, because a misspelt path would leave one there.
    """
    top = Path(*folder.absolute().parts[:2])
    if not top.exists():
        raise ConfigurationError(
            f"{flag} {path}: there is no folder {top}; make it, or name another"
        )
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ConfigurationError(
            f"{flag} {path}: {nearest} is no folder that can be written; name another"
        )


def write_file(path: Path, text: str) -> None:
    """Write *text* to the file at *path*. Raise `StepspecError`, which names the file."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise StepspecError(f"{path} cannot be written: {exc.strerror}") from exc


def only_without_testbed(**others: object) -> None:
    """Raise `ConfigurationError` if a flag names a server, or one of the *others* is set."""
    flags = [name for place, name in command_line().flags.items() if place[0] in ROLES]
    flags.extend(f"--{name}" for name, value in others.items() if value is not None)
    if flags:
        raise ConfigurationError(
            f"--testbed starts a pair of its own: leave out either it or {', '.join(flags)}"
        )
