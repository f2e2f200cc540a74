"""
Choose: where a small step is refused, its likeliest rivals are graded before the large model writes.

The drafts without replacement of recursive speculative decoding (Jeon et al. 2024, arXiv:2402.14160) and of SpecTr (Sun
et al. 2023, arXiv:2310.15141), with steps for tokens and SpecReason's grade for the test.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import ClassVar, Literal

from stepspec.orchestrator import Accept, Chain, Model, Rival, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.interfaces import AnsweredBy, EndedBy
from stepspec.orchestrator.repetition import obstacle

from .option_types import MOST, Above0, Amount, Grade, Share, Top
from .specreason import SpecReason

BEATEN = "beaten"
HALF = "\ufffd"  # what is shown of half a character
MARKUP = re.compile(r"\s*<[^\s<>]+>\s*")  # tokens that end a turn or call a tool: <|im_end|>, </s>


@dataclass(frozen=True, slots=True)
class Choose:
    """
    Let a draft have rivals by the small model, *candidates* with itself; the best that passes is kept, or none.

    A rival is begun as the draft is, up to a token of which the small model was unsure, and there with another one, of
    a probability of *least* at least: no two candidates begin alike, and a draft without such a token has no rivals.
    Rivals *fork* "anywhere", from the likeliest of those tokens, or at the "first" token of the draft only. With a
    *temperature* above 0 the tokens are drawn without replacement instead (Gumbel's top k), by *seed* and chain.

    Steps are graded as by SpecReason: one passes if its grade, *read* "expected" or "greedy", reaches *threshold*, and
    the judge puts *sure* of its probability on digits at least. Only if the draft is refused the rivals are written, in
    one request, and graded, in another. To *compare* is to do so with every draft that may have rivals: then it stands
    only if none of them is better. A rival that says what another says, or goes round in circles, is refused at once.
    One candidate is SpecReason.

    The papers test tokens so that their distribution stays the large model's, which a threshold on grades does not.
    They fork at every token of a tree; here at one.
    """

    foreseeable: ClassVar[bool] = True
    ending: ClassVar[EndedBy] = "large"
    answer: ClassVar[AnsweredBy] = "method"

    small: Model
    large: Model
    candidates: Top = 4
    least: Above0 = 0.05
    fork: Literal["anywhere", "first"] = "anywhere"
    compare: bool = False
    temperature: Amount = 0.0
    seed: int = 0
    threshold: Grade = 7
    read: Literal["greedy", "expected"] = "expected"
    sure: Share = 0.05

    @property
    def answerer(self) -> Model:
        return self.large

    @property
    def alone(self) -> SpecReason:
        """The policy of a draft without rivals."""
        return SpecReason(self.small, self.large, self.threshold, self.read, self.sure)

    async def draft(self, chain: Chain) -> Step:
        if self.candidates == 1:
            return await self.alone.draft(chain)
        return await self.small.write(chain, top=MOST if self.temperature else self.candidates)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        begun = self.beginnings(chain, draft)
        if begun and self.compare:
            rivals = await self.rivals(chain, draft, begun)
            verdict, *verdicts = await self.grade(chain, [draft, *standing(rivals)])
            return decided(verdict, rivals, verdicts)
        verdict = await self.alone.verify(chain, draft)
        if isinstance(verdict, Accept) or not begun:
            return verdict
        rivals = await self.rivals(chain, draft, begun)
        return decided(verdict, rivals, await self.grade(chain, standing(rivals)))

    async def repair(self, chain: Chain, draft: Step, rollback: Rollback) -> Step:
        return await self.alone.repair(chain, draft, rollback)

    def beginnings(self, chain: Chain, draft: Step) -> list[Step]:
        """How the rivals of *draft* begin, the likeliest first."""
        found = forks(chain, draft, log(self.least), 1 if self.fork == "first" else len(draft.tokens))
        if self.temperature:
            found = drawn(found, self.temperature, self.seed, chain)
        return found[: self.candidates - 1]

    async def rivals(self, chain: Chain, draft: Step, begun: Sequence[Step]) -> list[Rival]:
        """Write the rivals of *draft*; those that need no judge have the reason of their refusal."""
        said, found = {draft.text.strip()}, list[Rival]()
        for step in await self.small.branch(chain, begun):
            reason = "same" if step.text.strip() in said else obstacle(chain, step)
            said.add(step.text.strip())
            found.append(Rival(step, reason=reason))
        return found

    async def grade(self, chain: Chain, steps: Sequence[Step]) -> list[Verdict]:
        """Grade *steps* as each follows *chain*; where the judge's server can, that is one request."""
        return await at_once(self.alone.verify(chain, step) for step in steps)


def forks(chain: Chain, step: Step, least: float, places: int) -> list[Step]:
    """
    The beginnings that part from *step*, after *chain*, at one of its first *places* tokens, the likeliest first.

    A beginning ends in the token that makes the difference, of a log-probability of *least* at least. Token by token,
    none is the beginning of another one or of *step*, so that whatever is made of them differs.
    """
    found: list[Step] = []
    before, text, look = chain.text, "", 0
    for place, token in enumerate(step.tokens[:places]):
        whole = place == 0 or bool(step.tokens[place - 1].text)  # no character is open
        for other in _others(token, text) if whole else ():
            if other.logprob >= least and chain.ends.search(before, text + other.text, look)[0] < 0:
                tokens = *(replace(one, top=()) for one in step.tokens[:place]), other
                found.append(Step(text + other.text, step.author, "until", tokens, step.vocabulary))
        text += token.text
        look = chain.ends.search(before, text, look)[1]
    return sorted(found, key=_likeliness, reverse=True)


def drawn(begun: Sequence[Step], temperature: float, seed: int, chain: Chain) -> list[Step]:
    """Put *begun* in an order drawn without replacement by their last tokens' probabilities: Gumbel's top k."""
    lot = random.Random(repr((seed, [message.content for message in chain.messages], chain.text)))

    def luck() -> float:
        return -log(max(lot.expovariate(1.0), 1e-300))

    keys = {place: _likeliness(step) / temperature + luck() for place, step in enumerate(begun)}
    return [begun[place] for place in sorted(keys, key=lambda place: keys[place], reverse=True)]


def standing(rivals: Sequence[Rival]) -> list[Step]:
    """Those that nobody has refused yet."""
    return [rival.step for rival in rivals if not rival.reason]


def decided(verdict: Verdict, rivals: Sequence[Rival], verdicts: Sequence[Verdict]) -> Verdict:
    """Put together the *verdict* on a draft and those on its *rivals* that are standing; one at most stays so."""
    rulings = iter(verdicts)
    judged = [rival if rival.reason else _ruled(rival.step, next(rulings)) for rival in rivals]
    best = max((rival for rival in judged if not rival.reason), key=_worth, default=None)
    if isinstance(verdict, Accept):
        if best is None or _worth(verdict) >= _worth(best):
            best = None
        else:
            verdict = Rollback(reason=BEATEN, score=verdict.score)
    others = [rival if rival.reason or rival is best else replace(rival, reason=BEATEN) for rival in judged]
    return replace(verdict, rivals=tuple(others))


def _ruled(step: Step, verdict: Verdict) -> Rival:
    return Rival(step, verdict.score, verdict.reason if isinstance(verdict, Rollback) else "")


def _worth(passed: Rival | Accept) -> float:
    assert passed.score is not None  # Whoever passed was graded.
    return passed.score


def _likeliness(begun: Step) -> float:
    return begun.tokens[-1].logprob


def _others(token: Token, before: str) -> Iterator[Token]:
    """The tokens that may stand for *token* after *before*: words that do not end the thinking."""
    if token.id < 0:  # It was cut where the step ends, or nobody knows which one it was.
        return
    for other in token.top:
        ends = THINK_END in before + other.text
        plain = other.text and HALF not in other.text and not MARKUP.fullmatch(other.text)
        if plain and not ends and other.text != token.text:
            yield other
