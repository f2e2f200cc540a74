"""
Choose: where a small step is rejected, its likeliest alternatives are graded before the large model
writes.

The drafts without replacement of recursive speculative decoding (Jeon et al. 2024,
arXiv:2402.14160) and of SpecTr (Sun et al. 2023, arXiv:2310.15141), with steps for tokens and
SpecReason's grade for the test.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Rival, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy
from stepspec.orchestrator.repetition import obstacle

from .method import MAX_TOP_TOKENS, Above0, Amount, Drafting, Grade, Share, Top
from .specreason import SpecReason

BEATEN = "beaten"
"""The reason to reject a rival that passes, where another one is better."""
PART_OF_CHARACTER = "\ufffd"
MARKUP = re.compile(r"\s*<[^\s<>]+>\s*")
"""Tokens that end a turn or call a tool, such as ``<|im_end|>`` and ``</s>``."""


@dataclass(frozen=True, slots=True)
class Choose(Drafting):
    """
    Keep the best of several *candidates*: the draft and rivals by the small model; if none passes,
    repair.

    A rival copies the draft up to a token of which the small model was unsure, and has another
    token there, whose probability is *least* or more. So no two candidates begin alike, and a draft
    without such a token has no rivals. The likeliest other tokens are taken. With a *temperature*
    above 0 they are sampled without replacement instead (Gumbel's top k), by *seed* and chain.

    Steps are graded as by SpecReason. A step passes if its grade, *read* "expected" or "greedy", is
    at least *threshold*, and if the judge puts at least *sure* of its probability on digits. Only
    if the draft is rejected are the rivals written, in one request, and graded, in another. A rival
    with the text of another candidate, or one that repeats the chain, is rejected without a grade.
    One candidate is SpecReason.

    The papers test tokens so that their distribution stays the large model's. A threshold on grades
    does not preserve the distribution. They fork at every token of a tree, and here at one.
    """

    foreseeable: ClassVar[bool] = True
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    candidates: Top = 4
    least: Above0 = 0.05
    temperature: Amount = 0.0
    seed: int = 0
    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05

    @property
    def alone(self) -> SpecReason:
        """The policy of a draft without rivals."""
        return SpecReason(self.small, self.large, self.threshold, self.read, self.sure)

    @property
    def top(self) -> int:
        """How many of the likeliest tokens of each place the rivals are made of."""
        if self.candidates == 1:
            return 0
        if self.temperature:
            return MAX_TOP_TOKENS
        return self.candidates

    async def draft(self, chain: Chain) -> Step:
        return await self.small.write(chain, top=self.top)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        verdict = await self.alone.verify(chain, draft)
        if isinstance(verdict, Accept):
            return verdict
        begun = self.beginnings(chain, draft)
        if not begun:
            return verdict
        rivals = await self.rivals(chain, draft, begun)
        standing = [rival.step for rival in rivals if not rival.reason]
        verdicts = await at_once(self.alone.verify(chain, step) for step in standing)
        return replace(verdict, rivals=graded(rivals, verdicts))

    def beginnings(self, chain: Chain, draft: Step) -> list[Step]:
        """Return how the rivals of *draft* begin, the likeliest first."""
        beginnings = forks(chain, draft, log(self.least))
        if self.temperature:
            beginnings = shuffle(beginnings, self.temperature, self.seed, chain)
        return beginnings[: self.candidates - 1]

    async def rivals(self, chain: Chain, draft: Step, begun: Sequence[Step]) -> list[Rival]:
        """
        Write the rivals of *draft*.

        A rival that is rejected without a judge has the reason of its rejection.
        """
        texts = {draft.text.strip()}
        rivals = list[Rival]()
        for step in await self.small.branch(chain, begun):
            reason = "same" if step.text.strip() in texts else obstacle(chain, step)
            texts.add(step.text.strip())
            rivals.append(Rival(step, reason=reason))
        return rivals


def forks(chain: Chain, step: Step, least: float) -> list[Step]:
    """
    Return beginnings that differ from *step*, which follows *chain*, in their last token.

    The log-probability of that token is *least* or more, and the likeliest comes first. No
    beginning is a prefix of another one or of *step*, so that the steps that continue them differ.
    """
    beginnings: list[Step] = []
    search = partial(chain.ends.search, chain.text, blocks=chain.totals.blocks)
    text = ""
    start = 0
    for place, token in enumerate(step.tokens):
        within_character = place > 0 and not step.tokens[place - 1].text
        for other in () if within_character else _alternatives(token, text):
            end, _ = search(text + other.text, start)
            if other.logprob >= least and end < 0:
                before = [replace(earlier, top=()) for earlier in step.tokens[:place]]
                beginning = Step(
                    text=text + other.text,
                    author=step.author,
                    stop="until",
                    tokens=(*before, other),
                    vocabulary=step.vocabulary,
                )
                beginnings.append(beginning)
        text += token.text
        start = search(text, start)[1]
    return sorted(beginnings, key=lambda begun: begun.tokens[-1].logprob, reverse=True)


def shuffle(begun: Sequence[Step], temperature: float, seed: int, chain: Chain) -> list[Step]:
    """
    Order *begun* by sampling without replacement (Gumbel's top k).

    The weights are the probabilities of the last tokens at the *temperature*.
    """
    rng = random.Random(repr((seed, [message.content for message in chain.messages], chain.text)))

    def gumbel() -> float:
        return -log(max(rng.expovariate(1.0), 1e-300))

    keys = {
        place: step.tokens[-1].logprob / temperature + gumbel() for place, step in enumerate(begun)
    }
    return [begun[place] for place in sorted(keys, key=lambda place: keys[place], reverse=True)]


def graded(rivals: Sequence[Rival], verdicts: Sequence[Verdict]) -> tuple[Rival, ...]:
    """
    Grade the *rivals* that are not rejected yet by the *verdicts* on them.

    Only the best rival that passes has no reason to be rejected.
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
    Yield the tokens that may replace *token* after *before*.

    They are plain text, and with them the step is not blank and does not end the thinking.
    """
    if token.id < 0:  # The token was cut at the end of the step, or is unknown.
        return
    for other in token.top:
        text = other.text
        if not text or text == token.text or PART_OF_CHARACTER in text or MARKUP.fullmatch(text):
            continue
        if (before + text).strip() and THINK_END not in before + text:
            yield other
