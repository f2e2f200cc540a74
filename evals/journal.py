"""Lines on disk that tell what was measured, so that a measurement that was cut short goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

import orjson

from ..orchestrator.errors import ConfigurationError

CURE = "choose another place with --output, or begin anew with --fresh"


class Journal:
    """
    A file that says in its first line what it is *about*, and then a line for everything that was found.

    It is begun anew if that is asked for (*fresh*), and a last line that was cut is dropped; but for that it only ever
    grows, so that at no moment a line could be lost that was there. It has one writer at a time. Raise
    `ConfigurationError`, which names the *cure*, for a file that is about something else, or no such file.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False, cure: str = CURE) -> None:
        self.path, self._head, self._fresh, self._cure = path, orjson.dumps(dict(about)) + b"\n", fresh, cure
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
            raise ConfigurationError(f"{self.path} cannot be written ({exc.strerror}): {self._cure}") from exc
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
        found, about = Journal.about(self.path), orjson.loads(self._head)
        if self._fresh or found == about or (found is None and self._unbegun()):
            return
        held = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        other = [key for key in (about | held) if held.get(key) != about.get(key)]
        raise ConfigurationError(f"{self.path} holds another run (other: {', '.join(other)}): {self._cure}")

    def _unbegun(self) -> bool:
        """Whether there is no file yet, or nothing in it but the beginning of our own first line."""
        return not self.path.is_file() or self._head.startswith(self.path.read_bytes())

    def _kept(self) -> bytes:
        """What the file holds; nothing if that is to be forgotten, or if not even its first line is whole."""
        if self._fresh or Journal.about(self.path) is None:
            return b""
        return self.path.read_bytes()

    def _put(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
