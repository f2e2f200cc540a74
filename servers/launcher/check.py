"""
Check a pair before anything is started: ports, cards and memory.

`inspect_machine` reads what this machine has. `check_pair` decides what follows. vLLM itself checks
its flags, the memory of a pass and the drafter's vocabulary when it starts. The launcher shows the
end of vLLM's log.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stepspec.orchestrator.errors import ConfigurationError

from .commands import visible_cards
from .pair import VISIBLE, Drafter, Pair, StartedServer
from .process import reserve_port

GIB = 2**30
MIB_IN_GIB = 1024
MAX_ROUNDING = 1e-9
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
NVIDIA_SMI_SECONDS = 20.0
SHRINKING_FLAGS = {"quantization", "cpu-offload-gb"}
"""With one of these flags, a card holds less than the files of the weights."""


Address: TypeAlias = tuple[str, int]
"""A host and a port."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine has for one pair."""

    cards: int | None = None
    """The number of GPUs that may be used; None if the driver does not tell."""
    card: float | None = None
    """The memory of the smallest GPU in use, in GiB; None if the driver does not tell."""
    taken: Mapping[Address, str] = field(default_factory=dict[Address, str])
    """For each address that cannot be bound, the reason."""
    weights: Mapping[Drafter, int] = field(default_factory=dict[Drafter, int])
    """The bytes of each model that is on this machine, by name and revision."""


def inspect_machine(pair: Pair) -> Machine:
    """Look up everything that *pair* names."""
    servers = pair.started.values()
    drafters = filter(None, map(pair.drafter, pair.started))
    models = {(server.model, server.revision) for server in servers}.union(drafters)
    addresses = {(server.host, server.port) for server in servers}
    used = {card for server in servers for card in server.gpus}
    memory = _query_driver() if used else dict[str, float]()
    visible = visible_cards(os.environ)
    names = tuple(memory) if visible is None else visible
    # CUDA_VISIBLE_DEVICES may also name cards by UUID, whose sizes stay unknown.
    sizes = [memory[name] for card, name in enumerate(names) if card in used and name in memory]
    is_known = visible is not None or memory
    return Machine(
        cards=len(names) if is_known else None,
        card=min(sizes or memory.values(), default=None),
        taken={address: reason for address in addresses if (reason := why_taken(*address))},
        weights={model: size for model in models if (size := _weight_bytes(*model))},
    )


def why_taken(host: str, port: int) -> str:
    """Return why the address cannot be bound. "": it can."""
    try:
        reserve_port(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def _query_driver() -> Mapping[str, float]:
    """Return the GiB of each card by its index. {}: no driver tells them."""
    try:
        listing = subprocess.run(
            NVIDIA_SMI,
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
            check=True,
        )
        sizes = [float(number) / MIB_IN_GIB for number in listing.stdout.split()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(index): size for index, size in enumerate(sizes)}


def _weight_bytes(model: str, revision: str | None) -> int:
    """
    Return the bytes of the weights of *model*; 0 if they are not on this machine.

    Mistral's folders have a second copy of the weights under another name.
    """
    folder = model_folder(model, revision)
    if folder is None:
        return 0
    files = [*folder.glob("model*.safetensors")] or [*folder.glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the folder with the files of *model*; None if they would have to be downloaded."""
    if Path(model).is_absolute():
        return Path(model) if Path(model, "config.json").is_file() else None
    try:
        from huggingface_hub import try_to_load_from_cache  # which comes with vLLM
    except ImportError:
        return None
    cache = os.environ.get("HF_HUB_CACHE")
    try:
        config = try_to_load_from_cache(model, "config.json", cache, revision)
    except ValueError:  # It is no name on the hub.
        return None
    return Path(config).parent if isinstance(config, str) else None


def check_pair(pair: Pair, machine: Machine) -> None:
    """Raise `ConfigurationError` with each reason why *pair* cannot run here, and its cure."""
    errors = [*_errors(pair, machine)]
    if len(errors) > 1:
        errors = [f"\n- {error}" for error in errors]
    if errors:
        raise ConfigurationError("".join(errors))


def _errors(pair: Pair, machine: Machine) -> Iterator[str]:
    ports: dict[int, str] = {}
    cards: set[int] = set()
    for path, server in pair.started.items():
        port = server.port
        reason = machine.taken.get((server.host, port))
        if reason:
            yield (
                f"{path}: {server.host}:{port} is not available ({reason}): stop the program that"
                " uses it, or set another port or host"
            )
        first = ports.setdefault(port, path)
        if port and first != path:
            yield (
                f"{first} and {path} have the same port {port}: set different ports, or leave them"
                " out"
            )
        yield from _model_errors(pair, path, server)
        yield from _memory_errors(pair, path, server, machine)
        cards.update(server.gpus)
    for card in sorted(cards):
        yield from _card_errors(pair, card, machine)


def _card_errors(pair: Pair, card: int, machine: Machine) -> Iterator[str]:
    users = {path: server for path, server in pair.started.items() if card in server.gpus}
    if machine.cards is not None and card >= machine.cards:
        yield (
            f"{', '.join(users)}: there is no GPU {card}: {machine.cards} may be used"
            f" (nvidia-smi, {VISIBLE}), which gpus number from 0"
        )
    if sum(server.memory for server in users.values()) > 1 + MAX_ROUNDING:
        shares = [f"{path}.memory {server.memory:g}" for path, server in users.items()]
        yield (
            f"GPU {card}: the shares of its memory exceed 1 ({' + '.join(shares)} > 1): lower one,"
            " or use another GPU"
        )


def _model_errors(pair: Pair, path: str, server: StartedServer) -> Iterator[str]:
    if Path(server.model).is_absolute() and model_folder(server.model) is None:
        yield f"{path}.model: no model at {server.model}: a folder with a config.json is needed"
    if server.speculation.method == "draft_model" and pair.drafter(path) is None:
        yield f"{path}.speculation: the pair has no smaller model that could draft: set `model`"


def _memory_errors(
    pair: Pair,
    path: str,
    server: StartedServer,
    machine: Machine,
) -> Iterator[str]:
    """Compare the weights on this machine with the server's share of a card."""
    card = pair.card or machine.card
    if card is None or not server.gpus or server.flags.keys() & SHRINKING_FLAGS:
        return
    models = filter(None, ((server.model, server.revision), pair.drafter(path)))
    total = sum(machine.weights.get(model, 0) for model in models)
    need = total / GIB / len(server.gpus)
    if need > server.memory * card:
        yield (
            f"{path} does not fit: its weights take {need:.1f} GiB of each card, and it may use"
            f" {server.memory:g} of {card:.0f} GiB: raise {path}.memory, use more gpus, or a"
            " quantised model"
        )
