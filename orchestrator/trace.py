"""Traces: the events of a run as lines of JSON, each with its time; enough to replay the chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias
from typing import Any, cast, get_args

import orjson
from pydantic import ConfigDict, TypeAdapter

from .errors import ConfigurationError
from .events import Event

# Infinities are written as strings, because JSON has no such numbers. Each event is wrapped in a
# tuple, because pydantic accepts no config for a dataclass.
_CONFIG = ConfigDict(ser_json_inf_nan="strings")
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(cast("Any", GenericAlias(tuple, (kind,))), config=_CONFIG)
    for kind in get_args(Event)
}


@dataclass(frozen=True, slots=True)
class Moment:
    """One event and the seconds since its run began."""

    at: float
    event: Event


class Stopwatch:
    """
    Returns the seconds since its first reading, which is a run's first event, on the running event
    loop's clock.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None

    def __call__(self) -> float:
        now = self._loop.time()
        if self._began is None:
            self._began = now
        return now - self._began


def dump(moment: Moment) -> bytes:
    """Return one line of a trace, with its line break."""
    name = type(moment.event).__name__
    head = orjson.dumps({"at": round(moment.at, 6), "event": name})
    fields = _ADAPTERS[name].dump_json((moment.event,))
    return head.removesuffix(b"}") + b"," + fields.removeprefix(b"[{").removesuffix(b"]") + b"\n"


def parse(line: bytes) -> Moment:
    """Parse one line. Raise `ConfigurationError` if it is not a line of a trace."""
    try:
        fields = orjson.loads(line)
        at, name = float(fields.pop("at")), fields.pop("event")
        (event,) = _ADAPTERS[name].validate_python((fields,), extra="forbid")
        return Moment(at, event)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as exc:  # both parsers' errors are ValueErrors
        raise ConfigurationError(
            f"not a line of a trace: {line[:80]!r} ({type(exc).__name__}: {exc})"
        ) from exc


def write(path: Path, moments: Iterable[Moment]) -> None:
    path.write_bytes(b"".join(map(dump, moments)))


def read(path: Path) -> list[Moment]:
    return [parse(line) for line in path.read_bytes().splitlines() if line.strip()]


class Recorder:
    """
    An observer that keeps every event of one run; *clock* returns the seconds since the run began.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.moments: list[Moment] = []

    def __call__(self, event: Event) -> None:
        self.moments.append(Moment(self.clock(), event))

    @property
    def events(self) -> list[Event]:
        return [moment.event for moment in self.moments]
