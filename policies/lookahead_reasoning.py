"""
Lookahead Reasoning: the large model writes every step too, and a draft is accepted if both mean the
same.

Fu et al. 2025, arXiv:2506.19830.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar

from stepspec.orchestrator import Accept, Chain, Rollback, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy
from stepspec.prompts import load

from .method import Drafting, Share

SAME = load("lookahead-reasoning.same")


@dataclass(frozen=True, slots=True)
class LookaheadReasoning(Drafting):
    """
    Accept a small step that means the same as the large model's own next step; otherwise that step
    replaces it.

    Steps that differ only in case and white space are accepted without a question. Otherwise the
    large model compares their meanings. In doubt it says no (appendix A). An answer with less than
    *sure* of its probability on Yes and No is a no, too. A draft that starts in the middle of a
    paragraph is never accepted (the authors' code).

    As in the paper (section 3.1), the large model's step starts as soon as its prefix exists,
    together with the draft. The loop decides how far to look ahead. All pending drafts are compared
    at the same time.

    Deviations: the large model is the judge, where the paper serves a third model of 7 billion
    parameters. A step may have 512 tokens, where the authors' code stops at 100. There is one draft
    per step, the paper's own setting, and no tree of drafts. More drafts raise the accept rate and
    save no time. With two, four and eight drafts, table 3 gives 1.49, 1.47 and 1.25 times the speed
    of the large model alone on GSM8K, and 1.48 with one; on AIME 1.32, 1.26 and 1.00, and 1.27 with
    one. With the judge of 7 billion parameters the accuracy falls as well (AIME: from 69.2 with one
    to 64.6 with eight). `choose` has several candidates for a draft.
    """

    answer: ClassVar[AnsweredBy] = "method"

    sure: Share = 0.05

    def prepare(self, chain: Chain) -> Coroutine[Any, Any, Step]:
        return self.large.write(chain)

    async def verify(
        self,
        chain: Chain,
        draft: Step,
        prepared: Awaitable[Step] | None = None,
    ) -> Verdict:
        own = await (prepared or self.prepare(chain))
        if chain.text and not chain.whole:
            return Rollback(reason="half a paragraph", instead=own)
        if own.plain == draft.plain:
            # The end of a turn has no text.
            if (own.stop == "end") == (draft.stop == "end"):
                return Accept()
            return Rollback(reason="another end", instead=own)
        question = SAME.fill(step=own.text.strip())
        answer = await self.large.ask(
            chain.extend(draft),
            question,
            ("Yes", "No"),
            opening=SAME.opening,
        )
        if answer["Yes"] > answer["No"] and sum(answer.values()) >= self.sure:
            return Accept(answer["Yes"])
        return Rollback(reason="another meaning", score=answer["Yes"], instead=own)

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return rollback.instead or await self.large.write(chain)
