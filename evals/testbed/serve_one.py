"""
Replace this process with the server of one miniature model, for containers with one model each.

``python -m stepspec.evals.testbed.serve_one large --port 8000``
"""

from __future__ import annotations

import argparse
import dataclasses
import os

from .servers import PAIR, miniature_servers


def main() -> None:
    """Execute the server of a role. Raise `ConfigurationError` for an unknown profile."""
    parser = argparse.ArgumentParser(description="Serve one model of the miniature pair.")
    parser.add_argument("role", choices=PAIR)
    parser.add_argument(
        "--host",
        default="0.0.0.0",
        help="the address to listen on (default: all)",
    )
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    parser.add_argument(
        "--profile",
        default="paced",
        help="the pacing profile, from profiles.toml",
    )
    options = parser.parse_args()
    (server,) = miniature_servers(options.profile, (options.role,))
    command = dataclasses.replace(server, host=options.host).command(options.port)
    os.execvpe(command[0], command, {**os.environ, **server.env})


if __name__ == "__main__":
    main()
