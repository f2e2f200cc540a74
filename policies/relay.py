"""
RelayGen: the large model leads, and after words that announce an easy sentence the small one finishes it.

Song, Kim and Kim 2026, arXiv:2602.06454.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ..orchestrator import Accept, Chain, Model, Rollback, Step, Verdict
from ..orchestrator.chain import DELIMITER
from ..orchestrator.errors import ConfigurationError
from ..orchestrator.interfaces import KEPT_OPEN

# What the authors' two lists (Qwen3-32B with 1.7B, R1-Distill 32B with 1.5B) share, less those that begin with another.
# The likeliest first: vLLM looks for four by itself.
CUES = (
    "So,", "So ", "Therefore", "Thus", "Now", "Alternatively", " now", "Again,", "Similarly,", "Oh,", "Specifically,",
    " hence", " similarly",
)  # fmt: skip
SENTENCE_ENDS = (".", "!", "?")


@dataclass(frozen=True, slots=True)
class Relay:
    """
    The large model writes up to one of the *cues*, the small one to the end of that sentence, and nobody judges.

    Cues belong to a pair of models, found by ``stepspec profile``, as the paper does by its own measure; the defaults
    are those that its two pairs share. They are matched as they are spelt, within words too. As in the paper the small
    model writes the answer, unless *answers* says otherwise. The authors' code lets the large model write five tokens
    before it looks for a cue; here a sentence may begin with one. Cues are words: raise `ConfigurationError` for none.
    """

    small: Model
    large: Model
    cues: tuple[str, ...] = CUES
    answers: Literal["small", "large"] = "small"

    def __post_init__(self) -> None:
        if not self.cues or not all(self.cues):
            raise ConfigurationError("policy 'relay' needs cues, none of them empty; `stepspec profile` finds some")

    @property
    def answerer(self) -> Model:
        return self.small if self.answers == "small" else self.large

    async def draft(self, chain: Chain) -> Step:
        if self._cued(chain):
            return await self.small.write(chain, until=ends_a_sentence)
        with _closing():
            return await self.large.write(chain, stop=self.cues)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept()

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.large.write(chain)

    def _cued(self, chain: Chain) -> bool:
        last = chain.steps[-1] if chain.steps else None
        return last is not None and last.author == "large" and last.text.endswith(self.cues)


def ends_a_sentence(step: Step) -> bool:
    """Whether the sentence is over, though not the paragraph: that one has a delimiter of its own."""
    return step.text.endswith(SENTENCE_ENDS) and not step.text.endswith(DELIMITER)


@contextmanager
def _closing() -> Generator[None]:
    """Leave no request open: after a cue the other model writes, and what this one wrote on would be thrown away."""
    token = KEPT_OPEN.set(None)
    try:
        yield
    finally:
        KEPT_OPEN.reset(token)
