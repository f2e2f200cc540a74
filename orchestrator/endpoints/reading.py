"""One open request: its tokens as they arrive, and the account of it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from ..chain import Party, Step, Stop, Token
from ..errors import EndpointUnavailable, MalformedReply
from ..events import Called, Fate, Observer, Verb
from ..interfaces import REQUEST, RequestContext
from .client import Connection
from .failures import Call
from .growing import GrowingStep
from .sse import Events
from .wire import Body, Chunk, chunk

MOST_BLANK = 128  # characters of white space in a row that a text in a format may have


@dataclass(slots=True)
class Tally:
    """
    Counts what one request cost, and tells the observer when it is over, whatever became of it.

    *last_step* is the last step that it was read for, where that is another than the first.
    """

    role: Party
    verb: Verb
    observe: Observer
    clock: Callable[[], float]
    prompt: int = 0
    cached: int = 0
    written: int = 0
    first: float | None = None
    url: str = ""
    last_step: int = -1
    started: float = field(init=False)
    request: RequestContext = field(init=False)

    def __enter__(self) -> Self:
        self.started = self.clock()
        self.request = REQUEST.get()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        fate: Fate = "done" if exc is None else "failed" if isinstance(exc, Exception) else "cancelled"
        seconds = self.clock() - self.started
        counts = self.prompt, self.cached, self.written
        purpose, step = self.request.purpose, self.request.step
        last = max(step, self.last_step) if purpose else -1
        self.observe(
            Called(
                *(self.role, self.verb, fate, self.started, seconds, self.first, *counts, self.url),
                purpose=purpose,
                step=step,
                last_step=last,
            )
        )

    def add(self, written: int, prompt: int = 0, cached: int = 0) -> None:
        """Count *written* tokens that have just arrived; *prompt* and *cached*, if known, are the whole request's."""
        if written and self.first is None:
            self.first = self.clock() - self.started
        self.written += written
        self.prompt = prompt or self.prompt
        self.cached = cached or self.cached


class Arrivals:
    """The tokens of one open stream, one by one, and then the reason why it ended."""

    def __init__(
        self, call: Call, events: Events, tally: Tally, logprobs: int | None, *, formatted: bool = False
    ) -> None:
        self._call, self._events, self._tally, self._logprobs = call, events, tally, logprobs
        self._blank = 0 if formatted else None
        self._tokens: deque[Token] = deque()
        self._ended: Stop | None = None

    def reached(self, step: int) -> None:
        """Note the last *step* that the request wrote for, if that is not the one that it was opened for."""
        self._tally.last_step = step

    async def take(self) -> Token | Stop:
        """Wait for the next token, or for the end."""
        while not self._tokens:
            if self._ended:
                return self._ended
            if not await self._read():
                raise self._call.error(MalformedReply, "the stream ended without a finish_reason")
        return self._tokens.popleft()

    async def finish(self) -> None:
        """Read what follows the text if that has ended: the usage, and the end that frees the connection."""
        with suppress(EndpointUnavailable):
            while self._ended and await self._read():
                pass

    async def _read(self) -> bool:
        event = await self._events.next()
        if event is None:
            return False
        piece = chunk(self._call, event, self._logprobs)
        self._tally.add(piece.received, piece.prompt, piece.cached)
        self._tokens.extend(piece.tokens)
        self._ended = piece.ended or self._ended
        if self._blank is not None:
            self._blank = _blank(self._call, self._blank, piece.tokens)
        return True


def _blank(call: Call, before: int, tokens: Iterable[Token]) -> int:
    """
    Count the white space that a text in a format ends in: *before* these *tokens*, and with them.

    Raise `MalformedReply` for more than any format needs. A grammar allows as much of it as the model likes, and one
    that was not told to write JSON may like nothing else.
    """
    blank = before
    for token in tokens:
        said = token.text.rstrip()
        blank = len(token.text) - len(said) + (0 if said else blank)
    if blank > MOST_BLANK:
        raise call.error(
            MalformedReply,
            f"it was asked for JSON and wrote {blank} characters of white space in a row: say in the prompt what JSON "
            "is wanted, or start vLLM with --structured-outputs-config "
            '\'{"backend": "xgrammar", "disable_any_whitespace": true}\'',
        )
    return blank


@asynccontextmanager
async def generate(connection: Connection, call: Call, body: Body, tally: Tally) -> AsyncGenerator[Arrivals]:
    """Send *body* and yield the tokens of the answer. Leaving the block before they ended aborts the request."""
    with tally:
        async with connection.stream(call, body) as events:
            formatted = "structured_outputs" in body
            arrivals = Arrivals(call, events, tally, body.get("logprobs"), formatted=formatted)
            yield arrivals
            await arrivals.finish()


async def grow_each(
    connection: Connection, call: Call, body: Body, tally: Tally, growing: Sequence[GrowingStep]
) -> tuple[Step | None, ...]:
    """
    Send *body*, which has a prompt for each of *growing*, and let all of them grow until they are complete.

    None stands for a step that is not, as the server stopped at a delimiter within a block.
    """
    steps: dict[int, Step | None] = {}
    with tally:
        async with connection.stream(call, body) as events:
            while (event := await events.next()) is not None:
                piece = chunk(call, event, body.get("logprobs"))
                tally.add(piece.received, piece.prompt, piece.cached)
                if not 0 <= piece.place < len(growing):
                    raise call.error(MalformedReply, f"an answer to prompt {piece.place} of {len(growing)}")
                if piece.place not in steps and (grown := _grown(growing[piece.place], piece)):
                    steps[piece.place] = grown[0]
        if len(steps) < len(growing):
            raise call.error(MalformedReply, "the stream ended without a finish_reason for every prompt")
    return tuple([steps[place] for place in range(len(growing))])


def _grown(growing: GrowingStep, piece: Chunk) -> tuple[Step | None] | None:
    """Let a step grow by a piece; return it if that completes it, and no step if the server stopped too early."""
    for token in piece.tokens:
        if stop := growing.add(token):
            return (growing.end(stop),)
    return (_ended(growing, piece.ended),) if piece.ended else None


def _ended(growing: GrowingStep, stop: Stop) -> Step | None:
    """What a stream that ended leaves: a step, or none if it stopped at a delimiter within a block."""
    return None if stop == "delimiter" and growing.blocks else growing.end(stop)


async def grow(
    growing: GrowingStep, take: Callable[[], Awaitable[Token | Stop]], until: Callable[[Step], bool] | None
) -> Step | None:
    """
    Let a step grow until it is complete, the stream ends, or *until* says so; the end of thinking goes before it.

    Return None if it is not complete, as the server stopped at a delimiter within a block.
    """
    while True:
        token = await take()
        if isinstance(token, str):
            return _ended(growing, token)
        stop = growing.add(token)
        if until and stop != "end" and until(growing.so_far()):
            return growing.end("until")
        if stop:
            return growing.end(stop)
