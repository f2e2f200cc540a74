"""
Keep a server, and whatever it starts, from outliving the program that wanted it.

A script of its own between the two, so that it survives when that program is killed. The program holds the other end of
standard input: one byte starts the server, the end of the stream stops it. Two lines come back on standard output: the
server's process id, and its exit code once it has ended.
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

LINGER = 1.0  # seconds in which the children of a server that has ended may end by themselves
NOT_STARTED = 127  # the shell's exit code for a command that it cannot run


def main(grace: float, command: list[str]) -> None:
    """Run *command* in a process group of its own until it ends or we are told to stop."""
    over = threading.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: over.set())
    if not sys.stdin.buffer.read(1):
        return
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        tell(0, NOT_STARTED)
        return
    tell(server.pid)
    meanwhile(sys.stdin.buffer.read, over)
    meanwhile(lambda: tell(server.wait()), over)
    over.wait()
    end(server, grace)


def tell(*numbers: int) -> None:
    """Print *numbers*, a line each; nobody may be left to read them."""
    with suppress(BrokenPipeError):
        sys.stdout.write("".join(f"{number}\n" for number in numbers))
        sys.stdout.flush()


def meanwhile(wait: Callable[[], object], over: threading.Event) -> None:
    """Set *over* when *wait* returns."""

    def run() -> None:
        wait()
        over.set()

    threading.Thread(target=run, daemon=True).start()


def end(server: subprocess.Popen[bytes], grace: float) -> None:
    """Terminate the server's group; kill it *grace* seconds later, or soon after the server itself has ended."""
    reach(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(grace)
        last = time.monotonic() + LINGER
        while reach(server.pid, 0) and time.monotonic() < last:
            time.sleep(0.01)
    reach(server.pid, signal.SIGKILL)
    server.wait()


def reach(group: int, number: int) -> bool:
    """Send a signal to a process group; say whether there is one. Signal 0 only asks."""
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
