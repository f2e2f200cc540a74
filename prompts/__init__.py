"""Prompt texts, one per file, named ``<policy>.<purpose>.txt``. Where each comes from: ``README.md``."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

SEPARATOR = "\n---\n"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to send, the words that open the reply to it, and the hash that a report quotes."""

    text: str
    opening: str
    sha256: str


def load(name: str) -> Prompt:
    """Return the prompt called *name*. A line of three dashes in its file parts the text from the reply's opening."""
    source = files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    text, _, opening = source.removesuffix("\n").partition(SEPARATOR)
    return Prompt(text, opening, sha256(source.encode()).hexdigest())
