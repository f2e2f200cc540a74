"""
The interface of an endpoint: one served model, whether on one server, on replicas, or as a nested
pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from types import TracebackType
from typing import Protocol, Self

from ..chain import Message, Role, Step, Token, Tool, ToolCall, Toolset
from ..events import Calling, Observer
from ..interfaces import Model
from .chat_template import Template
from .metrics import Acceptance, QueueGauges
from .probe import Capabilities
from .settings import Endpoint, Sampling
from .tool_protocol import ParsedAnswer, ParsedTokens, ParserState
from .vllm_protocol import GREEDY, Format

_SIGNS = re.compile("[^\\w\\s.,;:!?'\"()*/+=-]")  # others, such as brackets, begin calls
MOST_PIECES = 1024
"""
Tokens of calls that are parsed while the answer is written; later ones when it is complete.

The server replays all of them for each further token.
"""


class ModelEndpoint(Protocol):
    """
    One server (`VllmEndpoint`), the servers of one model (`ReplicatedEndpoint`), or a pair
    (`NestedEndpoint`).
    """

    @property
    def settings(self) -> Endpoint: ...

    @property
    def role(self) -> Role: ...

    @property
    def name(self) -> str: ...

    @property
    def template(self) -> Template: ...

    @property
    def vocabulary(self) -> str: ...

    @property
    def usable(self) -> bool:
        """Whether a call may work; False only while probes of all servers fail."""
        ...

    @property
    def room(self) -> int: ...

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int: ...

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool: ...

    async def queue(self) -> QueueGauges | None: ...

    async def acceptance(self) -> Acceptance | None: ...

    async def capabilities(self) -> Capabilities: ...

    async def tool_format(self, toolset: Toolset) -> Format | None: ...

    async def parse_answer(self, toolset: Toolset, tokens: Sequence[Token]) -> ParsedAnswer: ...

    async def parse_tokens(
        self, toolset: Toolset, tokens: Sequence[Token], state: ParserState, *, finished: bool
    ) -> ParsedTokens: ...

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> Model: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class ServerParser:
    """
    The `AnswerParser` of one answer with *toolset*, by the server of *endpoint*.

    Many parsers expect one token at a time. So several tokens are sent at once only where they have
    no sign that marks are made of, and prove to be nothing but content.
    """

    def __init__(self, endpoint: ModelEndpoint, toolset: Toolset) -> None:
        self._endpoint = endpoint
        self._toolset = toolset
        self._state: ParserState = {}
        self._text = ""  # of the tokens that were read
        self._content = ""  # what the parser made of them

    @property
    def live(self) -> bool:
        return self._toolset.live

    async def parse(
        self, tokens: Sequence[Token], *, finished: bool
    ) -> tuple[int, str, Sequence[Calling]]:
        if len(self._state.get("output_chunk_lens", ())) > MOST_PIECES:
            return 0, "", ()
        plain = tuple(takewhile(lambda token: not _SIGNS.search(token.text), tokens))
        if len(plain) > 1 and self._is_content(self._text, self._content):
            parsed = await self._read(plain, finished=finished and plain == tuple(tokens))
            text = self._text + "".join(token.text for token in plain)
            if self._is_content(text, self._content + parsed.content):
                return self._take(plain, parsed)
        first = tokens[:1]
        parsed = await self._read(first, finished=finished and len(tokens) <= 1)
        return self._take(first, parsed)

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        parsed = await self._endpoint.parse_answer(self._toolset, answer.tokens)
        return parsed.content, parsed.calls

    async def _read(self, tokens: Sequence[Token], *, finished: bool) -> ParsedTokens:
        return await self._endpoint.parse_tokens(
            self._toolset, tokens, self._state, finished=finished
        )

    def _take(
        self, tokens: Sequence[Token], parsed: ParsedTokens
    ) -> tuple[int, str, Sequence[Calling]]:
        self._text += "".join(token.text for token in tokens)
        self._content += parsed.content
        content = self._is_content(self._text, self._content)
        self._state = parsed.as_one_piece() if content else parsed.state
        return len(tokens), parsed.content, parsed.pieces

    @staticmethod
    def _is_content(text: str, content: str) -> bool:
        """Whether the parser has taken all of *text* for content, and holds nothing back."""
        return text.strip() == content.strip()
