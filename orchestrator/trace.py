"""
Traces: the events of a run as lines of JSON, each with its time.

A trace is enough to replay the chain.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import GenericAlias
from typing import Any, cast, get_args

import orjson
from pydantic import ConfigDict, TypeAdapter

from .errors import ConfigurationError
from .events import Event

# Infinities are written as strings, because JSON has none. Each event is wrapped in a tuple,
# because pydantic accepts no config for a dataclass.
_CONFIG = ConfigDict(ser_json_inf_nan="strings")
_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(cast("Any", GenericAlias(tuple, (kind,))), config=_CONFIG)
    for kind in get_args(Event)
}
_NAMES = {kind: tuple([field.name for field in fields(kind)]) for kind in get_args(Event)}
"""The fields of each kind of event."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One event with its time."""

    at: float
    """Seconds since the run began."""
    event: Event
    """The event."""


class Stopwatch:
    """
    Returns the seconds since its first reading, on the running event loop's clock.

    The first reading is that of a run's first event.
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
    head = orjson.dumps({"at": moment.at, "event": name})
    values = _ADAPTERS[name].dump_json((moment.event,))
    return head.removesuffix(b"}") + b"," + values.removeprefix(b"[{").removesuffix(b"]") + b"\n"


def parse(line: bytes) -> Moment:
    """Parse one line. Raise `ConfigurationError` if it is not a line of a trace."""
    try:
        values = orjson.loads(line)
        at = float(values.pop("at"))
        name = values.pop("event")
        (event,) = _ADAPTERS[name].validate_python((values,), extra="forbid")
        return Moment(at, event)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        # The errors of both parsers are ValueErrors.
        raise ConfigurationError(
            f"not a line of a trace: {line[:80]!r} ({type(exc).__name__}: {exc})"
        ) from exc


def write(path: Path, moments: Iterable[Moment]) -> None:
    path.write_bytes(b"".join(map(dump, moments)))


def read(path: Path) -> list[Moment]:
    return [parse(line) for line in path.read_bytes().splitlines() if line.strip()]


class EventLog:
    """
    The events of one run, in order. An event is made whenever it is read.

    The log is one list of fields, so that a garbage collection, which stops the event loop, has few
    objects to visit.
    """

    def __init__(self) -> None:
        self._kinds: list[type[Any]] = []
        self._fields: list[Any] = []

    def append(self, event: Event) -> None:
        kind = type(event)
        self._kinds.append(kind)
        self._fields += [getattr(event, name) for name in _NAMES[kind]]

    def __iter__(self) -> Iterator[Event]:
        start = 0
        for kind in self._kinds:
            end = start + len(_NAMES[kind])
            yield kind(*self._fields[start:end])
            start = end


class Recorder:
    """An observer that keeps every event of one run, with its time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        """Returns the seconds since the run began."""
        self.last: Moment
        """The last event with its time."""
        self._log = EventLog()
        self._at = array("d")
        """The time of each event, in seconds since the run began."""

    def __call__(self, event: Event) -> None:
        self.last = Moment(round(self.clock(), 6), event)
        self._at.append(self.last.at)
        self._log.append(event)

    @property
    def events(self) -> list[Event]:
        return list(self._log)

    @property
    def moments(self) -> list[Moment]:
        """All events with their times."""
        return [Moment(at, event) for at, event in zip(self._at, self._log, strict=True)]
