"""The provenance of figures: code, machine, libraries, servers and prompts."""

from __future__ import annotations

import asyncio
import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from stepspec import prompts
from stepspec.api import Solver
from stepspec.orchestrator.endpoints import Endpoint
from stepspec.orchestrator.endpoints.metrics import cache_labels
from stepspec.orchestrator.errors import EndpointError
from stepspec.orchestrator.http.client import Connection
from stepspec.orchestrator.http.http_errors import object_in
from stepspec.orchestrator.http.paths import METRICS, MODELS, VERSION

from .sample import Task

LIBRARIES = (
    "stepspec",
    "openai",
    "aiohttp",
    "pydantic",
    "latex2sympy2_extended",
    "sympy",
    "datasets",
)
KEY = re.compile(r"(^|\n)(--[a-z-]*key[=\n])[^\n]*")  # a flag and its API key, in lines of words
SECONDS = 10.0  # for one request or one git command


def program() -> dict[str, Any]:
    """The program: start time, command, commit if it runs from a clone, versions, and machine."""
    return {
        "date": now(),
        "command": [Path(sys.argv[0]).name, *without_keys(sys.argv[1:])],
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": _versions(),
    }


def now() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def without_keys(words: Sequence[str]) -> list[str]:
    """
    Replace what follows the flags of API keys, as in ``--large-api-key KEY`` and
    ``--large-api-key=KEY``.
    """
    return KEY.sub(r"\1\2***", "\n".join(words)).split("\n")


def commit(file: Path = Path(__file__)) -> str | None:
    """
    The commit of the git clone of *file*, with a plus if tracked files have changed; None outside a
    clone.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "--no-optional-locks", *arguments),
            cwd=file.resolve().parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS,
        ).stdout.strip()

    try:
        # It fails in a clone of another project, in which stepspec is installed.
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    """The versions of the libraries that are installed."""
    versions: dict[str, str] = {}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def prompt_hashes() -> dict[str, str]:
    """
    The hash of every prompt: of the methods and benchmarks, those of plugins and a user's file
    among them.
    """
    return {name: prompt.sha256 for name, prompt in sorted(prompts.known().items())}


def digest(tasks: Sequence[Task]) -> str:
    """A hash of the problems, as the models read them, and of what grades their answers."""
    hashed = blake2b(digest_size=16)
    for task in tasks:
        hashed.update(orjson.dumps([task.problem, task.gold.record()]))
    return hashed.hexdigest()


async def servers(solver: Solver) -> list[dict[str, Any]]:
    """Version, models and cache settings of the servers of both models."""
    endpoints = (solver.small, solver.large)
    replicas = [settings for endpoint in endpoints for settings in endpoint.settings.each]
    return list(await asyncio.gather(*map(_server, replicas)))


async def _server(settings: Endpoint) -> dict[str, Any]:
    connection = Connection(settings)
    try:
        version, models, metrics = [
            await _fetch(connection, path) for path in (VERSION, MODELS, METRICS)
        ]
    finally:
        await connection.close()
    return {
        "role": settings.role,
        "url": settings.url,
        "version": object_in(version).get("version"),
        "models": object_in(models).get("data"),
        "cache": next(cache_labels(metrics), dict[str, str]()),
    }


async def _fetch(connection: Connection, path: str) -> bytes:
    try:
        async with asyncio.timeout(SECONDS):
            return await connection.fetch(connection.call("describe"), path, retries=0)
    except (EndpointError, TimeoutError):
        return b""
