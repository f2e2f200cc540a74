"""The command ``serve``."""

from __future__ import annotations

import signal
import sys

from .. import service_factory
from ..api import Solver
from .flags import SAMPLING, SEED, flag, with_settings
from .program import wait

SERVE_EXAMPLES = """
Examples:

  stepspec serve --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # what `auto` means; both servers are in stepspec.toml
  stepspec serve --policy bild -O scale=step --ahead 3

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


THINKING = "Field of replies for the thinking: both, reasoning, reasoning_content, content, none."
SERVICE = (
    flag("service.host", str, "The address; default 127.0.0.1."),
    flag("service.port", int, "The port; default 8765, 0 for any free one."),
    flag(
        "service.keys",
        list[str],
        "An API key that clients must send; better set STEPSPEC_SERVICE__KEYS.",
        "--key",
    ),
    flag(
        "service.insecure",
        bool,
        "Without a key, serve a public address, and any name and page.",
    ),
    flag(
        "service.cors_origins",
        list[str],
        "Origin of web pages that may use the service.",
        "--cors-origin",
    ),
    flag("service.thinking", str, THINKING),
    flag("service.max_running", int, "Number of requests processed at the same time."),
    flag(
        "service.max_waiting",
        int,
        "Number of requests that may wait; more are rejected.",
    ),
    flag(
        "service.max_seconds",
        float,
        "Deadline of a request in seconds; then it is answered from the thinking so far.",
    ),
    flag(
        "service.drain_seconds",
        float,
        "Seconds that running requests have to finish at shutdown.",
    ),
    flag("service.root_path", str, "Path under which a proxy serves the service."),
    flag("service.log_format", str, "console or json."),
    flag("service.log_level", str, "debug, info, warning or error."),
)


@with_settings(
    "serve",
    SAMPLING,
    SEED,
    SERVICE,
)
def serve() -> None:
    """
    Serve an OpenAI-compatible endpoint in front of both models, and a dashboard at /.

    These settings and more may also come from STEPSPEC_* variables and from stepspec.toml;
    docs/python.md lists them.
    """
    service_factory.require()
    # PID 1 would ignore it until the server handles it
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    solver = Solver()
    wait(service_factory.serve(solver, solver.settings.service))
