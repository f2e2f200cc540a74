"""How well a server's own token-level speculation does, from its counters, where ``/metrics`` can be reached."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

PREFIX = "vllm:spec_decode_num_"
COUNTERS = {f"{PREFIX}drafts": "drafts", f"{PREFIX}draft_tokens": "drafted", f"{PREFIX}accepted_tokens": "accepted"}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    What became of the tokens that were drafted for a model within its server.

    *drafts* are passes that verified some, *drafted* the tokens in them, *accepted* those that the model would have
    written itself. Servers count since they were started: the difference of two looks is what happened in between.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """The share of the drafted tokens that was accepted; None if none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """The tokens that a pass with a draft gave in the mean, the model's own included; None if there was none."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted)

    def __sub__(self, earlier: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts - earlier.drafts, self.drafted - earlier.drafted, self.accepted - earlier.accepted
        )

    def __str__(self) -> str:
        return "nothing drafted" if self.rate is None else f"{self.rate:.0%}, {self.length:.2f} a pass"


def read(metrics: bytes) -> Acceptance | None:
    """Add up the counters of every engine behind a server; None if they are not there: it does not speculate."""
    counted: dict[str, int] = {}
    for line in metrics.decode(errors="replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0].removesuffix("_total")
        if name in COUNTERS:
            with suppress(ValueError):
                counted[COUNTERS[name]] = counted.get(COUNTERS[name], 0) + int(float(line.rpartition(" ")[2]))
    return Acceptance(**counted) if len(counted) == len(COUNTERS) else None


def total(found: Iterable[Acceptance | None]) -> Acceptance | None:
    """Add up what several servers tell; None if none does."""
    told = [one for one in found if one is not None]
    return sum(told, Acceptance()) if told else None
