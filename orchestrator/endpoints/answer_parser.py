"""The parser of answers that call tools. The server that wrote an answer parses it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

from ..chain import Step, Token, ToolCall, Toolset
from ..events import Calling
from .interfaces import ParserState
from .replicas import ReplicatedEndpoint

_CALL_SIGNS = re.compile("[^\\w\\s.,;:!?'\"()*/+=-]")
"""Signs that may begin a call, such as brackets. Plain text has none of them."""

MAX_PIECES = 1024
"""
Pieces of an answer that are parsed while the answer is written.

The server replays all of them for each further token. A longer answer is parsed when it is
complete.
"""

Parsed: TypeAlias = tuple[int, str, Sequence[Calling]]
"""The number of tokens that were read, and the content and the pieces of calls that they add."""


class ServerParser:
    """
    The `AnswerParser` of one answer with *toolset*, by the servers of *endpoint*.

    Many parsers expect one token at a time. Several tokens are sent at once only if they have no
    sign of a call, and prove to be nothing but content.
    """

    def __init__(self, endpoint: ReplicatedEndpoint, toolset: Toolset) -> None:
        self._endpoint = endpoint
        self._toolset = toolset
        self._state: ParserState = {}
        self._text = ""  # the text of the tokens that were read
        self._content = ""  # what the parser made of that text
        self._is_plain = True  # all of that text is content, and nothing is held back

    @property
    def live(self) -> bool:
        return self._toolset.live

    async def parse(self, tokens: Sequence[Token], *, finished: bool) -> Parsed:
        if len(self._state.get("output_chunk_lens", ())) > MAX_PIECES:
            return 0, "", ()
        count = 1
        if self._is_plain:
            plain = [*takewhile(lambda token: not _CALL_SIGNS.search(token.text), tokens)]
            count = max(1, len(plain))
        return await self._parse(tokens, count, finished=finished)

    async def _parse(self, tokens: Sequence[Token], count: int, *, finished: bool) -> Parsed:
        """Read the first *count* of *tokens*, or only the first if they are not content alone."""
        read = tokens[:count]
        is_last = finished and len(read) == len(tokens)
        parsed = await self._endpoint.call(
            lambda server: server.parse_tokens(
                self._toolset,
                read,
                self._state,
                finished=is_last,
            )
        )
        text = self._text + "".join([token.text for token in read])
        content = self._content + parsed.content
        is_plain = text.lstrip() == content.lstrip()
        if count > 1 and not is_plain:
            return await self._parse(tokens, 1, finished=finished)
        self._text = text
        self._content = content
        self._is_plain = is_plain
        self._state = parsed.as_one_piece() if is_plain else parsed.state
        return len(read), parsed.content, parsed.pieces

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        parsed = await self._endpoint.call(
            lambda server: server.parse_answer(self._toolset, answer.tokens)
        )
        return parsed.content, parsed.calls
