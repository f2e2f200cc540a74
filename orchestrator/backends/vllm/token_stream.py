"""The tokens of one open stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
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


class TokenStream:
    """
    The tokens of the reply to *body*, and then the reason why the text ended.

    *spell* returns the spellings of tokens. A stream without log-probabilities needs them: if an
    event has several tokens, it has only their joined text.
    """

    def __init__(
        self,
        call: Call,
        events: Events,
        meter: RequestMeter,
        body: Body,
        spell: Spell,
    ) -> None:
        self._call = call
        self._events = events
        self._meter = meter
        self._logprobs: int | None = body.get("logprobs")
        self._closing: Sequence[int] = body.get("stop_token_ids", ())
        self._spell = spell
        # The last token of the event before may be the first half of a character.
        self._halved = False
        self.tokens: deque[Token] = deque()
        """The tokens that have arrived and were not taken."""
        self.ended: Stop | None = None
        """The reason why the text ended after these tokens. None: the text goes on."""

    async def take(self) -> Token | Stop:
        """Wait for the next token, or for the reason of the end."""
        while not self.tokens:
            if self.ended:
                return self.ended
            await self.wait()
        return self.tokens.popleft()

    async def wait(self) -> None:
        """Wait until more of the text has arrived. Raise `MalformedReply` if there is no end."""
        if not await self._read():
            raise self._call.error(MalformedReply, "the stream ended without a finish_reason")

    async def finish(self) -> None:
        """
        If the text has ended, read the usage and the end of the stream, which frees the connection.
        """
        with suppress(EndpointUnavailable):
            while self.ended and await self._read():
                pass

    async def _read(self) -> bool:
        """Read the next event. Return False if there is none."""
        event = await self._events.next()
        if event is None:
            return False
        chunk = parse_chunk(self._call, event, self._logprobs, self._closing)
        self._meter.add(chunk.received, chunk.cached)
        tokens = chunk.tokens
        is_joined = self._logprobs is None and (len(tokens) > 1 or self._halved)
        self.tokens += await self._divided(tokens) if is_joined and tokens else tokens
        self.ended = chunk.ended or self.ended
        return True

    async def _divided(self, tokens: Sequence[Token]) -> list[Token]:
        """
        Return *tokens*, of which the last has all of the text, each with its own text.

        If their spellings do not join to the text, one token has the text of all that do not fit:
        see `divide_text`. Its id becomes -1 if the last token, or that of the event before, may be
        the first half of a character.
        """
        ids = [token.id for token in tokens]
        spellings = await self._spell(ids)
        pieces = [spellings.get(number) or REPLACEMENT for number in ids]
        parts = divide_text(tokens[-1].text, ids, pieces)
        is_halved = parts[-1][0] != pieces[-1]
        may_be_halves = self._halved or is_halved
        self._halved = is_halved
        return [
            Token(part, id=-1 if may_be_halves and part not in ("", piece) else number)
            for piece, (part, number) in zip(pieces, parts, strict=True)
        ]
