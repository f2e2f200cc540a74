"""
RelayGen: the large model writes, and after words that announce an easy sentence the small one
finishes it.

Song, Kim and Kim 2026, arXiv:2602.06454.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from stepspec.orchestrator import Accept, Chain, Model, Step, Verdict
from stepspec.orchestrator.interfaces import AnsweredBy, without_open_requests

from .method import Drafting, Texts

CUES = (
    "So,",
    "So ",
    "Therefore",
    "Thus",
    "Now",
    "Alternatively",
    " now",
    "Again,",
    "Similarly,",
    "Oh,",
    "Specifically,",
    " hence",
    " similarly",
)
"""
The cues that the authors' two lists share (Qwen3-32B with 1.7B, R1-Distill 32B with 1.5B).

A cue that begins with another one is left out. The likeliest come first, because vLLM itself looks
for four.
"""
WIDE_MARKS = "\u3002\uff01\uff1f"
"""The full stop, exclamation and question marks of Chinese and Japanese."""
CLOSERS = ")]}\"'*_`$\u201d\u2019\u300d\u300f\uff09\u3011"
"""What may follow a mark within the same token."""
SENTENCE_END = re.compile(rf"[.!?{WIDE_MARKS}][{re.escape(CLOSERS)}]*[^\S\n]*\n?[^\S\n]*\Z")
TAIL_CHARACTERS = 32
"""How much of the end of a step is searched after every token."""


@dataclass(frozen=True, slots=True)
class Relay(Drafting):
    """
    The large model writes up to one of the *cues*, the small one to the end of that sentence;
    nothing is judged.

    Cues depend on the pair of models. The paper finds them by profiling, and the defaults are those
    that the paper's two pairs share. Cues match exactly as they are spelt, also within words. As in
    the paper, the small model writes the answer. In the authors' code the large model writes five
    tokens before a cue counts. Here a sentence may begin with a cue.

    A sentence ends with a full stop, an exclamation mark or a question mark, ASCII or full-width,
    and with the whole token that contains the mark. The token may also hold a bracket, a quotation
    mark or a line break. The authors' stop strings cut such a token. As in their code, the point in
    3.14 and of an abbreviation ends a sentence, and the large model goes on.
    """

    answer: ClassVar[AnsweredBy] = "small"

    cues: Texts = CUES

    @property
    def answerer(self) -> Model:
        return self.small

    async def draft(self, chain: Chain) -> Step:
        with without_open_requests():
            if self._cued(chain):
                return await self.small.write(chain, until=ends_a_sentence)
            return await self.large.write(chain, stop=self.cues)

    async def verify(self, chain: Chain, draft: Step) -> Verdict:
        return Accept(judged=False)

    def _cued(self, chain: Chain) -> bool:
        last = chain.steps[-1] if chain.steps else None
        return last is not None and last.author == "large" and last.text.endswith(self.cues)


def ends_a_sentence(step: Step) -> bool:
    """Whether the last token ends a sentence. The end of a paragraph ends the step anyway."""
    return SENTENCE_END.search(step.text[-TAIL_CHARACTERS:]) is not None
