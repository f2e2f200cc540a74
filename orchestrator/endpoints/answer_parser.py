"""The parser of answers that call tools. The server that wrote an answer parses it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

from ..chain import Step, Token, ToolCall, Toolset
from ..events import Calling
from .interfaces import ModelEndpoint, ParsedTokens, ParserState

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
    The `AnswerParser` of one answer with *toolset*, by the server of *endpoint*.

    Many parsers expect one token at a time. Several tokens are sent at once only if they have no
    sign of a call, and prove to be nothing but content.
    """

    def __init__(self, endpoint: ModelEndpoint, toolset: Toolset) -> None:
        self._endpoint = endpoint
        self._toolset = toolset
        self._state: ParserState = {}
        self._text = ""  # the text of the tokens that were read
        self._content = ""  # what the parser made of that text

    @property
    def live(self) -> bool:
        return self._toolset.live

    async def parse(self, tokens: Sequence[Token], *, finished: bool) -> Parsed:
        if len(self._state.get("output_chunk_lens", ())) > MAX_PIECES:
            return 0, "", ()
        plain = [*takewhile(lambda token: not _CALL_SIGNS.search(token.text), tokens)]
        if len(plain) > 1 and self._is_content(self._text, self._content):
            parsed = await self._read(plain, finished=finished and len(plain) == len(tokens))
            content = self._content + parsed.content
            if self._is_content(self._text + _text(plain), content):
                return self._take(plain, parsed)
        first = tokens[:1]
        parsed = await self._read(first, finished=finished and len(tokens) <= 1)
        return self._take(first, parsed)

    async def parse_whole(self, answer: Step) -> tuple[str, Sequence[ToolCall]]:
        parsed = await self._endpoint.parse_answer(self._toolset, answer.tokens)
        return parsed.content, parsed.calls

    async def _read(self, tokens: Sequence[Token], *, finished: bool) -> ParsedTokens:
        return await self._endpoint.parse_tokens(
            self._toolset,
            tokens,
            self._state,
            finished=finished,
        )

    def _take(self, tokens: Sequence[Token], parsed: ParsedTokens) -> Parsed:
        self._text += _text(tokens)
        self._content += parsed.content
        self._state = parsed.state
        if self._is_content(self._text, self._content):
            self._state = parsed.as_one_piece()
        return len(tokens), parsed.content, parsed.pieces

    @staticmethod
    def _is_content(text: str, content: str) -> bool:
        """Return whether the parser has taken all of *text* for content, and holds nothing back."""
        return text.lstrip() == content.lstrip()


def _text(tokens: Sequence[Token]) -> str:
    return "".join([token.text for token in tokens])
