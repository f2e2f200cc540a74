"""Run a server as a child process under a guard, and find in its log why it failed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class Child:
    """A running command, the leader of its process group."""

    pid: int
    """Its process id; 0 if the command could not be run."""
    ended: asyncio.Task[int]
    """Returns the exit code once the command has ended; negative for a signal."""


@asynccontextmanager
async def child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    grace: float,
) -> AsyncGenerator[Child]:
    """
    Run *command* in a process group of its own, with its output in *log*.

    On exit, terminate the group, kill it *grace* seconds later, and wait until the command has
    ended. The guard does the same if this program dies.
    """
    with log.open("wb") as output:
        guard = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", str(GUARD), str(grace), *command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=output,
            env=env,
            start_new_session=True,
        )
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        guard.stdin.write(b"\n")
        pid = await _read_number(guard.stdout)
        ended = asyncio.create_task(_read_number(guard.stdout))
        try:
            yield Child(pid, ended)
        finally:
            guard.stdin.close()
            guard_code = await guard.wait()
            if guard_code and pid > 0:  # The guard was killed, and cannot end the group.
                _kill_group(pid)
            await ended
    finally:
        guard.stdin.close()
        await guard.wait()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


async def _read_number(lines: asyncio.StreamReader) -> int:
    """Return the next number that the guard prints; -9 if the guard was killed."""
    return int(await lines.readline() or -signal.SIGKILL)


def reserve_port(host: str, port: int = 0) -> socket.socket:
    """
    Bind *port*, or a free one, without listening. Raise OSError if the port is in use.

    No other program can take the port while the socket is open, except for vLLM: it sets
    SO_REUSEADDR too, binds the port again and listens.
    """
    reserved = socket.socket(socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except BaseException:
        reserved.close()
        raise
    return reserved


MAX_LINE_CHARACTERS = 300
"""Characters of a reported log line. vLLM lists every architecture that it knows in one line."""

_HEAD = re.compile(
    r"^(?:\(\w+ pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^]\n]*\] ?)?",
    re.MULTILINE,
)
"""The process, the level, the time and the place of a line in vLLM's log."""
_FAILURE = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b|[\w.]+: error: |error: |Killed|Fatal"
    r" |Segmentation).*(?:\n (?!.*\^\^\^).*){0,3}",
    re.MULTILINE,
)
"""An exception, with the indented lines after it that may still be its message."""


def failure_lines(log: str, *, limit: int = 8) -> list[str]:
    """
    Return at most *limit* lines of *log* that state why a server failed, or else its last lines.

    vLLM's processes report the same failure one after the other, the root cause first. Tracebacks
    are reduced to the exceptions that end them, and long lines to their beginnings.
    """
    bare = [line.rstrip() for line in _HEAD.sub("", log).splitlines() if line.strip()]
    failures = "\n".join(_FAILURE.findall("\n".join(bare))).splitlines()
    selected = list(dict.fromkeys(failures)) or bare
    return [
        line if len(line) <= MAX_LINE_CHARACTERS else line[: MAX_LINE_CHARACTERS - 3] + "..."
        for line in selected[-limit:]
    ]
