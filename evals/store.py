"""Stores of JSON lines on disk, so that an interrupted measurement goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Self, TypeVar, cast

import orjson
from pydantic import TypeAdapter

from stepspec.orchestrator.errors import ConfigurationError, StepspecError

from .sample import Sample

T = TypeVar("T")
REMEDY = "choose another place with --output, or begin anew with --fresh"


def lock(file: IO[bytes], path: Path) -> None:
    """Lock the *file* at *path*. Raise `ConfigurationError` if another process has locked it."""
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

    A *fresh* store begins anew. Otherwise an incomplete last line is dropped, and the file only
    grows, so that no line is ever lost. The file has one writer at a time. Raise
    `ConfigurationError` for a file with another header.
    """

    remedy: ClassVar[str] = REMEDY
    """What to do about a file with another header."""

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        *,
        fresh: bool = False,
    ) -> None:
        self.path = path
        self._head = orjson.dumps(dict(about)) + b"\n"
        self._fresh = fresh
        self._content()
        self._read()

    def records(self, parse: Callable[[bytes], T], name: str) -> Iterator[T]:
        """
        Yield every record, read by *parse*.

        Raise `ConfigurationError`, with the *name* of a record, for another line.
        """
        for number, line in enumerate(self._content().splitlines()[1:], start=2):
            try:
                yield parse(line)
            # The errors of orjson and pydantic are a ValueError.
            except (KeyError, TypeError, ValueError) as exc:
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
            # Another process may have begun the file, or added records, before it was locked.
            content = self._content()
            self._file.truncate(len(content))
            if not content:
                self._put(self._head)
            self._fresh = False
            self._read()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Add one *line*. It is on disk when this returns. Raise `StepspecError` if that fails."""
        self._put(orjson.dumps(dict(line)) + b"\n")

    def _content(self) -> bytes:
        """
        Return the complete lines of the file; b"" if it is fresh or not begun.

        Raise `ConfigurationError` if it has another header.
        """
        if self._fresh or not self.path.is_file():
            return b""
        content = self.path.read_bytes()
        if self._head.startswith(content) and content != self._head:
            return b""
        content = content[: content.rfind(b"\n") + 1]
        held = _header(content)
        about = _header(self._head)
        if held != about:
            other = [key for key in about | held if held.get(key) != about.get(key)]
            raise ConfigurationError(
                f"{self.path} holds another run (other: {', '.join(other)}): {self.remedy}"
            )
        return content

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


def _header(content: bytes) -> dict[str, Any]:
    """Return the JSON object in the first line; {} if there is none."""
    try:
        header = orjson.loads(content.partition(b"\n")[0])
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", header) if isinstance(header, dict) else {}


_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
LEFT_OUT: Any = {"steps": {"__all__": {"text"}}}
"""The fields of a sample that have no value."""
Place = tuple[int, str]
"""The number of a sample, and the name of its arm."""


class SampleStore(JsonlStore):
    """The samples of one measurement, one line each."""

    done: dict[Place, Sample]
    """The samples."""

    def add(self, number: int, sample: Sample) -> None:
        """Keep the *sample* with this *number*. It is on disk when this returns."""
        self.done[number, sample.arm] = sample
        fields = _ADAPTER.dump_python(sample, exclude=LEFT_OUT)
        self.write({"task": number, "outcome": sample.outcome, **fields})

    def _read(self) -> None:
        self.done = dict(self.records(_placed, "sample"))


def _placed(line: bytes) -> tuple[Place, Sample]:
    fields = orjson.loads(line)
    fields["steps"] = [{"text": "", **step} for step in fields["steps"]]
    sample = _ADAPTER.validate_python(fields)
    return (fields["task"], sample.arm), sample
