"""
What this machine has for a pair: vLLM, the GPUs ("cards"), free ports, and the weights that are already downloaded.

Reads only; `check` decides what follows from it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from .process import reserve_port

if TYPE_CHECKING:
    from .pair import Pair

NVIDIA_SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
NVIDIA_SMI_SECONDS = 20.0
MIB_IN_GIB = 1024

VISIBLE = "CUDA_VISIBLE_DEVICES"
PCI_ORDER: Mapping[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
CARD_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")


@dataclass(frozen=True, slots=True)
class Machine:
    """
    What this machine has for one pair; *vllm* is whether it is installed.

    *cards* has the GiB of each GPU, None if the driver does not tell. *visible* are the names that CUDA_VISIBLE_DEVICES
    lists for them, None if it is not set. *taken* has the reason for each address that cannot be bound. *weights* has
    the bytes of each model, by name and revision, that is on this machine.
    """

    vllm: bool = True
    cards: tuple[float, ...] | None = None
    visible: tuple[str, ...] | None = None
    taken: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    weights: Mapping[tuple[str, str | None], int] = field(default_factory=dict[tuple[str, str | None], int])


def inspect_machine(pair: Pair) -> Machine:
    """Look up everything that *pair* names."""
    models = {(server.model, server.revision) for server in pair.started.values()}
    models |= {drafter for path in pair.started if (drafter := pair.drafter(path)) is not None}
    addresses = {(server.host, server.port) for server in pair.started.values() if server.port}
    return Machine(
        vllm=importlib.util.find_spec("vllm") is not None,
        cards=_query_driver() if any(server.gpus for server in pair.started.values()) else None,
        visible=visible_cards(os.environ),
        taken={address: reason for address in addresses if (reason := _why_taken(*address))},
        weights={model: weights for model in models if (weights := _weight_bytes(*model))},
    )


def _why_taken(host: str, port: int) -> str:
    try:
        reserve_port(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def _query_driver() -> tuple[float, ...] | None:
    """Ask the driver for the GiB of every card; None if there is no driver, or it does not tell."""
    try:
        listing = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True)
        return tuple(float(line) / MIB_IN_GIB for line in listing.stdout.split("\n") if line.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _weight_bytes(model: str, revision: str | None) -> int:
    """Return the size of the weights of *model*; 0 if they are not on this machine."""
    folder = model_folder(model, revision)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder else 0


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the folder with the files of *model*; None if they would have to be downloaded."""
    if Path(model).is_absolute():
        return Path(model) if (Path(model) / "config.json").is_file() else None
    repository = _hub_cache() / f"models--{model.replace('/', '--')}"
    commit = revision or "main"
    reference = repository / "refs" / commit
    if reference.is_file():
        commit = reference.read_text(encoding="utf-8").strip()
    snapshot = repository / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def visible_cards(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """
    Return the names in CUDA_VISIBLE_DEVICES in their order: numbers, or ids of GPUs or of MIG slices.

    As in CUDA, the first word that is no such name ends the list. None if the variable is not set: all cards may be
    used.
    """
    value = environment.get(VISIBLE)
    if value is None:
        return None
    return tuple(takewhile(CARD_NAME.fullmatch, (word.strip() for word in value.split(","))))


def card_variables(cards: Sequence[int], visible: Sequence[str] | None) -> Mapping[str, str]:
    """Return the environment variables that restrict CUDA to *cards*; if *visible* is set, they are indices into it."""
    names = [str(card) if visible is None else visible[card] for card in cards]
    return {**PCI_ORDER, VISIBLE: ",".join(names)}
