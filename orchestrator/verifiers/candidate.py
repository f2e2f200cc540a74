"""What a verifier is asked to judge, and how its reply is read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..answer import extract
from ..chain import THINK_END, Chain, Message, Rating
from ..events import Stage

REASON = 2000  # characters of a reason that are kept: it becomes part of a prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A step or an answer that is to be judged.

    *problem* is the conversation that poses the problem, *steps* are the texts of the steps before, and *text* is that
    of the step or of the answer.
    """

    stage: Stage
    problem: tuple[Message, ...]
    steps: tuple[str, ...]
    text: str

    @classmethod
    def step(cls, chain: Chain) -> Candidate:
        """The last step of *chain*."""
        *before, last = [step.reasoning for step in chain.steps]
        return cls("step", chain.messages, tuple(before), last)

    @classmethod
    def final(cls, chain: Chain, answer: str) -> Candidate:
        """The *answer* at the end of *chain*, after the thinking if there is any."""
        thinking = chain.parts()[0].steps if chain.closed else ()
        return cls("answer", chain.messages, tuple(step.reasoning for step in thinking), answer)

    @property
    def answer(self) -> str:
        r"""The content of the last ``\boxed{}`` of the text, or else its last line."""
        return extract(self.text)

    @property
    def question(self) -> str:
        """The last turn of the problem, which in most conversations is the problem itself."""
        return self.problem[-1].content


def read_rating(value: object, reason: object = "") -> Rating:
    """
    Return *value* as a rating: a `Rating`, a number from 0 to 1, or True or False. *reason* is that of a number.

    Raise `ValueError` for anything else.
    """
    if isinstance(value, Rating):
        return read_rating(value.score, value.reason)
    if not isinstance(value, int | float) or not 0 <= value <= 1:  # nor NaN
        raise ValueError(f"its score is {value!r:.80}, and has to be a number from 0 to 1")
    return Rating(float(value), str(reason or "").replace(THINK_END, "").strip()[:REASON])
