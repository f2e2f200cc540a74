"""Where rivals part from a draft, by what its tokens tell of their places, and which candidate stands. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

from stepspec.orchestrator import Accept, Chain, Rival, Rollback, Step, Token, Verdict
from stepspec.orchestrator.chain import THINK_END

BEATEN = "beaten"
HALF = "\ufffd"  # what is shown of half a character
MARKUP = re.compile(r"\s*<[^\s<>]+>\s*")  # tokens that end a turn or call a tool: <|im_end|>, </s>


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
