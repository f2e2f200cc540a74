"""A `Model` and the endpoint of a simulation. They answer from scripts, at a server's pace."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

from stepspec.orchestrator.chain import (
    DELIMITER,
    THINK_END,
    Chain,
    Message,
    Role,
    Step,
    Stop,
    Token,
    Tool,
    Toolset,
)
from stepspec.orchestrator.endpoints import GREEDY, Endpoint, Sampling
from stepspec.orchestrator.endpoints.chat_template import Template
from stepspec.orchestrator.endpoints.interfaces import (
    Format,
    SingleModel,
    or_now,
)
from stepspec.orchestrator.endpoints.metrics import QueueGauges
from stepspec.orchestrator.endpoints.request_context import RUN, priority
from stepspec.orchestrator.errors import ConfigurationError, MissingCapability
from stepspec.orchestrator.events import Called, Fate, Observer, Verb
from stepspec.orchestrator.interfaces import DEFAULT_LIMIT, OPEN_REQUESTS, REQUEST, RequestContext
from stepspec.policies.specreason import DIGITS

from ..script import Script, Turn
from .server import Request, SimulatedServer

T = TypeVar("T")

ROOM = 10**9  # tokens of context: no chain is too long
WORD = "w"  # a token of a draft
MENDED = "v"  # a token of a step that replaces a draft
CERTAIN = -0.01  # nats
UNSURE = -9.0  # nats
WRONG = -20.0  # nats
NUMBER = re.compile(rf"(\d+)[^{WORD}{MENDED}\d]*")
"""The last token of a turn, which has the number of the turn."""
PIECE = re.compile(rf"[{WORD}{MENDED}]|[^{WORD}{MENDED}]+")
"""A token."""


@cache
def words(letter: str, count: int) -> tuple[Token, ...]:
    return (Token(letter, CERTAIN, 1, 1),) * count


def turn_place(chain: Chain) -> tuple[int, int]:
    """Return the number of the turn that *chain* has come to, and its tokens in the chain."""
    offset = 0
    for step in reversed(chain.steps):
        numbers = list(NUMBER.finditer(step.text))
        if numbers:
            offset += len(PIECE.findall(step.text[numbers[-1].end() :]))
            return int(numbers[-1][1]) + 1, offset
        offset += len(step.tokens)
    return 0, offset


def begins(steps: Sequence[Step], seen: Sequence[Step]) -> int:
    """Return how many tokens *steps* and the steps *seen* share at their beginnings."""
    tokens = 0
    for step, other in zip(steps, seen, strict=False):
        if not other.text.startswith(step.text):
            break
        tokens += len(step.tokens)
    return tokens


@dataclass(eq=False)
class _Open:
    """An open request of a model."""

    model: SimulatedModel
    """The model."""
    verb: Verb
    """What the model does."""
    request: Request
    """The request at the server."""
    context: RequestContext
    """The purpose and the step of the request."""
    started: float
    """When the request began, in seconds of its run."""
    last_step: int
    """The number of the last step that the request wrote."""
    kept: bool = False
    """Whether the request stays open for another step."""
    taken: int = 0
    """Tokens that were taken from the request."""
    expected: tuple[Step, ...] = ()
    """The steps of the chain that the next write has to continue."""
    began: float = field(default_factory=lambda: _now())
    """When the request began, on the clock of the event loop."""
    idle: bool = False
    """Whether the request waits for another write."""
    over: bool = False
    """Whether the request has ended."""

    def continues(self, chain: Chain) -> bool:
        return self.idle and not self.over and chain.steps == self.expected

    def end(self, fate: Fate) -> None:
        """Close the request, and emit its event, once."""
        if not self.over:
            self.over = True
            self.model.finish(self, fate)

    async def close(self) -> None:
        self.end("done" if self.idle else "cancelled")


class SimulatedModel(SingleModel):
    """The `Model` of one run on one *server*. It writes and judges as the problem's script says."""

    def __init__(
        self,
        endpoint: SimulatedEndpoint,
        server: SimulatedServer,
        observe: Observer,
        clock: Callable[[], float],
        *,
        sticky: bool,
    ) -> None:
        self._endpoint = endpoint
        self._server = server
        self._sticky = sticky
        self._observe = observe
        self._clock = clock
        self._streams: WeakKeyDictionary[AsyncExitStack, _Open] = WeakKeyDictionary()
        self._seen: tuple[Step, ...] = ()  # the chain that the server read or wrote last

    @property
    def role(self) -> Role:
        return self._endpoint.role

    # The verbs

    async def write(
        self,
        chain: Chain,
        *,
        stop: Sequence[str] | None = None,
        limit: int = DEFAULT_LIMIT,
        until: Callable[[Step], bool] | None = None,
        opening: str = "",
        top: int = 0,
    ) -> Step:
        """
        Write what the script has here. *until* sees the first token and the whole step.

        Raise `ConfigurationError` if there is an *opening*: scripts have no such steps.
        """
        if opening:
            raise ConfigurationError("a simulation writes no step that has an opening")
        step = self._next(chain, stop, limit)
        stack = OPEN_REQUESTS.get() if self._sticky else None
        stream = self._streams.get(stack) if stack else None
        if stream is None or not stream.continues(chain):
            if stream is not None and stream.idle:
                stream.end("done")
            kept = stack is not None and (stream is None or stream.over)
            stream = await self._open("write", chain, 0, len(step.tokens))
            if stack is not None and kept:
                stream.kept = True
                self._streams[stack] = stream
                stack.push_async_callback(stream.close)
        stream.idle = False
        stream.last_step = REQUEST.get().step
        with _ending(stream):
            more = 0
            if step.stop != "end":
                more = len(self._next(chain.extend(step), stop, limit).tokens)
            return await self._take(stream, chain, step, until, more)

    async def _take(
        self,
        stream: _Open,
        chain: Chain,
        step: Step,
        until: Callable[[Step], bool] | None,
        more: int,
    ) -> Step:
        """Wait until *stream* has written *step*. The next step may have *more* tokens."""
        request = stream.request
        end = stream.taken + len(step.tokens)
        grown = chain.extend(step)
        goes_on = stream.kept and step.stop != "end"
        if goes_on and not request.ended:
            self._server.extend(request, end + more)
        if until is not None:
            await self._server.reach(request, stream.taken + 1)
            until(
                Step(
                    step.tokens[0].text,
                    self.role,
                    "until",
                    step.tokens[:1],
                )
            )
        await self._server.reach(request, end)
        stream.taken = end
        stream.expected = grown.steps
        stream.idle = True
        self._seen = grown.steps
        if not goes_on or (request.ended and end >= request.written):
            stream.end("done")
        if until is not None and step.stop == "length" and until(step):
            return replace(step, stop="until")
        return step

    async def score(self, chain: Chain, *spans: str, top: int = 0) -> list[tuple[Token, ...]]:
        """Agree with the tokens of each span up to the first at which the models differ."""
        script = self._endpoint.script(chain)
        pieces = [PIECE.findall(span) for span in spans]
        await self._read("score", chain, len(pieces[0]) + script.question)
        agreements = [_agreements(script, *turn_place(chain)) for _ in spans]
        if len(spans) == 2:  # BiLD's unsure token follows the first span
            agreements[1] = agreements[0]
        return [
            tuple(_scored(piece, agreed) for piece, agreed in zip(some, agreeing, strict=False))
            for some, agreeing in zip(pieces, agreements, strict=True)
        ]

    async def ask(
        self,
        chain: Chain,
        question: str,
        choices: Sequence[str],
        *,
        opening: str = "",
    ) -> Mapping[str, float]:
        """
        Return the probability of each of *choices*.

        They are grades of the last step, numbers of the first bad step, or "Yes" and "No".
        """
        script = self._endpoint.script(chain)
        end = min(turn_place(chain)[0], len(script.turns))
        turn = script.turns[end - 1]
        await self._read("ask", chain, script.question)
        if "Yes" in choices:
            chosen = "Yes" if turn.accepted else "No"
            return {choice: float(choice == chosen) for choice in choices}
        if len(choices) < len(DIGITS):
            judged = script.turns[end - len(choices) + 1 : end]
            bad = next((place for place, each in enumerate(judged, 1) if not each.accepted), 0)
            return {choice: float(choice == str(bad)) for choice in choices}
        grade = turn.grade
        if grade is None:
            grade = 9.0 if turn.accepted else 0.0
        low = min(8, int(grade))
        shares = {str(low): 1 - (grade - low), str(low + 1): grade - low}
        return {choice: shares.get(choice, 0.0) for choice in choices}

    # The script

    def _next(
        self,
        chain: Chain,
        stop: Sequence[str] | None,
        limit: int,
    ) -> Step:
        """
        Return what this model writes after *chain*: the rest of a turn, at most *limit* tokens.

        With an empty *stop* the model goes on with the next turn.
        """
        number, offset = turn_place(chain)
        turns = self._endpoint.script(chain).turns
        tokens: list[Token] = []
        reason: Stop = "delimiter" if stop is None else "length"
        while len(tokens) < limit:
            turn = turns[min(number, len(turns) - 1)]
            if self.role == "small" and turn.author == "large" and not chain.closed:
                break
            letter, rest, ends = self._rest(turn, offset)
            room = limit - len(tokens)
            if room < rest:
                tokens += words(letter, room)
                reason = "length"
                break
            tokens += words(letter, rest - 1)
            unsure = self.role == "small" and turn.stop == "until"
            ending = DELIMITER
            if ends:
                ending = "" if chain.closed else THINK_END
            tokens.append(
                Token(
                    f"{number}{ending}",
                    UNSURE if unsure else CERTAIN,
                    1,
                    1,
                )
            )
            if ends:
                reason = "end"
                break
            if unsure:
                reason = "length"
                break
            if stop is None:
                break
            number += 1
            offset = 0
        if not tokens:
            return Step(
                THINK_END,
                "small",
                "end",
                (Token(THINK_END, CERTAIN, 1, 1),),
            )
        return Step(
            "".join(token.text for token in tokens),
            self.role,
            reason,
            tuple(tokens),
        )

    def _rest(self, turn: Turn, offset: int) -> tuple[str, int, bool]:
        """
        How this model goes on after *offset* tokens of a *turn*.

        Return the letter of its tokens, how many are left, and whether they end the turn.
        """
        if self.role == "small":
            return WORD, max(1, turn.draft - offset), turn.stop in ("end", "open")
        letter = WORD if turn.accepted else MENDED
        if offset in (0, turn.kept):
            return letter, turn.repair or turn.draft, turn.ends
        return letter, max(1, turn.draft - offset), turn.ends

    # Requests

    async def _read(self, verb: Verb, chain: Chain, more: int) -> None:
        """Let the server read *chain* and *more* tokens."""
        call = await self._open(verb, chain, more, 1)
        with _ending(call):
            await self._server.reach(call.request, 1)
        self._seen = chain.steps
        call.end("done")

    async def _open(
        self,
        verb: Verb,
        chain: Chain,
        more: int,
        most: int,
    ) -> _Open:
        prompt = self._endpoint.script(chain).prompt
        shared = prompt + begins(chain.steps, self._seen)
        context = REQUEST.get()
        request = Request(
            run=self,
            prompt=prompt + chain.tokens + more,
            most=most,
            shared=shared,
            priority=priority(context, RUN.get()) or 0,
        )
        call = _Open(
            self,
            verb,
            request,
            context,
            self._clock(),
            context.step,
        )
        with _ending(call):
            costs = self._server.costs
            seconds = costs.per_request
            if verb != "write":
                seconds += costs.per_verdict
            await asyncio.sleep(seconds)
            self._server.submit(request)
        return call

    def finish(self, call: _Open, fate: Fate) -> None:
        """Close the request of *call*, and tell the observer."""
        request = call.request
        self._server.close(request)
        first = None if request.first is None else request.first - call.began
        called = Called(
            self.role,
            call.verb,
            fate,
            call.started,
            (request.closed or _now()) - call.began,
            first,
            request.prompt,
            request.cached,
            request.written,
            purpose=call.context.purpose,
            step=call.context.step,
            last_step=call.last_step,
        )
        self._observe(called)


@contextmanager
def _ending(call: _Open) -> Generator[None]:
    """End *call* if the block fails or is cancelled."""
    try:
        yield
    except BaseException as exc:
        call.end("failed" if isinstance(exc, Exception) else "cancelled")
        raise


def _now() -> float:
    return asyncio.get_running_loop().time()


def _agreements(script: Script, number: int, offset: int) -> Iterator[bool]:
    """
    Yield whether the large model agrees with each token of drafts, from *offset* of a turn on.

    It agrees with no token after the first one at which the models differ.
    """
    agreed = True
    while True:
        turn = script.turns[min(number, len(script.turns) - 1)]
        for place in range(offset, max(turn.draft, offset + 1)):
            agreed = agreed and place not in turn.differs
            yield agreed
        number += 1
        offset = 0


def _scored(piece: str, agreed: bool) -> Token:
    if agreed:
        return Token(piece, CERTAIN, 1, 1, (Token(piece, CERTAIN, 1, 1),))
    return Token(piece, WRONG, 2, 1, (Token("?", CERTAIN, 1, 2),))


class SimulatedEndpoint:
    """The model of *role* on a simulated *server*. *scripts* has the texts of the problems."""

    vocabulary = "simulated"
    room = ROOM
    known = True
    usable = True
    template = Template(turn="", answer="", thinks=True)

    def __init__(
        self,
        role: Role,
        server: SimulatedServer,
        scripts: Mapping[str, Script],
    ) -> None:
        self.role: Role = role
        self.name = f"simulated {role}"
        self._server = server
        self._scripts = scripts
        self.settings = Endpoint(role=role, url="http://simulated")
        self.health = SimpleNamespace(refuses=None)
        self.down: Mapping[str, str] = {}

    def script(self, chain: Chain) -> Script:
        """Return the script of the problem, which a method may have extended by more lines."""
        return self._scripts[chain.messages[-1].content.partition("\n")[0]]

    def model(
        self,
        sampling: Sampling = GREEDY,
        *,
        observe: Observer = lambda event: None,
        clock: Callable[[], float] | None = None,
        format: Format | None = None,
    ) -> SimulatedModel:
        """Make the model of one run."""
        return SimulatedModel(
            self,
            self._server,
            observe,
            or_now(clock),
            sticky=not sampling.samples_by_seed,
        )

    async def call(self, verb: Callable[[SimulatedEndpoint], Awaitable[T]]) -> T:
        """Call *verb* on the server, which is the only one."""
        return await verb(self)

    async def count(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> int:
        return self._scripts[messages[-1].content].prompt

    async def thinks(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> bool:
        return self.template.thinks

    async def tool_format(self, toolset: Toolset) -> Format | None:
        raise MissingCapability("a simulated server calls no tools")

    async def queue(self) -> QueueGauges | None:
        return QueueGauges(
            self._server.running,
            self._server.waiting,
            self._server.costs.cache,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass
