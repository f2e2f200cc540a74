"""Samples on disk, a line each, so that a measurement that was cut short goes on where it stopped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import TypeAdapter

from .arms import Sample

_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
Place = tuple[int, str]  # the number of the task, and the name of the arm


class Samples:
    """
    The samples of one measurement, in a file that says first what was measured.

    A file about something else, or one that is no such file, is begun anew; a last line that was cut is dropped.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._path, self._head = path, orjson.dumps(dict(about))
        self.done: dict[Place, Sample] = {} if fresh else self._read()

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb")
        self._file.write(self._head + b"\n")
        for (number, _), sample in self.done.items():
            self._write(number, sample)
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, number: int, sample: Sample) -> None:
        """Keep the *sample* of task *number*; it is on disk when this returns."""
        self.done[number, sample.arm] = sample
        self._write(number, sample)
        self._file.flush()

    def _write(self, number: int, sample: Sample) -> None:
        self._file.write(orjson.dumps({"task": number, **asdict(sample)}) + b"\n")

    def _read(self) -> dict[Place, Sample]:
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.is_file() else []
        if not lines or lines[0].strip() != self._head:
            return {}
        done: dict[Place, Sample] = {}
        for line in lines[1:]:
            if line.endswith(b"\n"):
                fields = orjson.loads(line)
                number = fields.pop("task")
                sample = _ADAPTER.validate_python(fields)
                done[number, sample.arm] = sample
        return done
