"""
How surprising the tokens of a draft are to the large model, and the verdict that follows.

`bild` and `reading` use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepspec.orchestrator import Accept, Rollback, Token, Verdict
from stepspec.orchestrator.errors import MissingCapability

Measure: TypeAlias = Literal["gap", "logprob"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest surprise of a token that the large model accepts."""

    nats: float
    """A token with a larger surprise is cut."""
    reason: str
    """The reason of the rollback that cuts it."""
    scored: bool = True
    """Whether the token's surprise counts for the score of the verdict."""


def surprise(token: Token, measure: Measure, *, sampled: bool) -> float:
    """
    Return how improbable *token* is to the model that read it, in nats.

    The measure "logprob" is minus the token's log-probability. The measure "gap" is the difference
    to the log-probability of the likeliest token. The model's first choice has no surprise, unless
    *sampled* text is measured by its log-probability. Raise `MissingCapability` if the gap is
    unknown.
    """
    if token.rank == 1 and not (sampled and measure == "logprob"):
        return 0.0
    if measure == "logprob":
        return -token.logprob
    if not token.top:
        raise MissingCapability(
            "the large model's endpoint does not return the top tokens, which 'reading' needs"
        )
    return max(0.0, token.top[0].logprob - token.logprob)


def judge_tokens(
    tokens: Iterable[Token],
    limits: Iterable[Limit],
    measure: Measure,
    *,
    sampled: bool,
) -> Verdict:
    """
    Cut a draft before the first of its *tokens* whose surprise is above its limit.

    The score is the largest surprise, in nats, of the scored tokens that were read.
    """
    keep = 0
    score = 0.0
    for token, limit in zip(tokens, limits, strict=True):
        nats = surprise(token, measure, sampled=sampled)
        if limit.scored:
            score = max(score, nats)
        if nats > limit.nats:
            return Rollback(keep, reason=limit.reason, score=score)
        keep += len(token.text)
    return Accept(score)
