"""
Which GPUs are ours: those that the environment allots, as a job of a cluster does, or all that the driver knows.

A pair's file numbers ours, from 0, as any other program of the job does. Where there is no allotment, these are the
driver's own numbers, the order of the PCI bus, which CUDA has to be asked for: its own order is the fastest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER: Mapping[str, str] = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
FIELDS = ("index", "uuid", "memory.total", "name")  # what the driver is asked about every card
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
