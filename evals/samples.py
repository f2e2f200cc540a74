"""Samples on disk, a line each, so that a measurement that was cut short goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import TypeAdapter

from ..orchestrator.errors import ConfigurationError
from .trial import Sample

_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
Place = tuple[int, str]  # the number of the task, and the name of the arm


class Samples:
    """
    The samples of one measurement, in a file that says first what was measured.

    A file about something else, or one that is no such file, is begun anew; a last line that was cut is dropped. The
    file only ever grows, so that at no moment a sample could be lost that was there, and it has one writer at a time.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._path, self._head, self._fresh = path, orjson.dumps(dict(about)), fresh
        self.done: dict[Place, Sample] = {}
        self._whole = 0  # bytes, up to the last line that is complete
        self._read()

    @staticmethod
    def about(path: Path) -> Any:
        """What the file at *path* says was measured, nothing if it is no such file; None if there is none yet."""
        head, ended, _ = path.read_bytes().partition(b"\n") if path.is_file() else (b"", b"", b"")
        if not ended:
            return None
        try:
            return orjson.loads(head)
        except orjson.JSONDecodeError:
            return {}

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._file.close()
            raise ConfigurationError(f"{self._path} is being written by another run: wait, or choose another") from exc
        self._read()  # again: whoever held the file until now may have added to it
        self._file.truncate(self._whole)
        if not self._whole:
            self._write(self._head)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, number: int, sample: Sample) -> None:
        """Keep the *sample* of task *number*; it is on disk when this returns."""
        self.done[number, sample.arm] = sample
        self._write(orjson.dumps({"task": number, "outcome": sample.outcome, **asdict(sample)}))

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> None:
        self.done.clear()
        self._whole = 0
        known = not self._fresh and self._path.is_file()
        lines = self._path.read_bytes().splitlines(keepends=True) if known else []
        if not lines or lines[0] != self._head + b"\n":
            return
        self._whole = len(lines[0])
        for number, line in enumerate(lines[1:], 2):
            if not line.endswith(b"\n"):
                break
            self._take(line, number)
            self._whole += len(line)

    def _take(self, line: bytes, number: int) -> None:
        try:
            fields = orjson.loads(line)
            sample = _ADAPTER.validate_python(fields)
            self.done[fields["task"], sample.arm] = sample
        except (KeyError, TypeError, ValueError) as exc:  # both parsers' errors are ValueErrors
            raise ConfigurationError(
                f"{self._path}, line {number}: not a sample ({exc}); remove the line, or begin anew with --fresh"
            ) from exc
