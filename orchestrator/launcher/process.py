"""Find the lines of a server's log that say why it failed. Pure: text in, lines out."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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


GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class Child:
    """A running command, the leader of its process group. *ended* gives its exit code, negative for a signal."""

    pid: int
    ended: asyncio.Task[int]


@asynccontextmanager
async def child(command: Sequence[str], *, env: Mapping[str, str], log: Path, grace: float) -> AsyncGenerator[Child]:
    """
    Run *command* in a process group of its own, its output in *log*; on exit, end the whole group and wait for that.

    The group is terminated, and killed *grace* seconds later. The same happens when this program dies, however it dies.
    """
    with log.open("wb") as output:
        guard = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(GUARD), str(grace), *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env=env,
            start_new_session=True,
        )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdin.write(b"\n")
        pid = await _number(guard.stdout)
        ended = asyncio.create_task(_number(guard.stdout))
        try:
            yield Child(pid, ended)
        finally:
            guard.stdin.close()
            if await guard.wait():
                _kill(pid)
            await ended
    finally:
        guard.stdin.close()
        await guard.wait()


async def _number(lines: asyncio.StreamReader) -> int:
    """Return what the guard says next, or what became of it."""
    return int(await lines.readline() or -signal.SIGKILL)


def _kill(group: int) -> None:
    """Do what the guard, killed itself, can do no longer."""
    with suppress(ProcessLookupError):
        if group > 0:
            os.killpg(group, signal.SIGKILL)


def reserve(host: str, port: int = 0) -> socket.socket:
    """
    Hold *port*, or a free one, for the child: bound but not listening, it is given to nobody who does not insist.

    vLLM insists: it sets SO_REUSEADDR too, and so can bind the port again and listen. Raise OSError if it is in use.
    """
    held = socket.socket(socket.AF_INET)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
    except BaseException:
        held.close()
        raise
    return held
