"""The values of the system: tokens, steps, chains and verdicts. Frozen, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from .step_ends import BLANK_LINE, BLANK_LINES, StepEnds

Role: TypeAlias = Literal["small", "large"]
Party: TypeAlias = Literal["small", "large", "critic"]  # a model that may be called; a critic writes nothing
Speaker: TypeAlias = Literal["system", "user", "assistant"]
Stop: TypeAlias = Literal["delimiter", "length", "until", "end", "open"]

DELIMITER = BLANK_LINE
THINK_END = "</think>"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation that poses the problem."""

    role: Speaker
    content: str


@dataclass(frozen=True, slots=True)
class Token:
    """
    A piece of text and what one model knows about it.

    *logprob* is in nats. *rank* counts from 1, the model's first choice (0: unknown). *id* is the token's number in the
    vocabulary that its step names (-1: unknown; the text has to be encoded again). *top* are the likeliest tokens of
    its position, best first, if they were requested.
    """

    text: str
    logprob: float = 0.0
    rank: int = 0
    id: int = -1
    top: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """
    One unit of reasoning. It includes its delimiter, so that the text of a chain is a plain join.

    *stop* says why it ended: "delimiter" (a stop string), "length" (the token limit: the step is incomplete), "until"
    (the caller's condition), "end" (the thinking was closed, or the model ended its turn), "open" (the model ended the
    thinking but may not: the end is cut off). *vocabulary* names the vocabulary of the token ids. *note* is the reason
    of the rollback that this step repairs. If the author is a nested pair, *pieces* are the steps that its own models
    wrote; their texts and tokens join to those of the step.
    """

    text: str
    author: Role
    stop: Stop = "delimiter"
    tokens: tuple[Token, ...] = ()
    vocabulary: str = ""
    note: str = ""
    pieces: tuple[Step, ...] = ()

    @property
    def plain(self) -> str:
        """The text in lower case, without white space."""
        return "".join(self.text.split()).casefold()

    def cut(self, keep: int) -> Step:
        """Keep the first *keep* characters: whole tokens with their ids, and the part of a last token as text."""
        tokens: list[Token] = []
        left = keep
        for token in self.tokens:
            if left <= 0:
                break
            tokens.append(token if len(token.text) <= left else replace(token, text=token.text[:left], id=-1))
            left -= len(token.text)
        pieces = beginning(self.pieces, keep)
        return replace(self, text=self.text[:keep], stop="length", tokens=tuple(tokens), pieces=pieces)

    def leaves(self) -> Iterator[tuple[str, Step]]:
        """The pieces that have no pieces of their own, each with the path of its author, such as ``small.large``."""
        if not self.pieces:
            yield self.author, self
        for piece in self.pieces:
            for path, leaf in piece.leaves():
                yield f"{self.author}.{path}", leaf


def beginning(steps: Iterable[Step], keep: int) -> tuple[Step, ...]:
    """The first *keep* characters of *steps*; the last step may be cut."""
    kept: list[Step] = []
    for step in steps:
        if keep <= 0:
            break
        kept.append(step if len(step.text) <= keep else step.cut(keep))
        keep -= len(step.text)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Chain:
    """
    A problem and the steps committed so far. Extending it returns a new chain.

    *ends* says where steps end in this run; chains that differ only in it are equal.
    """

    messages: tuple[Message, ...]
    steps: tuple[Step, ...] = ()
    ends: StepEnds = field(default=BLANK_LINES, compare=False, repr=False)

    @classmethod
    def of(cls, problem: str | Sequence[Message], ends: StepEnds = BLANK_LINES) -> Chain:
        """Begin a chain with one user message, or with a conversation."""
        messages = (Message("user", problem),) if isinstance(problem, str) else tuple(problem)
        return cls(messages, ends=ends)

    @property
    def text(self) -> str:
        return "".join([step.text for step in self.steps])

    @property
    def finished(self) -> bool:
        return bool(self.steps) and self.steps[-1].stop == "end"

    @property
    def whole(self) -> bool:
        """Whether the text ends where a step ends, so that the next step does not complete one that was cut."""
        return self.ends.at_end(self.text)

    @property
    def closed(self) -> bool:
        """Whether the thinking is over, so that the next step is part of the answer."""
        return True in [step.text.endswith(THINK_END) for step in self.steps]

    def parts(self) -> tuple[Chain, Chain]:
        """Split into two chains: the thinking, and the steps after it, which are the answer as far as it is written."""
        ends = (place for place, step in enumerate(self.steps, 1) if step.text.endswith(THINK_END))
        end = next(ends, len(self.steps))
        return replace(self, steps=self.steps[:end]), replace(self, steps=self.steps[end:])

    @property
    def tokens(self) -> int:
        """Number of tokens in the steps, each counted in its author's vocabulary."""
        return sum([len(step.tokens) for step in self.steps])

    def extend(self, step: Step) -> Chain:
        return replace(self, steps=(*self.steps, step))


@dataclass(frozen=True, slots=True)
class Rival:
    """An alternative to a draft, and its *score*. *reason* says why it was rejected; "" if it replaces the draft."""

    step: Step
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Accept:
    """
    The draft is accepted as it is; its *rivals*, if it had any, are rejected.

    With *skipped*, nobody judged it, because the policy judges only some drafts.
    """

    score: float | None = None
    rivals: tuple[Rival, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Rollback:
    """
    Keep the first *keep* characters of the draft, 0 to reject it whole, then repair.

    One of its *rivals* may replace it; then nothing is repaired.
    """

    keep: int = 0
    reason: str = ""
    score: float | None = None
    instead: Step | None = None  # a step that was written while verifying; None if there is none
    rivals: tuple[Rival, ...] = ()

    @property
    def chosen(self) -> Rival | None:
        """The rival that replaces the draft; None if there is none."""
        return next((rival for rival in self.rivals if not rival.reason), None)


Verdict: TypeAlias = Accept | Rollback
