"""
Choose: if a small step is rejected, its likeliest alternatives are graded before the large model
writes.

Recursive speculative decoding (Jeon et al. 2024, arXiv:2402.14160) and SpecTr (Sun et al. 2023,
arXiv:2310.15141) sample several drafts of a token without replacement. This method takes the
likeliest drafts of a step, and tests each step by SpecReason's grade.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from operator import itemgetter
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Rival, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy
from stepspec.orchestrator.repetition import DEFAULT_GUARD, LoopGuard

from .method import Above0, Drafting, Grade, Share, Top
from .specreason import SpecReason

BEATEN = "beaten"
"""The reason to reject a rival that passes if another rival has a better grade."""
PART_OF_CHARACTER = "\ufffd"
"""Stands in a token's text for bytes that are only a part of a character."""
MARKUP = re.compile(r"\s*<[^\s<>]+>\s*")
"""Tokens that end a turn or call a tool, such as ``<|im_end|>`` and ``</s>``."""


@dataclass(frozen=True, slots=True)
class Choose(Drafting):
    """
    Keep the best of several *candidates*, which are the draft and its rivals by the small model.

    If no candidate passes, the large model repairs the draft. One candidate is SpecReason.

    A rival copies the draft up to one token, and replaces this token by another one. The small
    model gave the other token a probability of *least* or more. The likeliest other tokens are
    taken. A draft without such a token has no rivals.

    Steps are graded as by SpecReason. A step passes if its grade, *read* "expected" or "greedy", is
    at least *threshold*, and if the judge puts at least *sure* of its probability on digits. The
    rivals are written and graded only if the draft is rejected. The small model writes all of them
    at once, and then the large model grades them at once. A rival is rejected without a grade if it
    has the text of another candidate, or is in a loop and loops are stopped.

    The papers test tokens in a way that preserves the large model's distribution. A threshold on
    grades does not preserve the distribution. The papers sample, and fork at every token of a
    tree. Here a rival takes the likeliest token, and forks at one token.
    """

    repair_may_start_early: ClassVar[bool] = True
    """The repair depends neither on the draft nor on its grade: it may start before the verdict."""
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    candidates: Top = 4
    least: Above0 = 0.05
    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05
    loop_guard: LoopGuard | None = DEFAULT_GUARD
    """Guards against loops, also among the rivals. None: loops are not stopped."""

    @property
    def alone(self) -> SpecReason:
        """The policy of a draft without rivals."""
        return SpecReason(self.small, self.large, self.threshold, self.read, self.sure)

    @property
    def top(self) -> int:
        """How many of the likeliest tokens of each position the small model reports."""
        return self.candidates if self.candidates > 1 else 0

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain, top=self.top)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        verdict = await self.alone.verify(chain, draft)
        if isinstance(verdict, Accept):
            return verdict
        begun = forks(chain, draft, log(self.least))[: self.candidates - 1]
        if not begun:
            return verdict
        rivals = await self.rivals(chain, draft, begun)
        standing = [rival.step for rival in rivals if not rival.reason]
        verdicts = await at_once(self.alone.verify(chain, step) for step in standing)
        return replace(verdict, rivals=graded(rivals, verdicts))

    async def rivals(
        self,
        chain: Chain,
        draft: Step,
        begun: Sequence[str],
    ) -> list[Rival]:
        """
        Write the rivals of *draft*, each of which starts with one of the texts *begun*.

        A rival that is rejected without a judge has the reason of its rejection.
        """
        texts = {draft.text.strip()}
        rivals = list[Rival]()
        for step in await at_once(self.small.write(chain, opening=text) for text in begun):
            reason = ""
            text = step.text.strip()
            if text in texts:
                reason = "same"
            elif self.loop_guard is not None:
                reason = self.loop_guard.obstacle(chain, step)
            texts.add(text)
            rivals.append(Rival(step, reason=reason))
        return rivals


def forks(chain: Chain, step: Step, least: float) -> list[str]:
    """
    Return the texts of beginnings that differ from *step* in their last token only.

    *step* follows *chain*. The log-probability of the last token is *least* or more. The likeliest
    beginning comes first.
    """
    beginnings: list[tuple[float, str]] = []
    search = partial(chain.ends.search, chain.text, blocks=chain.totals.blocks)
    text = ""
    start = 0
    for place, token in enumerate(step.tokens):
        within_character = place > 0 and not step.tokens[place - 1].text
        for other in () if within_character else _alternatives(token, text):
            if other.logprob >= least and search(text + other.text, start) < 0:
                beginnings.append((other.logprob, text + other.text))
        text += token.text
        if search(text, start) >= 0:
            break
        start = max(0, len(text) - chain.ends.longest + 1)
    beginnings.sort(key=itemgetter(0), reverse=True)
    return [beginning for _, beginning in beginnings]


def graded(rivals: Sequence[Rival], verdicts: Sequence[Verdict]) -> tuple[Rival, ...]:
    """
    Return *rivals* with grades, of which at most one has no reason to be rejected.

    *verdicts* are the verdicts on the rivals that have no such reason yet. The best rival that
    passes keeps no reason.
    """
    remaining = iter(verdicts)
    judged = [rival if rival.reason else _judged(rival.step, next(remaining)) for rival in rivals]
    best = max(
        (rival for rival in judged if not rival.reason),
        key=lambda rival: rival.score or 0.0,
        default=None,
    )
    return tuple(
        rival if rival.reason or rival is best else replace(rival, reason=BEATEN)
        for rival in judged
    )


def _judged(step: Step, verdict: Verdict) -> Rival:
    reason = verdict.reason if isinstance(verdict, Rollback) else ""
    return Rival(step, verdict.score, reason)


def _alternatives(token: Token, before: str) -> Iterator[Token]:
    """
    Yield the tokens that may replace *token* after the text *before*.

    Such a token is plain text. With it, the step is not blank, and does not end the thinking.
    """
    if token.id < 0:  # The token was cut at the end of the step, or is unknown.
        return
    for other in token.top:
        text = other.text
        if not text or text == token.text or PART_OF_CHARACTER in text or MARKUP.fullmatch(text):
            continue
        if (before + text).strip() and THINK_END not in before + text:
            yield other
