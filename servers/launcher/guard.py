"""
End a server and every process that it has started when the program that started it stops or dies.

The guard is a process of its own, which survives if the program is killed. The program holds the
other end of standard input: one byte starts the server, and the end of the stream stops it. The
guard prints two lines: the server's process id, and its exit code once it has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

CHILDREN_SECONDS = 1.0  # for the children of a server that has ended to end by themselves
NOT_STARTED = 127  # the shell's exit code for a command that it cannot run


def main(grace: float, command: list[str]) -> None:
    """Run *command* until it ends, a signal arrives or standard input ends."""
    stop = threading.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stop.set())
    if not sys.stdin.buffer.read(1):
        return
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
        )
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        write_lines(0, NOT_STARTED)
        return
    write_lines(server.pid)
    stop_after(sys.stdin.buffer.read, stop)
    stop_after(lambda: write_lines(server.wait()), stop)
    stop.wait()
    end(server, grace)


def write_lines(*numbers: int) -> None:
    """Print *numbers*, one a line; ignore that the reader may be gone."""
    with suppress(BrokenPipeError):
        sys.stdout.write("".join(f"{number}\n" for number in numbers))
        sys.stdout.flush()


def stop_after(wait: Callable[[], object], stop: threading.Event) -> None:
    """Call *wait* in a thread, and set *stop* when it returns."""

    def run() -> None:
        wait()
        stop.set()

    threading.Thread(target=run, daemon=True).start()


def end(server: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate the server's group. Kill it after *grace* seconds, or once the server has ended."""
    signal_group(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(grace)
        deadline = time.monotonic() + CHILDREN_SECONDS
        while signal_group(server.pid, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
    signal_group(server.pid, signal.SIGKILL)
    server.wait()


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group. Return whether it exists. Signal 0 only tests that."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(0)  # One thread still reads standard input, which may never end.
