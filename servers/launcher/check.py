"""
Check a pair before anything is started: ports, models and cards.

vLLM itself checks its flags, its memory and the drafter's vocabulary when it starts. The launcher
shows the end of vLLM's log.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from stepspec.orchestrator.errors import ConfigurationError

from .commands import visible_cards
from .pair import VISIBLE, Pair
from .process import reserve_port

MAX_ROUNDING = 1e-9
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
NVIDIA_SMI_SECONDS = 20.0


def check_pair(pair: Pair) -> None:
    """Raise `ConfigurationError` with each reason why *pair* cannot run here, and its cure."""
    errors = [*_server_errors(pair), *_shared_errors(pair)]
    if errors:
        raise ConfigurationError("\n".join(errors))


def _server_errors(pair: Pair) -> Iterator[str]:
    uses_cards = pair.large.gpus or pair.small.gpus
    cards = count_cards() if uses_cards else None
    for role, server in pair.models.items():
        reason = why_taken(server.host, server.port)
        if reason:
            yield (
                f"{role}: {server.host}:{server.port} is not available ({reason}): stop the program"
                " that uses it, or set another port or host"
            )
        model = Path(server.model)
        if model.is_absolute() and not (model / "config.json").is_file():
            yield f"{role}.model: no model at {model}: a folder with a config.json is needed"
        last = max(server.gpus, default=-1)
        if cards is not None and last >= cards:
            yield (
                f"{role}: there is no GPU {last}: {cards} may be used (nvidia-smi, {VISIBLE}),"
                " which gpus number from 0"
            )


def _shared_errors(pair: Pair) -> Iterator[str]:
    large = pair.large
    small = pair.small
    if large.port and large.port == small.port:
        yield (
            f"large and small have the same port {large.port}: set different ports, or leave them"
            " out"
        )
    if pair.share_cards and large.memory + small.memory > 1 + MAX_ROUNDING:
        yield (
            "large and small use the same GPU, and large.memory and small.memory exceed 1 together:"
            " lower one, or use another GPU"
        )


def why_taken(host: str, port: int) -> str:
    """Return why the address cannot be bound. "": it can."""
    try:
        reserve_port(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def count_cards() -> int | None:
    """Return the number of GPUs that may be used; None if nothing tells it."""
    visible = visible_cards(os.environ)
    if visible is not None:
        return len(visible)
    try:
        listing = subprocess.run(
            NVIDIA_SMI,
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return sum(line.isdigit() for line in listing.stdout.split()) or None
