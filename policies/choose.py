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

from .method import MOST, Above0, Amount, Drafting, Grade, Share, Top
from .specreason import SpecReason

BEATEN = "beaten"
HALF = "\ufffd"  # stands for a part of a character
MARKUP = re.compile(r"\s*<[^\s<>]+>\s*")  # tokens that end a turn or call a tool: <|im_end|>, </s>


@dataclass(frozen=True, slots=True)
class Choose(Drafting):
    """
    Keep the best of several *candidates*: the draft and rivals by the small model; if none passes,
    repair.

    A rival copies the draft up to a token of which the small model was unsure, and has another
    token there, whose probability is *least* or more. So no two candidates begin alike, and a draft
    without such a token has no rivals. The likeliest of those tokens are taken. With a
    *temperature* above 0 they are sampled without replacement instead (Gumbel's top k), by *seed*
    and chain.

    Steps are graded as by SpecReason: one passes if its grade, *read* "expected" or "greedy", is at
    least *threshold*, and if the judge puts at least *sure* of its probability on digits. The
    rivals are written, in one request, and graded, in another, only if the draft is rejected. A
    rival with the text of another candidate, or one that repeats the chain, is rejected without a
    grade. One candidate is SpecReason.

    The papers test tokens so that their distribution stays the large model's; a threshold on grades
    does not preserve it. They fork at every token of a tree; here at one.
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

    async def draft(self, chain: Chain) -> Step:
        top = 0 if self.candidates == 1 else MOST if self.temperature else self.candidates
        return await self.small.write(chain, top=top)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        verdict = await self.alone.verify(chain, draft)
        if isinstance(verdict, Accept) or not (begun := self.beginnings(chain, draft)):
            return verdict
        rivals = await self.rivals(chain, draft, begun)
        standing = [rival.step for rival in rivals if not rival.reason]
        verdicts = await at_once(self.alone.verify(chain, step) for step in standing)
        return replace(verdict, rivals=graded(rivals, verdicts))

    def beginnings(self, chain: Chain, draft: Step) -> list[Step]:
        """How the rivals of *draft* begin, the likeliest first."""
        beginnings = forks(chain, draft, log(self.least))
        if self.temperature:
            beginnings = shuffle(beginnings, self.temperature, self.seed, chain)
        return beginnings[: self.candidates - 1]

    async def rivals(self, chain: Chain, draft: Step, begun: Sequence[Step]) -> list[Rival]:
        """
        Write the rivals of *draft*; those that need no judge have the reason of their rejection.
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
    Return the beginnings that differ from *step*, after *chain*, in their last token, likeliest
    first.

    A beginning ends with the token that differs, whose log-probability is *least* or more. No
    beginning is a prefix of another one or of *step*, token by token, so that the steps that
    continue them all differ.
    """
    beginnings: list[Step] = []
    search = partial(chain.ends.search, chain.text, blocks=chain.totals.blocks)
    text = ""
    start = 0
    for place, token in enumerate(step.tokens):
        complete = place == 0 or bool(step.tokens[place - 1].text)  # not within a character
        for other in _alternatives(token, text) if complete else ():
            if other.logprob >= least and search(text + other.text, start)[0] < 0:
                tokens = *(replace(earlier, top=()) for earlier in step.tokens[:place]), other
                beginnings.append(
                    Step(text + other.text, step.author, "until", tokens, step.vocabulary)
                )
        text += token.text
        start = search(text, start)[1]
    return sorted(beginnings, key=lambda begun: begun.tokens[-1].logprob, reverse=True)


def shuffle(begun: Sequence[Step], temperature: float, seed: int, chain: Chain) -> list[Step]:
    """
    Order *begun* by sampling without replacement by the probabilities of their last tokens:
    Gumbel's top k.
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
    Grade the *rivals* that are not rejected yet by the *verdicts* on them; the best that passes has
    no reason.
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
    return Rival(step, verdict.score, verdict.reason if isinstance(verdict, Rollback) else "")


def _alternatives(token: Token, before: str) -> Iterator[Token]:
    """
    The tokens that may replace *token* after *before*: plain text, not blank, that does not end the
    thinking.
    """
    if token.id < 0:  # The token was cut at the end of the step, or is unknown.
        return
    for other in token.top:
        ends = THINK_END in before + other.text
        plain = other.text and HALF not in other.text and not MARKUP.fullmatch(other.text)
        blank = not (before + other.text).strip()
        if plain and not blank and not ends and other.text != token.text:
            yield other
