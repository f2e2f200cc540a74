"""
The program of a worker, one of several processes that serve one port; ``stepspec serve --workers N`` starts it.

Its argument is the file descriptor of the channel to its parent, whose first message says all the rest.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys


def main() -> None:
    """Serve until the parent says that the service ends, or has ended itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The parent decides for all.
    from stepspec import service_factory
    from stepspec.evals.command_line import logging_to_stderr
    from stepspec.orchestrator.service import metrics
    from stepspec.orchestrator.service.worker import receive_start

    end = socket.socket(fileno=int(sys.argv[1]))
    start = receive_start(end)
    sys.path[:] = start.path
    metrics.share(start.folder, start.number)
    with logging_to_stderr():
        orphaned = asyncio.run(service_factory.work(start, end))
    if orphaned:
        shutil.rmtree(start.folder, ignore_errors=True)  # as the parent would have done


if __name__ == "__main__":
    main()
