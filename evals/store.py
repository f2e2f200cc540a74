"""Stores of JSON lines on disk, so that an interrupted measurement goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ClassVar, Self, TypeVar, cast

import orjson
from pydantic import TypeAdapter

from stepspec.orchestrator.errors import ConfigurationError, StepspecError

from .sample import Sample

T = TypeVar("T")
REMEDY = "choose another place with --output, or begin anew with --fresh"


def lock(file: IO[bytes], path: Path) -> None:
    """
    Lock *file*, called *path*. Close it and raise `ConfigurationError` if another process has.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        raise ConfigurationError(
            f"{path} is being written by another command: wait, or choose another"
        ) from exc


class JsonlStore:
    """
    A file whose first line is a header, what it is *about*, followed by one line per record.

    A *fresh* store begins anew, and an incomplete last line is dropped; otherwise the file only
    grows, so that no line is ever lost. It has one writer at a time. Raise `ConfigurationError` for
    a file with another header.
    """

    remedy: ClassVar[str] = REMEDY
    """What to do about a file with another header."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path, self._head, self._fresh = path, orjson.dumps(dict(about)) + b"\n", fresh
        self._check()
        self._read()

    @staticmethod
    def about(path: Path) -> Any:
        """
        The header of the file at *path*; empty if the first line is no JSON, None if no complete
        line exists yet.
        """
        head, ended, _ = path.read_bytes().partition(b"\n") if path.is_file() else (b"", b"", b"")
        if not ended:
            return None
        try:
            return orjson.loads(head)
        except orjson.JSONDecodeError:
            return {}

    def records(self, parse: Callable[[bytes], T], name: str) -> Iterator[T]:
        """
        Every record, read by *parse*. Raise `ConfigurationError`, with the *name* of a record, for
        another line.
        """
        lines = self._content().splitlines(keepends=True)
        for number, line in enumerate(lines[1:], 2):
            if not line.endswith(b"\n"):
                return
            try:
                yield parse(line)
            except (
                KeyError,
                TypeError,
                ValueError,
            ) as exc:  # orjson's and pydantic's errors are ValueErrors
                raise ConfigurationError(
                    f"{self.path}, line {number}: no {name} ({exc}); remove the line, or begin anew"
                    " with --fresh"
                ) from exc

    def _read(self) -> None:
        """Read the records that the file has, where a subclass keeps them."""

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if another process is writing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A buffer would be written again on closing.
            self._file = self.path.open("ab", buffering=0)
        except OSError as exc:
            raise ConfigurationError(
                f"{self.path} cannot be written ({exc.strerror}): {REMEDY}"
            ) from exc
        lock(self._file, self.path)
        try:
            self._check()  # again: the process that held the file until now may have begun it
        except ConfigurationError:
            self._file.close()
            raise
        complete = self._content().rfind(b"\n") + 1
        self._file.truncate(complete)
        if not complete:
            self._put(self._head)
        self._fresh = False
        self._read()  # again: the process that held the file until now may have added records
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """
        Add one *line*; it is on disk when this returns. Raise `StepspecError` if the disk is full.
        """
        self._put(orjson.dumps(dict(line)) + b"\n")

    def _check(self) -> None:
        """Raise `ConfigurationError` if the file has another header and the store is not fresh."""
        header, about = JsonlStore.about(self.path), orjson.loads(self._head)
        if self._fresh or header == about or (header is None and self._unbegun()):
            return
        held = cast("dict[str, Any]", header) if isinstance(header, dict) else {}
        other = [key for key in about | held if held.get(key) != about.get(key)]
        raise ConfigurationError(
            f"{self.path} holds another run (other: {', '.join(other)}): {self.remedy}"
        )

    def _unbegun(self) -> bool:
        """Whether the file does not exist, or holds only the beginning of this store's header."""
        return not self.path.is_file() or self._head.startswith(self.path.read_bytes())

    def _content(self) -> bytes:
        """The bytes of the file; empty if the store is fresh, or if the header is incomplete."""
        if self._fresh or JsonlStore.about(self.path) is None:
            return b""
        return self.path.read_bytes()

    def _put(self, line: bytes) -> None:
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise StepspecError(
                f"{self.path} cannot be written ({exc.strerror}): make room there and run the same"
                " command again; what it has written is kept"
            ) from exc


_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
Place = tuple[int, str]  # the number of the sample, and the name of the arm


class SampleStore(JsonlStore):
    """
    The samples of one measurement, one line each, by number of the sample and name of the arm.
    """

    done: dict[Place, Sample]

    def add(self, number: int, sample: Sample) -> None:
        """Keep the *sample* with this *number*; it is on disk when this returns."""
        self.done[number, sample.arm] = sample
        self.write({"task": number, "outcome": sample.outcome, **asdict(sample)})

    def _read(self) -> None:
        self.done = dict(self.records(_placed, "sample"))


def _placed(line: bytes) -> tuple[Place, Sample]:
    fields = orjson.loads(line)
    sample = _ADAPTER.validate_python(fields)
    return (fields["task"], sample.arm), sample
