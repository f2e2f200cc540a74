"""What all commands share: both streams, how to wait, options that several have."""

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

URL = "Base URL of the {} model's server; of several replicas, with commas between them."
SmallUrl = Annotated[str | None, typer.Option("--small", help=URL.format("small"), metavar="URL")]
CriticUrl = Annotated[
    str | None,
    typer.Option("--critic", help="Base URL of the reward model's server, if the method needs one.", metavar="URL"),
]
LargeUrl = Annotated[str | None, typer.Option("--large", help=URL.format("large"), metavar="URL")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Profile = Annotated[str, typer.Option(help="How the miniature models' passes are paced; see profiles.toml.")]


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run *work*; Ctrl-C cancels it, and with it every request and every child, and exits with 130."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        stderr.print("interrupted", style="yellow")
        raise typer.Exit(130) from None


def print_json(value: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(value) + b"\n")
    sys.stdout.flush()


def options_of(given: list[str] | None) -> dict[str, Any] | None:
    """The options of a method; None if none are given."""
    return dict(map(option_of, given)) if given else None


def option_of(given: str) -> tuple[str, Any]:
    """Read ``name=value``; a value that is no JSON is a word."""
    name, equals, value = given.partition("=")
    if not equals:
        raise ConfigurationError(f"--option {given!r}: write it as NAME=VALUE")
    try:
        return name.strip(), orjson.loads(value)
    except orjson.JSONDecodeError:
        return name.strip(), value
