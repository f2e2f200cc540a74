"""
Serve one model of the miniature pair in the place of this process, for containers, where each model has its own.

``python -m stepspec.evals.testbed.serve_one large --port 8000``
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from .servers import miniature_servers

ROLES = ("large", "small", "small-other")


def main() -> None:
    """Become the server of the role that the command line names. Raise ConfigurationError for an unknown profile."""
    parser = argparse.ArgumentParser(description="Serve one model of the miniature pair.")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen at, all of them unless given")
    parser.add_argument("--port", type=int, default=8000, help="8000 unless given")
    parser.add_argument("--profile", default="paced", help="how its passes are paced; see profiles.toml")
    asked = parser.parse_args()
    (server,) = miniature_servers(asked.profile, (asked.role,))
    command = dataclasses.replace(server, host=asked.host).command(asked.port)
    os.execvpe(command[0], command, {**os.environ, **server.env})


if __name__ == "__main__":
    main()
