"""
Modelled seconds of a recorded solution: its drafts, verdicts and repairs are replayed through the
loop on a clock that jumps.

The record says how many tokens of each draft were kept and how many the repair had. The text does
not matter. With greedy models and limits on all tokens, the cuts do not depend on the length of a
draft, so that a record stands for every length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from lab.virtual_clock import run
from stepspec.orchestrator import Accept, Chain, Model, Rollback, Step, Token, Verdict, reason
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.errors import ConfigurationError

SMALL = 0.0031
"""Seconds of a token of a small model of 1.7B on an H200."""
LARGE = 0.0202
"""Seconds of a token of a large model of 32B on an H200."""
VERDICT = 0.045
"""Seconds of a verdict by suffix scoring on an H200."""
BET_TOKENS = 24
"""Tokens of a lost bet, which no record has."""

Round: TypeAlias = tuple[int, int, bool, int]
"""Tokens of a draft, how many were kept, whether it was accepted, and tokens of its repair."""


@dataclass(slots=True)
class Work:
    """What one replay did, bets included."""

    drafts: int = 0
    """Drafts that the small model began."""
    drafted: int = 0
    """Tokens of the drafts that were finished."""
    verdicts: int = 0
    """Verdicts that the large model began."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A policy that drafts, judges and repairs as a record says."""

    loop_guard: ClassVar[None] = None

    cuts: Mapping[int, int]
    """Tokens of the repair at each position where a draft was cut."""
    total: int
    """Tokens of the solution."""
    draft_tokens: int
    """The tokens of a draft that `lengths` does not name, unless the solution ends before."""
    lengths: Mapping[int, int] = field(default_factory=dict[int, int])
    """Tokens of the recorded drafts, by their positions."""
    repair_seconds: float = LARGE
    """Seconds of a token of a repair."""
    work: Work = field(default_factory=Work)
    """What was done so far."""

    @property
    def answerer(self) -> Model:
        raise NotImplementedError("a record answers nothing")

    def step(self, at: int, tokens: int, author: Role) -> Step:
        ends = at + tokens >= self.total
        written = (Token("x"),) * tokens
        return Step(
            "x" * tokens,
            author,
            "end" if ends else "length",
            written,
        )

    def cut(self, at: int, tokens: int) -> int | None:
        """The first position in a draft of *tokens* from *at* where it was cut; None: nowhere."""
        return min((cut for cut in self.cuts if at <= cut < at + tokens), default=None)

    async def draft(self, chain: Chain) -> Step:
        at = chain.tokens
        tokens = self.lengths.get(at, self.draft_tokens)
        if self.cut(at, tokens) is None:
            tokens = max(0, min(tokens, self.total - at))
        self.work.drafts += 1
        await asyncio.sleep(SMALL * tokens)
        self.work.drafted += tokens
        return self.step(at, tokens, "small")

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        self.work.verdicts += 1
        await asyncio.sleep(VERDICT)
        cut = self.cut(chain.tokens, len(draft.tokens))
        return Accept() if cut is None else Rollback(keep=cut - chain.tokens)

    async def repair(
        self,
        chain: Chain,
        draft: Step,
        rollback: Rollback,
    ) -> Step:
        tokens = self.cuts[chain.tokens]
        await asyncio.sleep(self.repair_seconds * tokens)
        return self.step(chain.tokens, tokens, "large")


def recorded(rounds: Sequence[Round], draft_tokens: int | None) -> Recorded:
    """
    Make the policy of a record, with drafts of *draft_tokens* tokens; None: as they were recorded.
    """
    cuts: dict[int, int] = {}
    lengths: dict[int, int] = {}
    at = 0
    for drafted, kept, accepted, repair in rounds:
        lengths[at] = drafted
        at += kept
        if not accepted:
            cuts[at] = repair
            at += repair
    if draft_tokens is None:
        return Recorded(cuts, at, BET_TOKENS, lengths)
    return Recorded(cuts, at, draft_tokens)


def play(policy: Recorded, ahead: int) -> float:
    """Return the seconds of a record with so many drafts *ahead*."""
    (chain, _), seconds = run(reason(policy, Chain.of(""), ahead=ahead))
    if chain.tokens != policy.total:
        raise ConfigurationError(f"{chain.tokens} tokens replayed, {policy.total} recorded")
    return seconds


def replay(rounds: Sequence[Round], draft_tokens: int | None, ahead: int) -> tuple[float, Work]:
    """Return the seconds of recorded *rounds*, and the work."""
    policy = recorded(rounds, draft_tokens)
    return play(policy, ahead), policy.work
