"""The values of the system: tokens, steps, chains and verdicts. Frozen, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
"""A model that writes."""
Party: TypeAlias = Literal["small", "large", "critic"]
"""A model that may be called. A critic writes nothing."""
Speaker: TypeAlias = Literal["system", "user", "assistant", "tool"]
Stop: TypeAlias = Literal["delimiter", "length", "until", "end", "open", "repetition"]
"""
Why a step ended.

"delimiter": at a stop string. "length": at the token limit, and the step is incomplete. "until": by
the caller's condition. "end": the thinking was closed, or the model ended its turn. "open": the
model ended the thinking but may not, and the end is cut off. "repetition": the server found a
repetition and ended the text.
"""

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
        if self.named or self.choice not in CHOICES:
            return self.choice
        return ""

    @property
    def callable(self) -> bool:
        """Whether the answer may call a tool."""
        return bool(self.tools) and (self.choice != "none" or self.named)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    id: str
    """The name of this call, to which the tool's message refers."""
    name: str
    """The name of the tool."""
    arguments: str
    """The JSON text that the model wrote."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the conversation that poses the problem."""

    role: Speaker
    """Whose turn it is."""
    content: str
    """The text of the turn. A tool's turn holds the result of its call."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of tools in an assistant's turn."""
    call_id: str = ""
    """The call whose result a tool's turn holds; "" in any other turn."""
    reasoning: str = ""
    """The thinking before an assistant's turn. The chat template keeps it or drops it."""
    name: str = ""
    """The name of the speaker, which some chat templates show; "" if there is none."""


@dataclass(frozen=True, slots=True)
class Step:
    """One unit of reasoning. It includes its delimiter: the texts of steps join to the chain's."""

    text: str
    """The text, with the delimiter."""
    author: Role
    """The model that wrote it."""
    stop: Stop = "delimiter"
    """Why the step ended."""
    tokens: Annotated[Sequence[Token], Tokens] = ()
    """The tokens, as its author wrote them. Their texts join to the text of the step."""
    vocabulary: str = ""
    """The name of the vocabulary that the ids of the tokens belong to; "" if it is unknown."""
    note: str = ""
    """
    The reason of the rollback that this step repairs, or `answer.CLOSED`; "" for other steps.

    All methods of this project name a reason. So the number of steps with the reason of a rollback
    is the number of repaired drafts. A rival that replaced a rejected draft is no repair.
    """

    @property
    def closes(self) -> bool:
        """
        Whether the thinking ends with this step, unless it ended before.

        In a step that was cut, the marker of the end is text.
        """
        return self.stop in ("end", "delimiter") and self.text.endswith(THINK_END)

    @property
    def reasoning(self) -> str:
        """The text without the end of the thinking."""
        if self.closes:
            return self.text.removesuffix(THINK_END)
        return self.text

    @property
    def plain(self) -> str:
        """The text in lower case, without white space."""
        return "".join(self.text.split()).casefold()

    def cut(self, keep: int) -> Step:
        """
        Return the first *keep* characters of the step, without the end of the thinking.

        Whole tokens keep their ids. A part of a token has no id.
        """
        keep = min(keep, len(self.reasoning))
        tokens: list[Token] = []
        left = keep
        for token in self.tokens:
            if left <= 0:
                break
            if len(token.text) > left:
                token = replace(token, text=token.text[:left], id=-1)
            tokens.append(token)
            left -= len(token.text)
        return replace(
            self,
            text=self.text[:keep],
            stop="length",
            tokens=Tokens.of(tokens),
        )


def beginning(steps: Iterable[Step], keep: int) -> tuple[Step, ...]:
    """Return the first *keep* characters of *steps*. The last step may be cut."""
    kept: list[Step] = []
    left = keep
    for step in steps:
        if left <= 0:
            break
        if len(step.text) > left:
            step = step.cut(left)
        kept.append(step)
        left -= len(step.text)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Totals:
    """What the first steps of a chain add up to. A longer chain adds only its new steps."""

    count: int = 0
    """The number of steps."""
    text: str = ""
    """Their text."""
    tokens: int = 0
    """The number of their tokens."""
    blocks: Blocks = NO_BLOCKS
    """The blocks of the text that are open where its last line begins."""
    hashed: blake2b = field(default_factory=lambda: blake2b(digest_size=16))
    """The hash of the text."""
    thinking: Totals | None = None
    """The totals where the thinking ended; None while it goes on."""

    def plus(self, steps: Sequence[Step], *, thinks: bool) -> Totals:
        """
        Add the next *steps*.

        Without *thinks*, only a thinking block that the chain's own text opens can end.
        """
        if self.thinking is not None:
            return self._plus(steps)
        count = next((count for count, step in enumerate(steps, start=1) if step.closes), 0)
        if not count:
            return self._plus(steps)
        if not thinks and not opens_block(self.text + _join(steps)):
            return self._plus(steps)
        thinking = self._plus(steps[:count])
        return replace(thinking, thinking=thinking)._plus(steps[count:])

    def _plus(self, steps: Sequence[Step]) -> Totals:
        added = _join(steps)
        text = self.text + added
        hashed = self.hashed.copy()
        hashed.update(added.encode("utf-8", "surrogatepass"))
        return Totals(
            count=self.count + len(steps),
            text=text,
            tokens=self.tokens + sum([len(step.tokens) for step in steps]),
            blocks=self.blocks.advance(text),
            hashed=hashed,
            thinking=self.thinking,
        )


NO_STEPS = Totals()


def _join(steps: Sequence[Step]) -> str:
    return "".join([step.text for step in steps])


@dataclass(frozen=True)
class Chain:
    """A problem and the steps committed so far. Extending it returns a new chain."""

    messages: tuple[Message, ...]
    """The conversation that poses the problem."""
    steps: tuple[Step, ...] = ()
    """The steps committed so far."""
    ends: StepEnds = field(default=BLANK_LINES, compare=False, repr=False)
    """Where steps end in this run. Chains that differ only in it are equal."""
    tools: tuple[Tool, ...] = ()
    """The tools that the answer may call. The models read about them in the prompt."""
    thinks: bool = True
    """
    Whether the steps begin in a thinking block, which the conversation decides.

    If not, the steps are the answer, and `THINK_END` is text.
    """

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
        Begin a chain with a user message or with a conversation.

        The *system* message stands before it, unless the conversation begins with one of its own.
        """
        if isinstance(problem, str):
            messages: tuple[Message, ...] = (Message("user", problem),)
        else:
            messages = tuple(problem)
        if system and (not messages or messages[0].role != "system"):
            messages = (Message("system", system), *messages)
        return cls(messages, ends=ends, tools=tuple(tools))

    @cached_property
    def totals(self) -> Totals:
        """What the steps add up to. A chain that extends another one adds only its new steps."""
        # Popped, because the shorter chain's text would otherwise stay as long as this chain.
        known: Totals = self.__dict__.pop("_known", NO_STEPS)
        return known.plus(self.steps[known.count :], thinks=self.thinks)

    def __getstate__(self) -> dict[str, Any]:
        # A pickle has no totals.
        return {member.name: getattr(self, member.name) for member in fields(self)}

    @property
    def text(self) -> str:
        return self.totals.text

    @property
    def finished(self) -> bool:
        return bool(self.steps) and self.steps[-1].stop == "end"

    @property
    def whole(self) -> bool:
        """Whether the text ends where a step ends. If not, the next step completes a cut one."""
        return self.ends.at_end(self.text, self.totals.blocks)

    @property
    def closed(self) -> bool:
        """Whether the thinking is over, so that the next step is part of the answer."""
        return self.totals.thinking is not None

    @property
    def thought(self) -> bool:
        """Whether there is a thinking block: the chain begins in one, or its text opens one."""
        return self.thinks or self.closed or opens_block(self.text)

    def parts(self) -> tuple[Chain, Chain]:
        """Split into two chains: the thinking, and the answer as far as it is written."""
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
        """
        Append *step*.

        A second call with the same step returns the same chain, so that the loop, its lookahead and
        its models share one.
        """
        made: ref[Chain] | None = self.__dict__.get("_longer")
        if made is not None:
            longer = made()
            if longer is not None and longer.steps[-1] is step:
                return longer
        longer = replace(self, steps=(*self.steps, step))
        longer.__dict__["_known"] = self.totals
        self.__dict__["_longer"] = ref(longer)
        return longer


@dataclass(frozen=True, slots=True)
class Rating:
    """What a critic says about a step or an answer."""

    score: float
    """How good it is, from 0 to 1."""
    reason: str = ""
    """Why, in words; "" if the critic gives no reason."""


@dataclass(frozen=True, slots=True)
class Rival:
    """An alternative to a draft."""

    step: Step
    """The step that would replace the draft."""
    score: float | None = None
    """What the judge gave it; None if it was not judged."""
    reason: str = ""
    """Why it was rejected; "" if it replaces the draft."""


@dataclass(frozen=True, slots=True)
class Accept:
    """The draft is accepted as it is."""

    score: float | None = None
    """What the judge gave the draft; None if the judge gives no score."""
    rivals: tuple[Rival, ...] = ()
    """The alternatives, which are rejected."""
    judged: bool = True
    """Whether the draft was judged. If not, it counts in no accept rate."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """The draft is rejected from a character on, and what was rejected is repaired."""

    keep: int = 0
    """The number of characters at the beginning of the draft that stay; 0 rejects it whole."""
    reason: str = ""
    """Why, in a word or two, such as "grade"."""
    score: float | None = None
    """What the judge gave the draft; None if there is no score."""
    instead: Step | None = None
    """A step that was written while verifying, and is the repair; None if there is none."""
    rivals: tuple[Rival, ...] = ()
    """The alternatives to the draft. If one of them replaces it, nothing is repaired."""
    detail: str = ""
    """What a verifier said about the draft."""

    @property
    def chosen(self) -> Rival | None:
        """The rival that replaces the draft; None if there is none."""
        return next((rival for rival in self.rivals if not rival.reason), None)


Verdict: TypeAlias = Accept | Rollback
"""What a policy decides about a draft."""


def accepts(verdict: Verdict) -> bool:
    """Return whether the draft, or a rival in its place, becomes a step."""
    return isinstance(verdict, Accept) or verdict.chosen is not None
