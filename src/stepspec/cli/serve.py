"""The command ``serve``."""

from __future__ import annotations

import signal
import sys

from .. import service_factory
from ..api import Solver
from .flags import COMMON, SAMPLING, SEED, with_settings
from .program import wait

SERVE_EXAMPLES = """
Examples:

  stepspec serve --small http://localhost:8001/v1 \\
      --large http://localhost:8002/v1

  # what `auto` means; both servers are in stepspec.toml
  stepspec serve --policy bild -O scale=step --ahead 3

  stepspec serve --host 0.0.0.0 --key SECRET --log-format json
"""


SERVICE = (
    "service.host",
    "service.port",
    "service.keys",
    "service.insecure",
    "service.cors_origins",
    "service.thinking",
    "service.max_running",
    "service.max_waiting",
    "service.max_seconds",
    "service.drain_seconds",
    "service.root_path",
    "service.log_format",
    "service.log_level",
)


@with_settings(*COMMON, *SAMPLING, *SEED, *SERVICE)
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
