"""
GlimpRouter: how sure the small model is of a step's first token decides who writes the step.

Zeng et al. 2026, arXiv:2601.05110.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Token, Verdict

from .method import Amount, Drafting, Several


@dataclass(frozen=True, slots=True)
class Glimpse(Drafting):
    """
    Let the large model write a step if the entropy of its first token is *threshold* nats or more.

    The entropy is over the *top* likeliest tokens. The defaults are those of the authors' code,
    whose script for AIME uses 0.9. Here the first token is part of the draft. The authors' code
    requests the token separately.
    """

    threshold: Amount = 1.0
    top: Several = 20

    def hands_over(self, partial: Step) -> bool:
        """Whether the large model writes the step that begins like *partial*."""
        return len(partial.tokens) == 1 and doubt(partial.tokens[0].top) >= self.threshold

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain, until=self.hands_over, top=self.top)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        nats = doubt(draft.tokens[0].top) if draft.tokens else 0.0
        if draft.stop == "until" or nats >= self.threshold:
            return Rollback(reason="entropy", score=nats)
        return Accept(nats)


def entropy(chances: Iterable[float]) -> float:
    """Return the entropy, in nats, of *chances* that are scaled to sum to 1; 0 for none."""
    likely = [chance for chance in chances if chance]
    total = sum(likely)
    return sum(-chance / total * log(chance / total) for chance in likely)


def doubt(tokens: Sequence[Token]) -> float:
    """Return the entropy of the choice between *tokens*."""
    return entropy(exp(token.logprob) for token in tokens)
