"""The tokens of one open stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from ...chain import Stop, Token
from ...errors import EndpointUnavailable, MalformedReply
from ...http.http_errors import Call
from ...http.paths import Body
from ...http.request_meter import RequestMeter
from ...http.sse import Events
from .replies import REPLACEMENT, divide_text, parse_chunk

Spell: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, str]]]
"""Asks the server how tokens are spelt. Those that it cannot spell are left out."""


class TextDivider:
    """
    Divides the text of an event among its tokens, for a stream without log-probabilities.

    Such an event tells the text of all of its tokens together. The spellings of tokens that arrive
    alone are learnt, in *spellings*, which all streams of a server share. *spell* returns others.
    """

    def __init__(self, spellings: dict[int, str], spell: Spell) -> None:
        self._spellings = spellings
        self._spell = spell
        # The last token of the event before may be the first half of a character.
        self._halved = False

    async def divide(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """
        Return *tokens*, of which the last has all of the text, each with its own text.

        If their spellings do not join to the text, one token has the text of all that do not fit:
        see `divide_text`. Its id becomes -1 if the last token, or that of the event before, may be
        the first half of a character.
        """
        if not tokens:
            return tokens
        if len(tokens) == 1 and not self._halved:
            self._spellings[tokens[0].id] = tokens[0].text
            return tokens
        ids = [token.id for token in tokens]
        pieces = await self._pieces(ids)
        follows_half = self._halved
        parts = divide_text(tokens[-1].text, ids, pieces)
        self._halved = parts[-1][0] != pieces[-1]
        divided: list[Token] = []
        for token, piece, (part, number) in zip(tokens, pieces, parts, strict=True):
            if part and part != piece and (follows_half or self._halved):
                number = -1
            divided.append(replace(token, text=part, id=number))
        return divided

    async def _pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the spelling of each of *ids*. `REPLACEMENT` stands for one that is not known."""
        known = {} if self._halved else self._spellings
        unknown = [number for number in ids if number not in known]
        asked = await self._spell(unknown) if unknown else dict[int, str]()
        return [asked.get(number) or self._spellings.get(number, REPLACEMENT) for number in ids]


class TokenStream:
    """The tokens of the reply to *body*, and then the reason why the text ended."""

    def __init__(
        self,
        call: Call,
        events: Events,
        meter: RequestMeter,
        body: Body,
        divider: TextDivider,
    ) -> None:
        self._call = call
        self._events = events
        self._meter = meter
        self._logprobs: int | None = body.get("logprobs")
        self._closing: Sequence[int] = body.get("stop_token_ids", ())
        self._divider = divider
        self._tokens: deque[Token] = deque()
        self._ended: Stop | None = None

    async def take(self) -> Token | Stop:
        """Wait for the next token, or for the reason of the end."""
        while not self._tokens:
            if self._ended:
                return self._ended
            if not await self._read():
                raise self._call.error(MalformedReply, "the stream ended without a finish_reason")
        return self._tokens.popleft()

    async def finish(self) -> None:
        """
        If the text has ended, read the usage and the end of the stream, which frees the connection.
        """
        with suppress(EndpointUnavailable):
            while self._ended and await self._read():
                pass

    async def _read(self) -> bool:
        """Read the next event. Return False if there is none."""
        event = await self._events.next()
        if event is None:
            return False
        chunk = parse_chunk(self._call, event, self._logprobs, self._closing)
        self._meter.add(chunk.received, chunk.cached)
        tokens: Sequence[Token] = chunk.tokens
        if self._logprobs is None:
            tokens = await self._divider.divide(tokens)
        self._tokens.extend(tokens)
        self._ended = chunk.ended or self._ended
        return True
