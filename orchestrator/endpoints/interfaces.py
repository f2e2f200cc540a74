"""The interface of a server: what a back end implements, and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, TypeAlias

from ..chain import Message, Token, Tool, ToolCall, Toolset
from ..events import Calling, Observer
from ..interfaces import Model
from .chat_template import Template
from .metrics import QueueGauges
from .settings import GREEDY, Endpoint, Sampling

Messages: TypeAlias = tuple[Message, ...]
Tools: TypeAlias = tuple[Tool, ...]
Clock: TypeAlias = Callable[[], float]
"""Returns the seconds since a run began."""


class RunModel(Model, Protocol):
    """The model of one run, which `Server.model` makes."""

    def leave(self) -> None:
        """Release what the run holds, such as its place at a replica, as the run is over."""
        ...


class SingleModel:
    """The base of a `RunModel` that holds nothing for its run."""

    def leave(self) -> None:
        """Do nothing."""


class Server(Protocol):
    """
    One server of a model. A back end implements this, and the `Model` of its runs.

    A `ReplicatedEndpoint` has all servers of a model. `ReplicatedEndpoint.call` calls one of them.
    """

    @property
    def settings(self) -> Endpoint: ...

    @property
    def name(self) -> str: ...

    @property
    def template(self) -> Template: ...

    @property
    def vocabulary(self) -> str: ...

    @property
    def room(self) -> int: ...

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot of this server."""
        ...

    async def count(self, messages: Messages, tools: Tools = ()) -> int: ...

    async def thinks(self, messages: Messages, tools: Tools = ()) -> bool: ...

    async def queue(self) -> QueueGauges | None: ...

    async def tool_format(self, toolset: Toolset) -> Format | None: ...

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer: ...

    async def parse_tokens(
        self,
        toolset: Toolset,
        tokens: Sequence[Token],
        state: ParserState,
        *,
        finished: bool,
    ) -> ParsedTokens:
        """
        Parse the next *tokens* of an answer.

        Any server of the model can parse them, because *state* is all that the parser needs.
        """
        ...

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Clock | None = None,
        format: Format | None = None,
    ) -> RunModel: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...

    async def check_health(self) -> None:
        """Raise `EndpointUnavailable` if the server says that it cannot work."""
        ...

    async def check_unchanged(self) -> None:
        """Raise `EndpointUnavailable` if another model or another vocabulary is served now."""
        ...

    async def warm_up(self) -> None:
        """Have the server do what it does only once, such as compiling; failures are left out."""
        ...

    def adopt(self, fresh: Self) -> None:
        """Take over what *fresh*, a new connection to the same server, has learnt."""
        ...


@dataclass(frozen=True, slots=True)
class ServerFormat:
    """The form of a text in the server's own words."""

    outputs: Mapping[str, Any]
    """The value of the parameter ``structured_outputs``."""


Format: TypeAlias = Literal["json"] | Mapping[str, Any] | ServerFormat
"""
The form of a text: any JSON object, the values that a JSON schema describes, or in the server's own
words.
"""


ParserState: TypeAlias = Mapping[str, Any]
"""What the parser has taken in, in the server's own words; empty at the beginning of an answer."""


@dataclass(frozen=True, slots=True)
class ParsedTokens:
    """What the next tokens of an answer add to it, and the state of the parser after them."""

    content: str
    """Further content."""

    pieces: tuple[Calling, ...]
    """Further pieces of calls."""

    state: ParserState
    """The state to send with the tokens after these."""

    def as_one_piece(self) -> ParserState:
        """
        Return the state as if all tokens so far had come at once.

        The server replays each piece of an answer for every request.
        """
        count = len(self.state.get("output_token_ids", ()))
        return {**self.state, "output_chunk_lens": [count]} if count else self.state


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """A complete answer, as the parser understands it."""

    content: str
    """The text without the calls."""

    calls: tuple[ToolCall, ...]
    """The calls, in their order."""

    reasoning: str = ""
    """What the parser takes for thinking, by mistake, as the answer follows the thinking."""

    def after(self, text: str, thinking_marks: Sequence[str]) -> ParsedAnswer:
        """
        Return the answer whose whole text is *text*, without anything that was taken for thinking.

        An answer without calls is its own content. A parser may leave marks out of it, such as the
        headers of messages, but no *thinking_marks*, and it must not change or lose anything else.
        Beside calls, the content is the parser's, without a mark that the text does not have.
        """
        if self.calls:
            content = self.content
            for mark in thinking_marks:
                if content.count(mark) > text.count(mark):
                    content = content.replace(mark, "", 1)
            return replace(self, content=content)
        left_out = text.replace(self.content, "", 1)
        is_complete = self.content in text and not any(mark in left_out for mark in thinking_marks)
        if is_complete and not self.reasoning:
            return self
        return ParsedAnswer(text, ())

    def with_ids(self, streamed: ParsedTokens) -> ParsedAnswer:
        """
        Return the answer with the ids of the calls of *streamed*.

        The answer stays as it is if the stream had other calls. Kimi's ids name the function, and
        only the parser of a stream returns them.
        """
        pieces = [piece for piece in streamed.pieces if piece.name]
        if [piece.name for piece in pieces] != [call.name for call in self.calls]:
            return self
        calls = [
            replace(call, id=piece.id or call.id)
            for call, piece in zip(self.calls, pieces, strict=True)
        ]
        return replace(self, calls=tuple(calls))


def or_now(clock: Clock | None) -> Clock:
    """Return *clock*; if it is None, a clock that counts the seconds from now."""
    began = time.perf_counter()
    return clock or (lambda: time.perf_counter() - began)
