"""The values of the system: tokens, steps, chains and verdicts. Frozen, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypeAlias
from weakref import ref

from .markers import THINK_END as THINK_END
from .markers import opens_block
from .step_ends import BLANK_LINE, BLANK_LINES, NO_BLOCKS, Blocks, StepEnds
from .tokens import Token as Token
from .tokens import Tokens as Tokens

Role: TypeAlias = Literal["small", "large"]
# a model that may be called; a critic writes nothing
Party: TypeAlias = Literal["small", "large", "critic"]
Speaker: TypeAlias = Literal["system", "user", "assistant", "tool"]
Stop: TypeAlias = Literal["delimiter", "length", "until", "end", "open", "repetition"]

DELIMITER = BLANK_LINE


CHOICES = ("auto", "none", "required")
"""The choices of tools that are no name of a tool."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the answer may call."""

    name: str
    """The name by which the model calls it."""

    description: str | None = None
    """What it does. "" stays empty in the prompt; None leaves the description out."""

    parameters: str | None = None
    """The JSON text of the JSON schema of its arguments; None leaves the schema out."""

    strict: bool | None = None
    """Whether the server has to keep to the schema; None leaves that to the server."""


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one request, and which of them the answer has to call."""

    tools: tuple[Tool, ...]
    """The tools, each with a name of its own."""

    choice: str = "auto"
    """
    "auto" leaves it to the model, "none" allows no call, and "required" asks for at least one. Any
    other choice is the name of the tool to call.
    """

    parallel: bool = True
    """Whether an answer may make several calls; if not, only the first one counts."""

    named: bool = False
    """Whether the choice is the name of a tool although it reads like one of `CHOICES`."""

    live: bool = field(default=True, compare=False)
    """
    Whether content and calls are emitted while the answer is written. If not, the complete answer
    is parsed once, which costs the server less.
    """

    @property
    def forced(self) -> str:
        """The name of the tool that the answer has to call; "" if the choice names none."""
        return self.choice if self.named or self.choice not in CHOICES else ""

    @property
    def callable(self) -> bool:
        """Whether the answer may call a tool."""
        return bool(self.tools) and (self.choice != "none" or self.named)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """
    A call of a tool; *arguments* is the JSON text that the model wrote, *id* what the tool's
    message refers to.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """
    One turn of the conversation that poses the problem.

    An assistant's turn may have *calls*, and the *reasoning* before it, which the chat template
    keeps or drops. The turn of a tool has the result of the call *call_id*.
    """

    role: Speaker
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    reasoning: str = ""
    name: str = ""
    """The name of the speaker, which some chat templates show; "" if there is none."""


@dataclass(frozen=True, slots=True)
class Step:
    """
    One unit of reasoning. It includes its delimiter, so that the text of a chain is a plain join.

    *stop* says why it ended: "delimiter" (a stop string), "length" (the token limit: the step is
    incomplete), "until" (the caller's condition), "end" (the thinking was closed, or the model
    ended its turn), "open" (the model ended the thinking but may not: the end is cut off),
    "repetition" (the server found one and ended the text). *vocabulary* names the vocabulary of the
    token ids. *note* is the reason of the rollback that this step repairs. If the author is a
    nested pair, *pieces* are the steps that its own models wrote; their texts and tokens join to
    those of the step.
    """

    text: str
    author: Role
    stop: Stop = "delimiter"
    tokens: Annotated[Sequence[Token], Tokens] = ()
    vocabulary: str = ""
    note: str = ""
    pieces: tuple[Step, ...] = ()

    @property
    def closes(self) -> bool:
        """
        Whether the thinking ends with this step, if it was not over before: in a step that was cut,
        it is text.
        """
        return self.stop in ("end", "delimiter") and self.text.endswith(THINK_END)

    @property
    def reasoning(self) -> str:
        """The text without the end of the thinking."""
        return self.text.removesuffix(THINK_END) if self.closes else self.text

    @property
    def plain(self) -> str:
        """The text in lower case, without white space."""
        return "".join(self.text.split()).casefold()

    def cut(self, keep: int) -> Step:
        """
        Keep *keep* characters, without the end of the thinking: tokens with their ids, a part of
        one as text.
        """
        keep = min(keep, len(self.reasoning))
        tokens: list[Token] = []
        left = keep
        for token in self.tokens:
            if left <= 0:
                break
            tokens.append(
                token if len(token.text) <= left else replace(token, text=token.text[:left], id=-1)
            )
            left -= len(token.text)
        pieces = beginning(self.pieces, keep)
        return replace(
            self, text=self.text[:keep], stop="length", tokens=Tokens.of(tokens), pieces=pieces
        )

    def leaves(self) -> Iterator[tuple[str, Step]]:
        """
        The pieces that have no pieces of their own, each with the path of its author, such as
        ``small.large``.
        """
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
class Totals:
    """
    What the first *count* steps of a chain add up to, so that a longer chain adds only its new
    steps.

    *hashed* has hashed the text. *blocks* are those of the text, up to its last line. *thinking*
    are the totals where the thinking ended; None while it goes on.
    """

    count: int = 0
    text: str = ""
    tokens: int = 0
    blocks: Blocks = NO_BLOCKS
    hashed: blake2b = field(default_factory=lambda: blake2b(digest_size=16))
    thinking: Totals | None = None

    def plus(self, steps: Sequence[Step], *, thinks: bool) -> Totals:
        """
        Add the next *steps*; without *thinks*, only a block that the chain itself opens can end.
        """
        if self.thinking is not None:
            return self._plus(steps)
        end = next((place for place, step in enumerate(steps, 1) if step.closes), 0)
        if not end or not (
            thinks or opens_block(self.text + "".join([step.text for step in steps]))
        ):
            return self._plus(steps)
        thinking = self._plus(steps[:end])
        return replace(thinking, thinking=thinking)._plus(steps[end:])

    def _plus(self, steps: Sequence[Step]) -> Totals:
        added = "".join([step.text for step in steps])
        text = self.text + added
        hashed = self.hashed.copy()
        hashed.update(added.encode("utf-8", "surrogatepass"))
        tokens = self.tokens + sum([len(step.tokens) for step in steps])
        return Totals(
            self.count + len(steps), text, tokens, self.blocks.advance(text), hashed, self.thinking
        )


NO_STEPS = Totals()


@dataclass(frozen=True)
class Chain:
    """
    A problem and the steps committed so far. Extending it returns a new chain.

    *ends* says where steps end in this run; chains that differ only in it are equal. *tools* are
    those that the answer may call: the models read about them in the prompt. *thinks* says whether
    the steps begin in a thinking block, which the conversation decides; without it they are the
    answer, and `THINK_END` is text.
    """

    messages: tuple[Message, ...]
    steps: tuple[Step, ...] = ()
    ends: StepEnds = field(default=BLANK_LINES, compare=False, repr=False)
    tools: tuple[Tool, ...] = ()
    thinks: bool = True

    @classmethod
    def of(
        cls,
        problem: str | Sequence[Message],
        ends: StepEnds = BLANK_LINES,
        *,
        system: str | None = None,
        tools: Sequence[Tool] = (),
    ) -> Chain:
        """
        Begin a chain with one user message, or with a conversation.

        The *system* message stands before it, unless the conversation begins with one of its own.
        """
        messages = (Message("user", problem),) if isinstance(problem, str) else tuple(problem)
        if system and (not messages or messages[0].role != "system"):
            messages = (Message("system", system), *messages)
        return cls(messages, ends=ends, tools=tuple(tools))

    @cached_property
    def totals(self) -> Totals:
        """What the steps add up to; a chain that extends another one adds only its new steps."""
        # Without the shorter chain's text, which would stay as long as this one.
        known: Totals = self.__dict__.pop("_known", NO_STEPS)
        return known.plus(self.steps[known.count :], thinks=self.thinks)

    def __getstate__(self) -> dict[str, Any]:
        # a pickle has no totals
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def text(self) -> str:
        return self.totals.text

    @property
    def finished(self) -> bool:
        return bool(self.steps) and self.steps[-1].stop == "end"

    @property
    def whole(self) -> bool:
        """
        Whether the text ends where a step ends, so that the next step does not complete one that
        was cut.
        """
        return self.ends.at_end(self.text, self.totals.blocks)

    @property
    def closed(self) -> bool:
        """Whether the thinking is over, so that the next step is part of the answer."""
        return self.totals.thinking is not None

    @property
    def thought(self) -> bool:
        """
        Whether the answer follows a thinking block: one that the chain begins in, or one that its
        text opens.
        """
        return self.thinks or self.closed or opens_block(self.text)

    def parts(self) -> tuple[Chain, Chain]:
        """
        Split into two chains: the thinking, and the steps after it, which are the answer as far as
        it is written.
        """
        totals = self.totals.thinking
        if totals is None:
            return self, replace(self, steps=(), thinks=False)
        thinking = replace(self, steps=self.steps[: totals.count])
        thinking.__dict__["totals"] = totals
        return thinking, replace(self, steps=self.steps[totals.count :], thinks=False)

    @property
    def tokens(self) -> int:
        """Number of tokens in the steps, each counted in its author's vocabulary."""
        return self.totals.tokens

    def extend(self, step: Step) -> Chain:
        """Append *step*. The loop, its lookahead and its models share the chain that they make."""
        made: ref[Chain] | None = self.__dict__.get("_longer")
        longer = made() if made is not None else None
        if longer is not None and longer.steps[-1] is step:
            return longer
        longer = replace(self, steps=(*self.steps, step))
        longer.__dict__["_known"] = self.totals
        self.__dict__["_longer"] = ref(longer)
        return longer


@dataclass(frozen=True, slots=True)
class Rating:
    """
    How good a step or an answer is, from 0 to 1, and, from a critic that says so, the *reason* in
    words.
    """

    score: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rival:
    """
    An alternative to a draft, and its *score*. *reason* says why it was rejected; "" if it replaces
    the draft.
    """

    step: Step
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Accept:
    """The draft is accepted as it is; its *rivals*, if it had any, are rejected."""

    score: float | None = None
    rivals: tuple[Rival, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollback:
    """
    Keep the first *keep* characters of the draft, 0 to reject it whole, then repair.

    One of its *rivals* may replace it; then nothing is repaired. *detail* is what a verifier said
    about the draft.
    """

    keep: int = 0
    reason: str = ""
    score: float | None = None
    instead: Step | None = None  # a step that was written while verifying; None if there is none
    rivals: tuple[Rival, ...] = ()
    detail: str = ""

    @property
    def chosen(self) -> Rival | None:
        """The rival that replaces the draft; None if there is none."""
        return next((rival for rival in self.rivals if not rival.reason), None)


Verdict: TypeAlias = Accept | Rollback
"""What a policy decides about a draft."""
