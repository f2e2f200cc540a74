"""What makes a method looser: the one option that says how much it lets pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Threshold:
    """
    The option of a policy that says how loose it is, and its *values*, the strictest first.

    With *compared*, the policy does nothing with it but compare a verdict's score: at least the value is accepted, and
    the strictest value is the highest score there is. Then a run none of whose scores lies between two values is the
    same run for both, if runs repeat.
    """

    option: str
    values: tuple[float, ...]
    compared: bool = False


KNOBS: Mapping[str, Threshold] = {
    "specreason": Threshold("threshold", (9, 8.5, 8, 7.5, 7, 6, 5, 4, 3, 2, 1, 0), compared=True),
    "reward": Threshold("threshold", (1, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0), compared=True),
    "cascade": Threshold("sure", (1, 0.99, 0.97, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)),
    "bild": Threshold("rollback", (0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10)),
    "glimpse": Threshold("threshold", (0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.5, 2, 3)),
    "random": Threshold("p", (0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)),
}
