"""
Replace this process with the server of one miniature model, for containers with one model each.

``python -m stepspec.evals.testbed.serve_one large``
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import get_args

from . import Profile
from .servers import PAIR, miniature_servers

PORT = 8000


def main() -> None:
    """Execute the server of a role. It listens at all addresses."""
    models = {model.name: model for model in PAIR}
    parser = argparse.ArgumentParser(description="Serve one model of the miniature pair.")
    parser.add_argument("role", choices=models)
    parser.add_argument("--profile", choices=get_args(Profile), default="paced")
    options = parser.parse_args()
    (server,) = miniature_servers(options.profile, (models[options.role],))
    command = dataclasses.replace(server, host="0.0.0.0").command(PORT)
    os.execvpe(command[0], command, {**os.environ, **server.env})


if __name__ == "__main__":
    main()
