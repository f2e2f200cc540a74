"""The command ``stepspec``, and ``python -m stepspec``."""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130  # the exit code after Ctrl-C


def main() -> None:
    """Run the command. Ctrl-C ends it without a traceback, also while its modules are imported."""
    signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:2] == ["serve"]:  # SIGTERM ends a service with 0, which PID 1 would ignore
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    from .cli import main as run

    run()


def _leave(*_: object) -> None:
    """End the process at once: nothing has been started."""
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
