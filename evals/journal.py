"""Lines on disk that tell what was measured, so that a measurement that was cut short goes on where it stopped."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, cast

import orjson

from ..orchestrator.errors import ConfigurationError


class Journal:
    """
    A file that says in its first line what it is *about*, and then a line for everything that was found.

    A file about something else, or one that is no such file, is begun anew, as any is if that is asked for (*fresh*); a
    last line that was cut is dropped. The file only ever grows, so that at no moment a line could be lost that was
    there, and it has one writer at a time.
    """

    def __init__(self, path: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path, self._head, self._fresh = path, orjson.dumps(dict(about)) + b"\n", fresh

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
        known = not self._fresh and self.path.is_file()
        lines = self.path.read_bytes().splitlines(keepends=True) if known else []
        if lines and lines[0] == self._head:
            yield from ((number, line) for number, line in enumerate(lines[1:], 2) if line.endswith(b"\n"))

    def __enter__(self) -> Self:
        """Begin to write. Raise `ConfigurationError` if somebody else does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            self._file.close()
            raise ConfigurationError(f"{self.path} is being written by another run: wait, or choose another") from exc
        kept = self.path.read_bytes() if not self._fresh else b""
        self._file.truncate(kept.rfind(b"\n") + 1 if kept.startswith(self._head) else 0)
        if not kept.startswith(self._head):
            self._put(self._head)
        self._fresh = False
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Add one *line*; it is on disk when this returns."""
        self._put(orjson.dumps(dict(line)) + b"\n")

    def _put(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


def same(path: Path, about: Mapping[str, Any], cure: str) -> None:
    """Raise `ConfigurationError`, which names the *cure*, if the file at *path* is about something else."""
    found, about = Journal.about(path), orjson.loads(orjson.dumps(dict(about)))
    if found is None or found == about:
        return
    held = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    other = [key for key, value in about.items() if held.get(key) != value]
    raise ConfigurationError(f"{path} holds another run (other: {', '.join(other)}): {cure}")
