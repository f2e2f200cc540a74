"""
Semantic Reflective Verification: the large model reads a draft twice, the second time after a
prompt to reflect.

Wang et al. 2025, arXiv:2505.18629.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.errors import MissingCapability
from stepspec.orchestrator.interfaces import AnsweredBy
from stepspec.prompts import load

from .glimpse import entropy
from .method import Amount, Drafting, Share, Top

REFLECT = load("reflective.reflect")


@dataclass(frozen=True, slots=True)
class Reflective(Drafting):
    """
    Keep a draft up to the first token that the large model would not write, by a blend of two
    readings.

    One prefill reads ``draft | prompt, anchor | draft``. The anchor is the chain's last paragraph,
    so that the second copy follows the same words as the first. The second reading has the weight
    *alpha*, the default of a third-party implementation; the first has the rest. *accept* "match"
    accepts a token that is the likeliest of the fused distribution; "typical" accepts one whose
    probability is above *epsilon* or above *delta* times ``exp(-entropy)``, with the constants of
    Medusa (arXiv:2401.10774). By default it is a match for greedy models and typical for models
    that are *sampled*: a match would cut most of what they sample, and leave the likeliest text.

    The paper's text could not be read, so its prompt, the length of its anchor and the source of
    its corrected token are not known. Here the large model continues after the tokens that were
    kept.

    Logits are fused over the *top* tokens of both positions, 20 at most. Log-probabilities replace
    logits, because a constant per position cancels out. A token that is missing in one list has the
    value of the last one there, which is the most it can have: so a match is a match in the whole
    vocabulary, however short the lists are, while typical probabilities leave out the mass beyond
    both. *top* is by default 2 for a match, because more hardly change it and each costs the server
    time, and 20 otherwise. Raise `MissingCapability` if the endpoint does not return top tokens.
    """

    foreseeable: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    alpha: Share = 0.3
    accept: Literal["match", "typical"] | None = None
    top: Top | None = None
    epsilon: Share = 0.09
    delta: Amount = 0.3
    sampled: bool = False

    @property
    def rule(self) -> Literal["match", "typical"]:
        """The rule that accepts tokens: *accept*, or the default."""
        return self.accept or ("typical" if self.sampled else "match")

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        keep = 0
        least = 1.0
        for token, chances in await self.read(chain, draft):
            least = min(least, chances[token.id])
            if not self._accepts(chances, token.id):
                return Rollback(keep, reason="reflection", score=chances[token.id])
            keep += len(token.text)
        return Accept(least)

    async def read(self, chain: Chain, draft: Step) -> list[tuple[Token, Mapping[int, float]]]:
        """
        Read *draft* twice; return its tokens, each with the fused probabilities of its position.
        """
        bridge = f"{_break(chain, draft)}{REFLECT.text}{chain.ends.text}{anchor(chain)}"
        top = self.top or (2 if self.rule == "match" else 20)
        first, _, second = await self.large.score(chain, draft.text, bridge, draft.text, top=top)
        return [
            (token, fuse(token, again, self.alpha))
            for token, again in zip(first, second, strict=True)
        ]

    def _accepts(self, chances: Mapping[int, float], id: int) -> bool:
        return chances[id] > self.bar(chances) or (
            self.rule == "match" and chances[id] == self.bar(chances)
        )

    def bar(self, chances: Mapping[int, float]) -> float:
        """The probability that a token needs, given the fused *chances* of its position."""
        return (
            max(chances.values())
            if self.rule == "match"
            else min(self.epsilon, self.delta * exp(-entropy(chances.values())))
        )


def anchor(chain: Chain) -> str:
    """
    The last paragraph of *chain*, or as much of it as there is; several steps may have written it.
    """
    began = len(chain.steps) - 1
    while began > 0 and chain.steps[began - 1].stop != "delimiter":
        began -= 1
    return "".join(step.text for step in chain.steps[max(0, began) :])


def fuse(first: Token, second: Token, alpha: float) -> dict[int, float]:
    """
    Blend two readings of one position; return the probability, by id, of every token in either
    list.
    """
    read = _logits(first)
    reread = _logits(second)
    least, again = (min(other.logprob for other in token.top) for token in (first, second))
    fused = {
        id: (1 - alpha) * read.get(id, least) + alpha * reread.get(id, again)
        for id in read | reread
    }
    most = max(fused.values())
    weights = {id: exp(logit - most) for id, logit in fused.items()}
    return {id: weight / sum(weights.values()) for id, weight in weights.items()}


def _logits(token: Token) -> dict[int, float]:
    if not token.top:
        raise MissingCapability(
            "the large model's endpoint does not return the top tokens, which 'reflective' needs"
        )
    return {other.id: other.logprob for other in (*token.top, token)}


def _break(chain: Chain, draft: Step) -> str:
    """The text needed after *draft* so that a new paragraph follows."""
    return "" if draft.text.endswith(THINK_END) or chain.extend(draft).whole else chain.ends.text
