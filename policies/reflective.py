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

    repair_may_start_early: ClassVar[bool] = True
    answer: ClassVar[AnsweredBy] = "method"

    alpha: Share = 0.3
    accept: Literal["match", "typical"] | None = None
    top: Top | None = None
    epsilon: Share = 0.09
    delta: Amount = 0.3
    sampled: bool = False

    @property
    def rule(self) -> Literal["match", "typical"]:
        """The rule that accepts tokens: the option `accept`, or the default."""
        if self.accept is not None:
            return self.accept
        return "typical" if self.sampled else "match"

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        keep = 0
        lowest = 1.0
        for token, chances in await self.read(chain, draft):
            chance = chances[token.id]
            lowest = min(lowest, chance)
            if not self._accepts(chances, chance):
                return Rollback(keep, reason="reflection", score=chance)
            keep += len(token.text)
        return Accept(lowest)

    async def read(self, chain: Chain, draft: Step) -> list[tuple[Token, Mapping[int, float]]]:
        """Read *draft* twice. Return each token with the fused probabilities of its position."""
        bridge = f"{_break(chain, draft)}{REFLECT.text}{chain.ends.text}{anchor(chain)}"
        top = self.top or (2 if self.rule == "match" else 20)
        first, _, second = await self.large.score(
            chain,
            draft.text,
            bridge,
            draft.text,
            top=top,
        )
        return [
            (token, fuse(token, again, self.alpha))
            for token, again in zip(first, second, strict=True)
        ]

    def _accepts(self, chances: Mapping[int, float], chance: float) -> bool:
        if self.rule == "match":
            return chance == self.bar(chances)
        return chance > self.bar(chances)

    def bar(self, chances: Mapping[int, float]) -> float:
        """Return the probability that a token needs, given the fused *chances* of its position."""
        if self.rule == "match":
            return max(chances.values())
        return min(self.epsilon, self.delta * exp(-entropy(chances.values())))


def anchor(chain: Chain) -> str:
    """Return the last paragraph of *chain*. It may consist of several steps."""
    first = max(0, len(chain.steps) - 1)
    while first > 0 and chain.steps[first - 1].stop != "delimiter":
        first -= 1
    return "".join(step.text for step in chain.steps[first:])


def fuse(first: Token, second: Token, alpha: float) -> dict[int, float]:
    """
    Blend two readings of one position. The *second* has the weight *alpha*.

    Return the probability, by id, of every token in either list.
    """
    first_logits = _logits(first)
    second_logits = _logits(second)
    first_lowest = min(other.logprob for other in first.top)
    second_lowest = min(other.logprob for other in second.top)
    fused = {
        id: (1 - alpha) * first_logits.get(id, first_lowest)
        + alpha * second_logits.get(id, second_lowest)
        for id in first_logits | second_logits
    }
    highest = max(fused.values())
    weights = {id: exp(logit - highest) for id, logit in fused.items()}
    total = sum(weights.values())
    return {id: weight / total for id, weight in weights.items()}


def _logits(token: Token) -> dict[int, float]:
    if not token.top:
        raise MissingCapability(
            "the large model's endpoint does not return the top tokens, which 'reflective' needs"
        )
    return {other.id: other.logprob for other in (*token.top, token)}


def _break(chain: Chain, draft: Step) -> str:
    """Return the text that has to follow *draft* before a new paragraph."""
    if draft.text.endswith(THINK_END) or chain.extend(draft).whole:
        return ""
    return chain.ends.text
