"""
Whether a model fits onto its cards, by a formula that errs on the side of letting vLLM try.

A card has to hold, of a model whose tensors are divided among n: its weights / n, those of its drafter, the keys and
values of one request of the whole context of both, and `RESERVE` for all else. It may use *memory* of the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .pair import Started
from .shape import BYTES, GIB, Shape

RESERVE = 1.5  # GiB, our estimate: the CUDA runtime, the activations of a pass, the captured graphs
GRAPHS_APART = 0.5  # GiB of it where nothing is captured: --enforce-eager


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes of each of its cards, in GiB."""

    weights: float
    tokens: float
    drafter: float
    reserve: float

    @property
    def total(self) -> float:
        return self.weights + self.tokens + self.drafter + self.reserve

    def __str__(self) -> str:
        parts = [f"{self.weights:.1f} of weights", f"{self.tokens:.1f} for the keys and values of one whole context"]
        if self.drafter:
            parts.append(f"{self.drafter:.1f} for its drafter")
        return f"{self.total:.1f} GiB ({', '.join(parts)}, {self.reserve:.1f} for all else)"


def need(one: Started, model: Shape, drafter: Shape | None) -> Need:
    """Work out what *one* takes of each card."""
    cards, number = max(1, len(one.gpus)), kept_in(one.flags)
    drafting = drafter.weights(cards) + one.context * drafter.token(cards, number) if drafter else 0.0
    reserve = GRAPHS_APART if one.flags.get("enforce-eager") else RESERVE
    return Need(
        weights=model.weights(cards) / GIB,
        tokens=one.context * model.token(cards, number) / GIB,
        drafter=drafting / GIB,
        reserve=reserve,
    )


def cached(one: Started, model: Shape, drafter: Shape | None) -> float:
    """Bytes of the keys and values of one whole context, those of the drafter included."""
    number = kept_in(one.flags)
    return one.context * (model.token(1, number) + (drafter.token(1, number) if drafter else 0.0))


def kept_in(flags: Mapping[str, object]) -> float | None:
    """Bytes of the numbers that keys and values are kept in, where a flag says it."""
    said = str(flags.get("kv-cache-dtype", "auto"))
    return BYTES["fp8"] if said.startswith("fp8") else BYTES.get(said)
