"""What has to be known of this machine before a pair is started on it. Looks; decides nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import cards, local
from .cards import Card
from .child import reserve
from .installed import Installed, installed
from .pair import Pair

ASK = ("nvidia-smi", f"--query-gpu={','.join(cards.FIELDS)}", "--format=csv,noheader,nounits")
PATIENCE = 20.0  # seconds for the driver to answer


@dataclass(frozen=True, slots=True)
class Files:
    """What is on this machine of a model; None for what is not, or cannot be read."""

    config: Mapping[str, Any] | None = None
    vocabulary: Mapping[str, int] | None = None
    missing: str = ""  # the folder that is named but is none


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What was found. *files* are by model and revision. *cards* are the GPUs that are ours, None if their number is not
    known; *allotted* are what the environment calls them, where it allots them. *taken* are the addresses that somebody
    has, with the reason.
    """

    vllm: Installed | None
    files: Mapping[tuple[str, str | None], Files] = field(default_factory=dict[tuple[str, str | None], Files])
    cards: tuple[Card, ...] | None = None
    allotted: tuple[str, ...] | None = None
    taken: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    def of(self, model: str, revision: str | None) -> Files:
        return self.files.get((model, revision), Files())


def look(pair: Pair) -> Facts:
    """Find out about everything that *pair* names."""
    named = {(one.model, one.revision) for one in pair.started.values()}
    named |= {drafter for path in pair.started if (drafter := pair.drafter(path)) is not None}
    addresses = {(one.host, one.port) for one in pair.started.values() if one.port}
    reasons = {address: reason for address in addresses if (reason := _taken(*address))}
    allotment = cards.allotted(os.environ)
    wanted = any(one.gpus for one in pair.started.values())
    return Facts(
        installed(),
        {one: _files(*one) for one in named},
        cards.ours(_driven(), allotment) if wanted else None,
        allotment,
        reasons,
    )


def _files(model: str, revision: str | None) -> Files:
    at = local.folder(model, revision)
    if at is None:
        return Files(missing=model if model.startswith("/") else "")
    return Files(local.configuration(at), local.vocabulary(at))


def _taken(host: str, port: int) -> str:
    try:
        reserve(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def _driven() -> cards.Known | None:
    """Ask the driver about every card; None where there is none to ask."""
    try:
        return cards.listed(subprocess.run(ASK, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
