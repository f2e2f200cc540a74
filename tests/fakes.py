"""
A clock that jumps and models that follow a script: latency is arithmetic, and every run is the same
run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary
from zlib import crc32

import pytest

from lab.virtual_clock import run as run
from stepspec.orchestrator.chain import DELIMITER, THINK_END, Chain, Role, Step, Stop, Token
from stepspec.orchestrator.endpoints.interfaces import SingleModel
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.orchestrator.events import Answered, Called, Committed, Event, Fate, Started, Verb
from stepspec.orchestrator.interfaces import OPEN_REQUESTS, REQUEST
from stepspec.orchestrator.step_builder import (
    OUTSIDE,
    Closing,
    StepBounds,
    StepBuilder,
    grow,
    step_ends,
)

P = ParamSpec("P")
T = TypeVar("T")
Previous = tuple[str, ...]
Until = Callable[[Step], bool]

_TOKEN = re.compile(r"</think>|[.!?]?\n\n| ?\w+| ?[^\w\s]|\s")


@cache
def tokenise(text: str) -> tuple[str, ...]:
    """
    Split *text* into words, marks and delimiters, which join to it. A mark and a delimiter may be
    one token.
    """
    return tuple(_TOKEN.findall(text))


def counting(role: Role, length: int) -> Callable[[Previous], str]:
    """Script *length* paragraphs, of which the last one ends the thinking."""

    def script(previous: Previous) -> str:
        return f"The {role} one says {len(previous)}." + (
            DELIMITER if len(previous) + 1 < length else f"\n{THINK_END}"
        )

    return script


def saying(*paragraphs: str) -> Callable[[Previous], str]:
    """Script *paragraphs* in this order, and repeat the last one."""
    return lambda previous: paragraphs[min(len(previous), len(paragraphs) - 1)]


@dataclass(eq=False)
class ScriptedModel(SingleModel):
    """
    A model that writes what *script* says, token by token, as a pure function of the chain's text.

    *script* maps the paragraphs so far to the next one with its ending; if that is neither a
    delimiter nor the end of the thinking, the model ends its turn. After the thinking comes
    *answer*. *judge* gives choices their probabilities, *logprob* gives one to a token after a
    text, *rivals* names the likeliest tokens of its place, best first (if none, the model's own
    choice is alone), and *fails* the failure of a request that is to have one.

    A request takes *latency* seconds and then *pace* per token, times *slowdown*, one to read
    *reading*; one that is cancelled takes *closing* to go away. A *sticky* model leaves requests
    open where it may, so that a write that goes on waits for no latency. *log* tells the requests
    in order, and may be shared; *open* counts those that are.
    """

    role: Role
    script: Callable[[Previous], str]
    answer: str = "\n\nSo it is \\boxed{42}."
    judge: Callable[[Chain, str], Mapping[str, float]] = lambda chain, question: {"9": 1.0}
    logprob: Callable[[str, str], float] = lambda before, token: -0.1
    rivals: Callable[[str, str], Sequence[Token]] = lambda before, token: ()
    fails: Callable[[Verb, Chain], Exception | None] = lambda verb, chain: None
    latency: Callable[[Chain], float] = lambda chain: 1.0
    reading: Callable[[Chain], float] = lambda chain: 1.0
    pace: float = 0.0
    slowdown: Callable[[], float] = lambda: 1.0
    closing: float = 0.0
    sticky: bool = False
    observe: Callable[[Event], None] = lambda event: None
    log: list[str] = field(default_factory=lambda: list[str]())
    open: int = 0

    def __post_init__(self) -> None:
        self._kept: WeakKeyDictionary[AsyncExitStack, _Request] = WeakKeyDictionary()

    def leave(self) -> None:
        self.log.append(f"{self.role} leaves")

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = 512,
        until: Until | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        growing = self._builder(chain, opening, stop, limit, top)
        if not growing.room:
            return growing.end("length")
        stack = OPEN_REQUESTS.get() if self.sticky else None
        request = await self._request(chain, growing.so_far().text, stack)
        try:
            step = await grow(growing, lambda: request.next(top), until)
            assert step is not None  # None stands for a server that stopped at a stop string.
        except BaseException as exc:
            await request.close("failed" if isinstance(exc, Exception) else "cancelled")
            raise
        if stack is None or step.stop == "end":
            await request.close("done")
        else:
            self._kept[stack] = request
        return step

    def _builder(
        self, chain: Chain, opening: str, stop: Sequence[str] | None, limit: int, top: int = 0
    ) -> StepBuilder:
        """Begin the next step of *chain*; to ask for less than one token is a mistake."""
        assert limit >= 1
        closing = OUTSIDE if chain.closed else Closing(THINK_END, open=chain.thinks)
        begun = self.read(chain.text, opening)
        bounds = StepBounds(step_ends(chain, stop), limit, top, closing)
        return StepBuilder(self.role, "words", chain, bounds, begun)

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        await self._prefill("score", chain, "".join(spans), written=0)
        texts = (chain.text + "".join(spans[:place]) for place in range(len(spans)))
        return [self.read(before, span, top) for before, span in zip(texts, spans, strict=True)]

    async def ask(
        self, chain: Chain, question: str, choices: Sequence[str], *, opening: str = ""
    ) -> Mapping[str, float]:
        """
        Ask *judge*: choices that it does not name have the probability 0, and what else it names
        went elsewhere.
        """
        assert choices
        assert all(len(tokenise(choice)) == 1 for choice in choices)
        await self._prefill("ask", chain, question + opening, written=1)
        found = self.judge(chain, question)
        assert sum(found.values()) <= 1 + 1e-9
        return {choice: found.get(choice, 0.0) for choice in choices}

    def next(self, text: str) -> str | None:
        """Return the token that this model writes after *text*; None if it ends its turn there."""
        if THINK_END in text:
            pieces = tokenise(self.answer)
            written = text.partition(THINK_END)[2]
        else:
            *before, written = text.split(DELIMITER)
            pieces = tokenise(self.script(tuple(before)))
        place = len(tokenise(written))
        if place < len(pieces):
            return pieces[place]
        return pieces[-1] if pieces and pieces[-1].endswith((DELIMITER, THINK_END)) else None

    def read(self, before: str, span: str, top: int = 0) -> tuple[Token, ...]:
        """Make tokens of *span* as it stands after the text *before*."""
        tokens: list[Token] = []
        for piece in tokenise(span):
            tokens.append(self.token(before, piece, 1 if piece == self.next(before) else 2, top))
            before += piece
        return tuple(tokens)

    def token(self, before: str, piece: str, rank: int, top: int = 0) -> Token:
        token = Token(piece, self.logprob(before, piece), rank, crc32(piece.encode()) >> 1)
        if not top:
            return token
        rivals = self.rivals(before, piece) or (self.token(before, self.next(before) or piece, 1),)
        return replace(token, top=tuple(rivals[:top]))

    async def _prefill(self, verb: Verb, chain: Chain, more: str, written: int) -> None:
        request = _Request(self, verb, chain, more)
        try:
            await request.arrive(self.reading(chain))
            request.written = written
        except BaseException as exc:
            await request.close("failed" if isinstance(exc, Exception) else "cancelled")
            raise
        await request.close("done")

    async def _request(self, chain: Chain, opening: str, stack: AsyncExitStack | None) -> _Request:
        """Go on with the request that was left open, or open one."""
        kept = self._kept.pop(stack, None) if stack is not None else None
        if kept is not None and kept.text == chain.text + opening:
            self.log.append(f"{self.role} goes on {len(chain.steps)}")
            kept.last_step = REQUEST.get().step
            return kept
        if kept is not None:
            await kept.close("cancelled")
        request = _Request(self, "write", chain, opening)
        if stack is not None:
            stack.push_async_callback(request.close, "cancelled")
        return request


class _Request:
    """One request while it is open. When it is over, the observer hears of it, once."""

    def __init__(self, model: ScriptedModel, verb: Verb, chain: Chain, more: str) -> None:
        self._model = model
        self._chain = chain
        self._verb: Verb = verb
        self._name = f"{model.role} {verb} {len(chain.steps)}"
        self._started = asyncio.get_running_loop().time()
        self._first = 0.0
        self._over = False
        self._context = REQUEST.get()
        self.last_step = REQUEST.get().step
        self.text = chain.text + more
        self.written = 0
        self._prompt = len(tokenise(self.text))
        model.open += 1
        model.log.append(self._name)

    async def arrive(self, seconds: float) -> None:
        """Wait until the server begins to answer."""
        await asyncio.sleep(seconds)
        failure = self._model.fails(self._verb, self._chain)
        if failure is not None:
            raise failure
        self._first = asyncio.get_running_loop().time() - self._started

    async def next(self, top: int = 0) -> Token | Stop:
        """Wait for the next token; "end" if there is none."""
        if not self.written:
            await self.arrive(self._model.latency(self._chain))
        if self._model.pace:
            await asyncio.sleep(self._model.pace * self._model.slowdown())
        token = self.write(self.text, top)
        self.text += token.text if token else ""
        return token or "end"

    def write(self, text: str, top: int = 0) -> Token | None:
        """Make the token after *text*; None if the turn ends there."""
        piece = self._model.next(text)
        if piece is None:
            return None
        self.written += 1
        return self._model.token(text, piece, 1, top)

    async def close(self, fate: Fate) -> None:
        if self._over:
            return
        self._over = True
        try:
            await asyncio.sleep(self._model.closing if fate == "cancelled" else 0)
        finally:
            self._model.open -= 1
            self._model.log.append(f"{self._name} {fate}")
            seconds = asyncio.get_running_loop().time() - self._started
            first = self._first if self.written else None
            called = Called(
                *(
                    self._model.role,
                    self._verb,
                    fate,
                    self._started,
                    seconds,
                    first,
                    self._prompt,
                    0,
                    self.written,
                ),
                purpose=self._context.purpose,
                step=self._context.step,
                last_step=self.last_step,
            )
            self._model.observe(called)


def jumping(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run *test* on a clock that jumps; it must leave no task."""

    @wraps(test)
    def running(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return running


def constructed(kind: type[T], monkeypatch: pytest.MonkeyPatch) -> list[T]:
    """The list to which every object of *kind* is appended that is constructed from now on."""
    objects = list[T]()
    init = kind.__init__

    @wraps(init)
    def appending(self: T, *args: Any, **kwargs: Any) -> None:
        objects.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(kind, "__init__", appending)
    return objects


def replay(events: Iterable[Event]) -> Chain:
    """Rebuild the chain from the events of one run; its last steps are the answer."""
    chain: Chain | None = None
    for event in events:
        match event:
            case Started(messages=messages, tools=tools, thinks=thinks):
                chain = Chain(messages, tools=tools, thinks=thinks)
            case Committed(step=step) | Answered(step=step) if chain is not None:
                chain = chain.extend(step)
            case _:
                pass
    if chain is None:
        raise ConfigurationError("the trace does not begin with the event Started")
    return chain
