"""Lines on disk that tell what was measured, so that a measurement that was cut short goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import orjson
from pydantic import TypeAdapter

from stepspec.orchestrator.errors import ConfigurationError

from .sample import Sample

REMEDY = "choose another place with --output, or begin anew with --fresh"


class JsonlStore:
    """
    A file that says in its first line what it is *about*, and then a line for everything that was found.

    It is begun anew if that is asked for (*fresh*), and a last line that was cut is dropped; but for that it only ever
    grows, so that at no moment a line could be lost that was there. It has one writer at a time. Raise
    `ConfigurationError`, which names the *remedy*, for a file that is about something else, or no such file.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False, remedy: str = REMEDY) -> None:
        self.path, self._head, self._fresh, self._remedy = path, orjson.dumps(dict(about)) + b"\n", fresh, remedy
        self._check()

    @staticmethod
    def about(path: Path) -> Any:
        """What the file at *path* says it is about, nothing if it is no such file; None if there is none yet."""
        head, ended, _ = path.read_bytes().partition(b"\n") if path.is_file() else (b"", b"", b"")
        if not ended:
            return None
        try:
            return orjson.loads(head)
        except orjson.JSONDecodeError:
            return {}

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Every whole line after the first, with its number in the file."""
        lines = self._kept().splitlines(keepends=True)
        yield from ((number, line) for number, line in enumerate(lines[1:], 2) if line.endswith(b"\n"))

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        except OSError as exc:
            raise ConfigurationError(f"{self.path} cannot be written ({exc.strerror}): {self._remedy}") from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._file.close()
            raise ConfigurationError(f"{self.path} is being written by another run: wait, or choose another") from exc
        try:
            self._check()  # again: whoever held the file until now may have begun it
        except ConfigurationError:
            self._file.close()
            raise
        whole = self._kept().rfind(b"\n") + 1
        self._file.truncate(whole)
        if not whole:
            self._put(self._head)
        self._fresh = False
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Add one *line*; it is on disk when this returns."""
        self._put(orjson.dumps(dict(line)) + b"\n")

    def _check(self) -> None:
        """Raise `ConfigurationError` if the file is about something else, and that is not to be forgotten."""
        found, about = JsonlStore.about(self.path), orjson.loads(self._head)
        if self._fresh or found == about or (found is None and self._unbegun()):
            return
        held = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        other = [key for key in (about | held) if held.get(key) != about.get(key)]
        raise ConfigurationError(f"{self.path} holds another run (other: {', '.join(other)}): {self._remedy}")

    def _unbegun(self) -> bool:
        """Whether there is no file yet, or nothing in it but the beginning of our own first line."""
        return not self.path.is_file() or self._head.startswith(self.path.read_bytes())

    def _kept(self) -> bytes:
        """What the file holds; nothing if that is to be forgotten, or if not even its first line is whole."""
        if self._fresh or JsonlStore.about(self.path) is None:
            return b""
        return self.path.read_bytes()

    def _put(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


_ADAPTER: TypeAdapter[Sample] = TypeAdapter(Sample)
Place = tuple[int, str]  # the number of the task, and the name of the arm


class SampleStore:
    """The samples of one measurement, a line each in a `Journal`, by the number of the task and the arm's name."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self._journal = JsonlStore(path, about, fresh=fresh)
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
