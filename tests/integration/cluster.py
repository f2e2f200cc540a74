"""
A program: a small Ray cluster of its own, on which it does what ``serve run`` does with the same
arguments.

At SIGUSR1 it takes the application back, as a new version would.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, cast

import ray as _ray
from ray import serve
from ray.serve.scripts import cli

ray = cast("Any", _ray)  # parts of its signatures have no types

SHARED_MEMORY = 80 * 2**20  # bytes; the least that Ray takes is 75 MiB


def take_back(number: int, frame: FrameType | None) -> None:
    serve.delete("stepspec")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, take_back)
    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=SHARED_MEMORY,
        include_dashboard=False,
        namespace="serve",
    )
    cli(["run", *sys.argv[1:]])
