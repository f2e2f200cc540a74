"""
Speculative Thinking: the large model takes over where the small one affirms, reflects or verifies.

Yang et al. 2025, arXiv:2504.12329.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy
from stepspec.prompts import load

from .method import AtLeast1, Drafting

RECAP = load("speculative-thinking.recap")
TAKEOVERS = ("affirmation", "reflection", "delimiter")


def _any_of(*words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


VERIFYING = ("verify", "think again", "recap", "check")
VERIFICATION = _any_of(*VERIFYING)
REFLECTION = _any_of("wait", "alternatively", "hold on", "another", *VERIFYING)
AFFIRMATION = _any_of("yeah", "yes", "final answer", "confident")
UNFINISHED = re.compile(r"\b\w+\Z")


def cue(sentence: str) -> str:
    """Return "reflection" or "affirmation", which has more words in *sentence*; "" if neither."""
    reflections = len(REFLECTION.findall(sentence))
    affirmations = len(AFFIRMATION.findall(sentence))
    if not reflections + affirmations:
        return ""
    if reflections >= affirmations:
        return "reflection"
    return "affirmation"


@dataclass(frozen=True, slots=True)
class SpeculativeThinking(Drafting):
    """
    If the first *n1* tokens of a small paragraph contain a cue, the large model starts it anew with
    *n1* tokens.

    If these contain a word of verification, it continues for *n2* tokens. After *limit* takeovers
    that reflect (5 more after each recap, up to 30) a prompt lets it look for mistakes with *n3*
    tokens (25 more each time, up to 200). If the small model does not reason (*reasoning* is
    false), the large one starts every paragraph, the first with *begin* tokens. Words and numbers
    are the paper's (sections 3 and 4.2, appendix A.2) or, where it has none, the authors' code's.

    Deviations: cues match whole words, not parts of words. A cue ends the draft at once, because
    both kinds lead to a takeover. A paragraph without a cue is kept, where the authors' code has it
    written again.
    """

    answer: ClassVar[AnsweredBy] = "method"

    n1: AtLeast1 = 20
    n2: AtLeast1 = 125
    n3: AtLeast1 = 125
    limit: AtLeast1 = 15
    begin: AtLeast1 = 100
    reasoning: bool = True

    async def draft(self, chain: Chain) -> Step:
        if owed := self.owed(chain):
            return await self.take_over(chain, owed)
        if not chain.whole:
            return await self.small.write(chain)
        reflections, recaps = count_takeovers(chain)
        if not chain.closed and reflections >= increased(self.limit, by=5 * recaps, most=30):
            return Step(RECAP.text, "large", "length")
        if not self.reasoning:
            return Step("", "small", "until")
        return await self.small.write(chain, until=lambda partial: bool(self.opening_cue(partial)))

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        if draft.author == "large" or not chain.whole:
            return Accept(judged=False)
        reason = self.opening_cue(draft) if self.reasoning else "delimiter"
        if reason:
            return Rollback(reason=reason)
        return Accept()

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        if rollback.reason in TAKEOVERS:
            return await self.take_over(chain, self.n1)
        return await self.large.write(chain)

    def opening_cue(self, step: Step) -> str:
        """Classify the first *n1* tokens of *step*, without a last word that may be incomplete."""
        return cue(UNFINISHED.sub("", "".join(token.text for token in step.tokens[: self.n1])))

    def owed(self, chain: Chain) -> int:
        """Return how many tokens the large model writes before the small one drafts again."""
        if not chain.steps:
            return 0 if self.reasoning else self.begin
        last = chain.steps[-1]
        if last.text == RECAP.text:
            _, recaps = count_takeovers(chain)
            return increased(self.n3, by=25 * (recaps - 1), most=200)
        if last.note in TAKEOVERS and VERIFICATION.search(last.text):
            return self.n2
        return 0


def count_takeovers(chain: Chain) -> tuple[int, int]:
    """Return the number of reflecting takeovers since the last recap, and that of recaps."""
    reflections = 0
    recaps = 0
    for step in chain.steps:
        if step.text == RECAP.text:
            reflections = 0
            recaps += 1
        elif step.note in TAKEOVERS and cue(step.text) == "reflection":
            reflections += 1
    return reflections, recaps


def increased(start: int, *, by: int, most: int) -> int:
    """Return *start*, increased up to *most*. A *start* above *most* stays."""
    return max(start, min(start + by, most))
