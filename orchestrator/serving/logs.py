"""Find the lines of a server's log that say why it failed. Pure: text in, lines out."""

from __future__ import annotations

import re
from collections.abc import Iterable

WIDTH = 300  # characters of a line worth repeating; vLLM lists every architecture it knows
PORT_TAKEN = "address already in use"

_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ?")
_STAMP = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\] ?")
_FAILURE = re.compile(r"^([\w.]*(Error|Exception|Interrupt|Exit)\b|[\w.]+: error: |error: |Killed|Fatal |Segmentation)")
_FOLLOWING = 3  # lines after an exception's first that may still be its message


def reasons(log: str, *, limit: int = 8) -> list[str]:
    """
    Return the lines that tell what went wrong, without vLLM's prefixes; failing that, the last lines of all.

    vLLM's processes report the same failure one after the other, the root cause first. Tracebacks are cut down to the
    exceptions they end with, and long lines to their beginnings.
    """
    lines = [_Line(line) for line in log.splitlines() if line.strip()]
    found = list(dict.fromkeys(_failures(lines))) or [line.text for line in lines]
    return [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in found[-limit:]]


def port_taken(log: str) -> bool:
    """Say whether the server found its port in use."""
    return PORT_TAKEN in log.lower()


class _Line:
    def __init__(self, line: str) -> None:
        bare = _PREFIX.sub("", line.rstrip())
        stamp = _STAMP.match(bare)
        self.level = stamp["level"] if stamp else ""
        self.text = bare[stamp.end() :] if stamp else bare


def _failures(lines: Iterable[_Line]) -> Iterable[str]:
    following, level = 0, ""
    for line in lines:
        if _FAILURE.match(line.text):
            following, level = _FOLLOWING, line.level
            yield line.text
        elif following and line.level == level and line.text.startswith(" ") and "^^^" not in line.text:
            following -= 1
            yield line.text
        else:
            following = 0
