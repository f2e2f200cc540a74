"""
Check a pair before anything is started: ports, cards and memory.

`inspect_machine` reads what this machine has, and `check_pair` decides what follows from it. What
only vLLM can know, such as its flags, the memory of a pass or the drafter's vocabulary, it says
itself when it starts, before it loads a model; the launcher shows the end of its log.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepspec.orchestrator.errors import VLLM_FOR_CPUS, ConfigurationError, install_command

from .commands import visible_cards
from .pair import VISIBLE, Drafter, Pair, StartedServer
from .process import reserve_port

GIB = 2**30
MIB_IN_GIB = 1024
ROUNDING = 1e-9
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
NVIDIA_SMI_SECONDS = 20.0
SMALLER = {"quantization", "cpu-offload-gb"}  # flags with which a card holds less than the files


@dataclass(frozen=True, slots=True)
class Machine:
    """
    What this machine has for one pair; *vllm* is whether it is installed.

    *cards* is the number of GPUs that may be used, and *card* the GiB of the smallest one that is;
    None if the driver does not tell. *taken* has the reason for each address that cannot be bound.
    *weights* has the bytes of each model, by name and revision, that is on this machine.
    """

    vllm: bool = True
    cards: int | None = None
    card: float | None = None
    taken: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    weights: Mapping[Drafter, int] = field(default_factory=dict[Drafter, int])


def inspect_machine(pair: Pair) -> Machine:
    """Look up everything that *pair* names."""
    started = pair.started
    models = {(server.model, server.revision) for server in started.values()}
    models |= {drafter for path in started if (drafter := pair.drafter(path)) is not None}
    addresses = {(server.host, server.port) for server in started.values()}
    used = {card for server in started.values() for card in server.gpus}
    memory = _query_driver() if used else []
    visible = visible_cards(os.environ)
    names = dict(enumerate(map(str, range(len(memory))) if visible is None else visible))
    sizes = [
        memory[int(name)]
        for card in used
        if (name := names.get(card, "")).isdigit() and int(name) < len(memory)
    ]
    return Machine(
        vllm=importlib.util.find_spec("vllm") is not None,
        cards=len(memory) or None if visible is None else len(visible),
        card=min(sizes or memory, default=None),
        taken={address: reason for address in addresses if (reason := why_taken(*address))},
        weights={model: weights for model in models if (weights := _weight_bytes(*model))},
    )


def why_taken(host: str, port: int) -> str:
    """Return why the address cannot be bound; "" if it can."""
    try:
        reserve_port(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def _query_driver() -> list[float]:
    """
    Ask the driver for the GiB of every card; empty if there is no driver, or it does not tell.
    """
    try:
        listing = subprocess.run(
            NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True
        )
        return [float(line) / MIB_IN_GIB for line in listing.stdout.split("\n") if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


def _weight_bytes(model: str, revision: str | None) -> int:
    """
    Return the size of the weights of *model*; 0 if they are not on this machine. Mistral's have a
    second copy.
    """
    folder = model_folder(model, revision)
    files = folder and ([*folder.glob("model*.safetensors")] or [*folder.glob("*.safetensors")])
    return sum(file.stat().st_size for file in files or ())


def model_folder(model: str, revision: str | None = None) -> Path | None:
    """Return the folder with the files of *model*; None if they would have to be downloaded."""
    folder = Path(model)
    if not folder.is_absolute():
        home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
        repository = (
            Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
            / f"models--{model.replace('/', '--')}"
        )
        commit = revision or "main"
        reference = repository / "refs" / commit
        if reference.is_file():
            commit = reference.read_text(encoding="utf-8").strip()
        folder = repository / "snapshots" / commit
    return folder if (folder / "config.json").is_file() else None


def check_pair(pair: Pair, machine: Machine) -> None:
    """
    Raise `ConfigurationError` with every reason why *pair* cannot run on *machine*, each with its
    remedy.
    """
    if found := [*_errors(pair, machine)]:
        raise ConfigurationError(
            found[0] if len(found) == 1 else "".join(f"\n- {error}" for error in found)
        )


def _errors(pair: Pair, machine: Machine) -> Iterator[str]:
    if pair.started and not machine.vllm:
        yield f"vLLM is not installed: {install_command('vllm')}; {VLLM_FOR_CPUS}"
    ports: dict[int, str] = {}
    for path, server in pair.started.items():
        if reason := machine.taken.get((server.host, server.port)):
            yield (
                f"{path}: {server.host}:{server.port} is not available ({reason}): stop the program"
                " that uses it, or set another port or host"
            )
        if server.port and (other := ports.setdefault(server.port, path)) != path:
            yield (
                f"{other} and {path} have the same port {server.port}: set different ports, or"
                " leave them out"
            )
        yield from _model_errors(pair, path, server, machine)
    yield from _card_errors(pair, machine)


def _card_errors(pair: Pair, machine: Machine) -> Iterator[str]:
    for card in sorted({card for server in pair.started.values() for card in server.gpus}):
        users = {path: server for path, server in pair.started.items() if card in server.gpus}
        if machine.cards is not None and card >= machine.cards:
            allowed = (
                f"{machine.cards} may be used (nvidia-smi, {VISIBLE}), which gpus number from 0"
            )
            yield f"{', '.join(users)}: there is no GPU {card}: {allowed}"
        if sum(server.memory for server in users.values()) > 1 + ROUNDING:
            shares = " + ".join(
                f"{path}.memory {server.memory:g}" for path, server in users.items()
            )
            yield (
                f"GPU {card}: the shares of its memory exceed 1 ({shares} > 1): lower one, or use"
                " another GPU"
            )


def _model_errors(pair: Pair, path: str, server: StartedServer, machine: Machine) -> Iterator[str]:
    """
    Compare the weights, as far as they are on this machine, with the share of a card; vLLM checks
    the rest.
    """
    if Path(server.model).is_absolute() and model_folder(server.model) is None:
        yield f"{path}.model: no model at {server.model}: a folder with a config.json is needed"
    drafter = pair.drafter(path)
    if drafter is None and server.speculation.method == "draft_model":
        yield f"{path}.speculation: the pair has no smaller model that could draft: set `model`"
    card = pair.card or machine.card
    if card is None or not server.gpus or server.flags.keys() & SMALLER:
        return
    models = filter(None, ((server.model, server.revision), drafter))
    need = sum(machine.weights.get(model, 0) for model in models) / GIB / len(server.gpus)
    if need > server.memory * card:
        yield (
            f"{path} does not fit: its weights take {need:.1f} GiB of each card, and it may use"
            f" {server.memory:g} of {card:.0f} GiB: raise {path}.memory, use more gpus, or a"
            " quantised model"
        )
