"""Shared by all commands: both output streams, running a coroutine, and options that several commands have."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import orjson
import typer
from rich.console import Console

from stepspec.orchestrator.errors import ConfigurationError

T = TypeVar("T")

stdout, stderr = Console(), Console(stderr=True)

URL = "Base URL of the {} model's server; several replicas are separated by commas."
SmallUrl = Annotated[str | None, typer.Option("--small", help=URL.format("small"), metavar="URL")]
CriticUrl = Annotated[
    str | None,
    typer.Option("--critic", help="Base URL of the reward model's server, for methods that need one.", metavar="URL"),
]
LargeUrl = Annotated[str | None, typer.Option("--large", help=URL.format("large"), metavar="URL")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Profile = Annotated[str, typer.Option(help="The simulated speed of the miniature models; see profiles.toml.")]


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine*; Ctrl-C cancels it, with every request and every child process, and exits with 130."""
    try:
        return asyncio.run(coroutine)
    except KeyboardInterrupt:
        stderr.print("interrupted", style="yellow")
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


def parse_options(words: list[str] | None) -> dict[str, Any] | None:
    """Parse the values of ``--option``; None if there are none."""
    return dict(map(_parse_option, words)) if words else None


def _parse_option(word: str) -> tuple[str, Any]:
    """Parse ``name=value``; a value that is not JSON is a string."""
    name, equals, value = word.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {word!r}: write it as NAME=VALUE")
    try:
        return name.strip(), orjson.loads(value)
    except orjson.JSONDecodeError:
        return name.strip(), value
