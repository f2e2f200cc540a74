"""The samples of a measurement on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import TypeAdapter

from ..orchestrator.errors import ConfigurationError
from .journal import Journal
from .trial import Sample

_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
Place = tuple[int, str]  # the number of the task, and the name of the arm


class Samples:
    """The samples of one measurement, a line each in a `Journal`, by the number of the task and the arm's name."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._journal = Journal(path, about, fresh=fresh)
        self.done: dict[Place, Sample] = {}
        self._read()

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        self._journal.__enter__()
        self._read()  # again: whoever held the file until now may have added to it
        return self

    def __exit__(self, *exc: object) -> None:
        self._journal.__exit__(*exc)

    def add(self, number: int, sample: Sample) -> None:
        """Keep the *sample* of task *number*; it is on disk when this returns."""
        self.done[number, sample.arm] = sample
        self._journal.write({"task": number, "outcome": sample.outcome, **asdict(sample)})

    def _read(self) -> None:
        self.done.clear()
        for number, line in self._journal.lines():
            self._take(line, number)

    def _take(self, line: bytes, number: int) -> None:
        try:
            fields = orjson.loads(line)
            sample = _ADAPTER.validate_python(fields)
            self.done[fields["task"], sample.arm] = sample
        except (KeyError, TypeError, ValueError) as exc:  # both parsers' errors are ValueErrors
            raise ConfigurationError(
                f"{self._journal.path}, line {number}: not a sample ({exc}); remove the line, or begin anew with "
                "--fresh"
            ) from exc
