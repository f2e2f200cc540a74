"""
From the events of a stream to a step: `TokenStream` yields tokens, `StepBuilder` takes them until
the step ends.

`RequestMeter` counts the tokens and seconds of a request. `generate` opens one stream, and `grow`
writes one step from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeAlias

from ...chain import THINK_END, Chain, Party, Role, Step, Stop, Token, Tokens
from ...errors import EndpointError, EndpointUnavailable, EndpointUnreachable, MalformedReply
from ...events import Called, Fate, Verb
from ...interfaces import REQUEST, RequestContext
from ...markers import opened_by, partial_match
from ...step_ends import StepEnds
from .bodies import Body
from .client import Connection
from .http_errors import Call
from .replies import parse_chunk
from .sse import Events


def step_ends(chain: Chain, stop: Sequence[str] | None) -> StepEnds:
    """
    Return the ends of a write: the *stop* strings, also in blocks; if None, the ends of the steps
    of *chain*.
    """
    return chain.ends if stop is None else StepEnds(tuple(stop), blocks=False)


@dataclass(frozen=True, slots=True)
class Closing:
    """
    What ends the thinking or the reply in a model's stream: its *text*, written as the one token
    *id*, or several (-1).

    The block is *open*, or will be if the model begins by opening one itself. Chains have *spelt*
    in place of the text.
    """

    text: str
    id: int = -1
    open: bool = True
    spelt: str = THINK_END

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings for the server; () if it stops at the token."""
        return (self.text,) if self.id < 0 and self.open else ()

    @property
    def room(self) -> int:
        """The most tokens that a mark has which begins where a step is as long as it may be."""
        return len("".join(self.stops))


Spell: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, str]]]
"""
Spells tokens by their ids, with a request of its own; those that it cannot spell are left out.
"""


OUTSIDE = Closing("", open=False, spelt="")
"""That of an answer, where marks are text."""


class StepBuilder:
    """
    Takes the tokens of the next step of *chain* until it ends, at one of *ends* or at *limit*
    tokens.

    A token that reaches beyond the end is cut there: its id becomes -1, and the rest of its text is
    left out, with the tokens that were only needed to recognise the end. The part of a delimiter
    that *opening* ends in does not count: the model has to write all of it. Each token keeps the
    *top* likeliest tokens of its position. An opening longer than the limit is cut to it. *closing*
    is how the model ends its thinking or its reply; only such a mark, if it begins within the
    limit, may end beyond it.
    """

    def __init__(
        self,
        author: Role,
        vocabulary: str,
        chain: Chain,
        *,
        ends: StepEnds,
        limit: int,
        opening: Sequence[Token] = (),
        top: int = 0,
        closing: Closing = OUTSIDE,
    ) -> None:
        self._author: Role = author
        self._vocabulary = vocabulary
        self._closing = closing
        self._marked = False
        self._held = ""
        self._waiting = list[Token]()
        self._ends = ends
        self._before = chain.text
        self._blocks = chain.totals.blocks
        self._top = top
        self._tokens = list(opening[:limit])
        self._text = "".join(token.text for token in self._tokens)
        self._written_from = self._look = len(self._text)
        self._room = limit - len(self._tokens)
        self._cut = False

    def add(self, token: Token) -> Stop | None:
        """Append *token*; return why the step ends with it, or None if it goes on."""
        if self._held:
            return self._add_held(token)
        if len(token.top) > self._top:
            token = replace(token, top=token.top[: self._top])
        if self._closing.text != self._closing.spelt and token.top:
            token = replace(token, top=tuple([self._neutral(rival) for rival in token.top]))
        text = self._text + token.text
        closed = self._closed(text, token)
        end, self._look = self._ends.search(self._before, text, self._look, self._blocks)
        self._room -= 1
        self._text = text
        self._tokens.append(token)
        if closed >= 0 and (end < 0 or closed <= end):
            self._cut_at(closed)
            if self._closing.text != self._closing.spelt:
                self._close()
            return "end"
        if end >= 0 and self._room >= 0:
            self._cut_at(end)
            return "delimiter"
        if end < 0 and (self._room > 0 or self.in_mark):
            return None
        self._cut_at(
            len("".join([each.text for each in self._tokens[: len(self._tokens) + self._room]]))
        )
        return "length"

    def add_each(self, tokens: Sequence[Token]) -> Stop | None:
        """Append *tokens* until the step ends; return why it ends, or None if it goes on."""
        for token in tokens:
            if stop := self.add(token):
                return stop
        return None

    def hold(self, text: str) -> None:
        """
        Leave *text* out if the model writes it next: the end of the chain, which its server has not
        read.
        """
        self._held = text

    def _add_held(self, token: Token) -> Stop | None:
        """
        Take a token that may be held text. Its first bytes are tokens without text, and wait for
        the rest.
        """
        if self._held.startswith(token.text):
            self._waiting = [*self._waiting, token] if not token.text else []
            self._held = self._held[len(token.text) :]
            return None
        if token.text.startswith(self._held):
            tokens = [replace(token, text=token.text.removeprefix(self._held), id=-1)]
        else:
            tokens = [*self._waiting, token]
        self._held = ""
        self._waiting = []
        return self.add_each(tokens)

    def _closed(self, text: str, token: Token) -> int:
        """
        Where the mark ends that closes the thinking in *text*, whose last part is *token*'s; -1 if
        it does not.
        """
        closing = self._closing
        if (
            closing.text
            and not closing.open
            and (opened := opened_by(self._before + text)) is not None
        ):
            number = closing.id if opened.closing == closing.text else -1
            closing = self._closing = Closing(opened.closing, number)
        if not closing.text or not closing.open:
            return -1
        self._marked = self._marked or closing.id < 0 or token.id == closing.id
        if not self._marked:
            return -1
        # The text of several tokens may be the last one's.
        start = len(text) - len(token.text) - len(closing.text) + 1
        at = text.find(closing.text, max(self._written_from, start))
        return at if at < 0 else at + len(closing.text)

    def _cut_at(self, end: int) -> None:
        """Leave out the text beyond index *end*."""
        beyond = len(self._text) - end
        self._cut = beyond > 0
        self._text = self._text[:end]
        while beyond > 0:
            last = self._tokens.pop()
            beyond -= len(last.text)
            if beyond < 0:
                self._tokens.append(replace(last, text=last.text[:-beyond], id=-1))

    def resume(self) -> None:
        """
        Prepare for another request, after the server has stopped at a delimiter that is no end of
        the step.

        A last token that was cut there is removed, to be written again uncut, with the tokens whose
        text it holds.
        """
        if self._tokens and self._tokens[-1].id < 0:
            length = len(self._tokens)
            last = self._tokens.pop()
            while self._tokens and not self._tokens[-1].text:
                self._tokens.pop()
            self._text = self._text[: len(self._text) - len(last.text)]
            self._look = min(self._look, max(self._written_from, len(self._text)))
            self._room += length - len(self._tokens)

    @property
    def blocks(self) -> bool:
        """
        Whether the ends have blocks: a delimiter in a block does not end the step, though the
        server stops there.
        """
        return self._ends.blocks

    @property
    def room(self) -> int:
        """The number of tokens that the step may still have."""
        return self._room

    def _neutral(self, rival: Token) -> Token:
        return (
            replace(rival, text=self._closing.spelt) if rival.text == self._closing.text else rival
        )

    def _close(self) -> None:
        """Spell the end as chains do: its last token has all of that text, the others none."""
        start = len(self._text) - len(self._closing.text)
        at = 0
        straddled = False
        for place, token in enumerate(self._tokens):
            end = at + len(token.text)
            if end > start:
                straddled = straddled or at < start
                text = token.text[: max(0, start - at)]
                self._tokens[place] = replace(token, text=text, id=-1 if straddled else token.id)
            at = end
        self._tokens[-1] = replace(
            self._tokens[-1], text=self._tokens[-1].text + self._closing.spelt
        )
        self._text = self._text[:start] + self._closing.spelt

    @property
    def in_mark(self) -> bool:
        """Whether the text may end in the beginning of a closing mark, of several tokens."""
        return any(partial_match(self._text, mark) for mark in self._closing.stops)

    @property
    def overran(self) -> bool:
        """Whether the model wrote more text or tokens than the step that `end` returns."""
        return self._cut or bool(self._tokens and not self._tokens[-1].text)

    def so_far(self) -> Step:
        """Return the partial step."""
        return Step(self._text, self._author, "until", tuple(self._tokens), self._vocabulary)

    def end(self, stop: Stop) -> Step:
        """
        Return the step, without the first bytes of a character whose last bytes have not arrived.

        Their tokens have no text and are left out: after half a character, vLLM returns the prompt
        as written text.
        """
        tokens = list(self._tokens)
        while tokens and not tokens[-1].text:
            tokens.pop()
        return Step(self._text, self._author, stop, Tokens.of(tokens, self._text), self._vocabulary)


@dataclass(slots=True)
class RequestMeter:
    """
    Measures one request, and emits `Called` when it is over, whether done, failed or cancelled.

    *prompt*, *cached* and *written* count tokens; *prompt* is as it was sent, whatever the server
    says. *first* is the seconds to the first token, None before it.
    """

    role: Party
    verb: Verb
    observe: Callable[[Called], None]
    clock: Callable[[], float]
    prompt: int = 0
    cached: int = 0
    written: int = 0
    first: float | None = None
    url: str = ""
    started: float = field(init=False)
    request: RequestContext = field(init=False)

    def __enter__(self) -> Self:
        self.started = self.clock()
        self.request = REQUEST.get()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fate: Fate = (
            "done" if exc is None else "failed" if isinstance(exc, Exception) else "cancelled"
        )
        seconds = self.clock() - self.started
        if isinstance(exc, EndpointUnreachable) or (
            isinstance(exc, EndpointError) and exc.status >= 400
        ):
            self.prompt = self.cached = 0  # the server has read nothing
        counts = self.prompt, self.cached, self.written
        purpose = self.request.purpose
        step = self.request.step
        self.observe(
            Called(
                *(self.role, self.verb, fate, self.started, seconds, self.first, *counts, self.url),
                purpose=purpose,
                step=step,
                last_step=step if purpose else -1,
            )
        )

    def add(self, written: int, cached: int = 0) -> None:
        """Count *written* tokens that have just arrived; *cached* is the prompt's, 0 if unknown."""
        if written and self.first is None:
            self.first = self.clock() - self.started
        self.written += written
        self.cached = min(cached or self.cached, self.prompt)


class TokenStream:
    """
    The tokens of one open stream, and then the reason why it ended.

    Without log-probabilities an event of several tokens does not tell their single spellings. It is
    divided by the *spellings* of tokens that arrived alone, by their ids, to which those of this
    stream are added, and for the others by what *spell* returns. If these do not join to its text,
    the last token of those that do not has the text of all, and no id if it, or the last one of the
    event before, may be the first half of a character.
    """

    def __init__(
        self,
        call: Call,
        events: Events,
        tally: RequestMeter,
        logprobs: int | None,
        closing: Sequence[int],
        spellings: dict[int, str],
        spell: Spell,
    ) -> None:
        self._call = call
        self._events = events
        self._tally = tally
        self._logprobs = logprobs
        self._closing = closing
        self._spellings = spellings
        self._spell = spell
        self._tokens: deque[Token] = deque()
        self._ended: Stop | None = None
        self._halved = False  # the last token has no id, as it may be the first half of a character

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
        event = await self._events.next()
        if event is None:
            return False
        piece = parse_chunk(self._call, event, self._logprobs, self._closing)
        self._tally.add(piece.received, piece.cached)
        self._tokens.extend(
            await self._divided(piece.tokens) if self._logprobs is None else piece.tokens
        )
        self._ended = piece.ended or self._ended
        return True

    async def _divided(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """
        Divide the text of the last of *tokens* among all of them, if their spellings are known.
        """
        if not tokens:
            return tokens
        if len(tokens) == 1 and not self._halved:
            self._spellings[tokens[0].id] = tokens[0].text
            return tokens
        unknown = [token.id for token in tokens if self._halved or token.id not in self._spellings]
        fetched = await self._spell(unknown) if unknown else dict[int, str]()
        pieces = [fetched.get(token.id, self._spellings.get(token.id, "")) for token in tokens]
        text = tokens[-1].text
        halved = self._halved
        self._halved = False
        if "".join(pieces) != text:
            places = range(1, len(tokens) if pieces[-1] else 0)
            known_from = next((at for at in places if text.endswith("".join(pieces[at:]))), 0)
            self._halved = not known_from
            last = (known_from or len(tokens)) - 1
            pieces[: last + 1] = [*[""] * last, text.removesuffix("".join(pieces[last + 1 :]))]
            if halved or self._halved:
                tokens = [*tokens[:last], replace(tokens[last], id=-1), *tokens[last + 1 :]]
        return [replace(token, text=piece) for token, piece in zip(tokens, pieces, strict=True)]


@asynccontextmanager
async def generate(
    connection: Connection,
    call: Call,
    body: Body,
    tally: RequestMeter,
    spellings: dict[int, str],
    spell: Spell,
) -> AsyncGenerator[TokenStream]:
    """
    Send *body* and yield the stream of tokens. Leaving the block before its end aborts the request.
    """
    with tally:
        async with connection.stream(call, body) as events:
            closing = body.get("stop_token_ids", ())
            arrivals = TokenStream(
                call, events, tally, body.get("logprobs"), closing, spellings, spell
            )
            yield arrivals
            await arrivals.finish()


async def grow(
    growing: StepBuilder,
    take: Callable[[], Awaitable[Token | Stop]],
    until: Callable[[Step], bool] | None,
) -> Step | None:
    """
    Add tokens from *take* until the step is complete, the stream ends, or *until* returns true for
    the partial step.

    A closing mark has precedence over *until*, which sees no part of it. Return None for an
    incomplete step: the server stopped at a delimiter in a block.
    """
    while True:
        token = await take()
        if isinstance(token, str):
            return None if token == "delimiter" and growing.blocks else growing.end(token)
        if step := grown(growing, token, until):
            return step


def grown(growing: StepBuilder, token: Token, until: Callable[[Step], bool] | None) -> Step | None:
    """Add *token*; return the step if it is complete, or if *until* returns true for it."""
    room = growing.room
    stop = growing.add(token)
    if (
        until
        and growing.room < room
        and stop != "end"
        and not growing.in_mark
        and until(growing.so_far())
    ):
        stop = "until"
    return growing.end(stop) if stop else None
