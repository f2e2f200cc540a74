"""
A server as a child process: run it under a guard, reserve its port, and find in its log why it
failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class Child:
    """
    A running command, the leader of its process group. *ended* gives its exit code, negative for a
    signal.
    """

    pid: int
    ended: asyncio.Task[int]


@asynccontextmanager
async def child(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, grace: float
) -> AsyncGenerator[Child]:
    """
    Run *command* in a process group of its own, its output in *log*; on exit, end the whole group
    and wait for that.

    The group is terminated, and killed *grace* seconds later. The same happens when this program
    dies, however it dies.
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
        pid = await _read_number(guard.stdout)
        ended = asyncio.create_task(_read_number(guard.stdout))
        try:
            yield Child(pid, ended)
        finally:
            guard.stdin.close()
            if await guard.wait() and pid > 0:  # The guard was killed itself, and cannot do this.
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            await ended
    finally:
        guard.stdin.close()
        await guard.wait()


async def _read_number(lines: asyncio.StreamReader) -> int:
    """
    Return the next number that the guard prints; -9 if the guard has ended, because then it was
    killed.
    """
    return int(await lines.readline() or -signal.SIGKILL)


def reserve_port(host: str, port: int = 0) -> socket.socket:
    """
    Bind *port*, or a free one, without listening: other programs cannot take it as long as the
    socket is open.

    vLLM can: it sets SO_REUSEADDR too, binds the port again and listens. Raise OSError if the port
    is in use.
    """
    reserved = socket.socket(socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except BaseException:
        reserved.close()
        raise
    return reserved


# characters of a log line that are repeated; vLLM lists every architecture it knows
LINE_WIDTH = 300

_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ?")
_STAMP = re.compile(r"^(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\] ?")
_FAILURE = re.compile(
    r"^([\w.]*(Error|Exception|Interrupt|Exit)\b|[\w.]+: error: |error: |Killed|Fatal"
    r" |Segmentation)"
)
_MESSAGE_LINES = 3  # indented lines after an exception's first line that may still be its message


def failure_lines(log: str, *, limit: int = 8) -> list[str]:
    """
    Return the lines of *log* that state why a server failed, without vLLM's prefixes, or else its
    last lines.

    vLLM's processes report the same failure one after the other, the root cause first. Tracebacks
    are reduced to the exceptions they end with, and long lines to their beginnings.
    """
    lines = [_bare(line) for line in log.splitlines() if line.strip()]
    selected = list(dict.fromkeys(_failures(lines))) or [text for _, text in lines]
    return [
        line if len(line) <= LINE_WIDTH else line[: LINE_WIDTH - 3] + "..."
        for line in selected[-limit:]
    ]


def _bare(line: str) -> tuple[str, str]:
    """
    Return the level of a log line, "" if it has no stamp, and its text without prefix and stamp.
    """
    text = _PREFIX.sub("", line.rstrip())
    stamp = _STAMP.match(text)
    return (stamp["level"], text[stamp.end() :]) if stamp else ("", text)


def _failures(lines: Iterable[tuple[str, str]]) -> Iterator[str]:
    # lines that may still belong to the failure, and its level
    remaining = 0
    failed = ""
    for level, text in lines:
        if _FAILURE.match(text):
            remaining = _MESSAGE_LINES
            failed = level
            yield text
        elif remaining and level == failed and text.startswith(" ") and "^^^" not in text:
            remaining -= 1
            yield text
        else:
            remaining = 0
