"""
One simulated server with continuous batching, a queue, chunked prompts and a prefix cache.

A server works in passes, on the clock of the event loop. Before each pass it admits waiting
requests in their order while there are sequences and memory. A pass gives every writing sequence
its next token, and reads prompts with the rest of its budget of tokens. With the last token of its
prompt a request writes its first token. Requests that come during a pass wait for its end. That is
vLLM's V1 scheduler without preemption: memory is reserved when a request is admitted.

Nothing happens at most passes, and they need no event. The clock jumps to the next pass at which a
request has written what somebody waits for.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import TypeAlias

from stepspec.orchestrator.errors import ConfigurationError

from .costs import ServerCosts

Waiter: TypeAlias = "asyncio.Future[None] | None"  # None: the request ends there


@dataclass(eq=False)
class Request:
    """A request to a server."""

    run: object
    """What shares a prefix cache: the run of the request."""
    prompt: int
    """Tokens that it reads."""
    most: int
    """Tokens that it writes."""
    shared: int = 0
    """Tokens at the beginning of the prompt that an earlier request of the run had."""
    priority: int = 0
    """Requests of a lower number are admitted first."""
    cached: int = 0
    """Tokens of the prompt that the server had when the request was admitted."""
    unread: int = 0
    """Tokens of the prompt that are left to read."""
    began: int | None = None
    """The number of the pass that wrote the first token; None: not yet."""
    first: float | None = None
    """When the first token was written; None: not yet."""
    written: int = 0
    """Tokens that were written when the request ended."""
    ended: bool = False
    """Whether all is written, or the request was closed."""
    closed: float | None = None
    """When the request ended; None: not yet."""
    awaited: list[tuple[int, Waiter]] = field(default_factory=list[tuple[int, "Waiter"]])
    """Who waits for how many tokens, before the first token is written."""


@dataclass(eq=False)
class Card:
    """What passes run on."""

    servers: list[SimulatedServer] = field(default_factory=list["SimulatedServer"])
    """The servers that share the card."""
    together: bool = False
    """Whether the passes of several servers run together and slow each other, or take turns."""
    _free: bool = True
    _queue: deque[Callable[[], None]] = field(default_factory=deque[Callable[[], None]])

    def take(self, begin: Callable[[], None]) -> None:
        """Call *begin* as soon as the card is free."""
        if self._free or self.together:
            self._free = False
            begin()
        else:
            self._queue.append(begin)

    def give(self) -> None:
        if self._queue:
            self._queue.popleft()()
        else:
            self._free = True


@dataclass(eq=False)
class Resident:
    """One run in the memory of a server."""

    tokens: int = 0
    """Its tokens in the memory."""
    requests: int = 0
    """Its requests that run."""


class SimulatedServer:
    """One server with these *costs*. None as its *card* stands for a card of its own."""

    def __init__(self, costs: ServerCosts, card: Card | None = None) -> None:
        self.costs = costs
        self._card = card or Card()
        self._card.servers.append(self)
        self._card.together = all(server.costs.beside is not None for server in self._card.servers)
        self.busy = 0.0
        """Seconds of all passes."""
        self.passes = 0
        """The number of the passes."""
        self.read = 0
        """Prompt tokens that were not cached."""
        self.sequences = 0
        """The sum of the sequences that got a token, over all passes."""
        self._waiting: list[tuple[int, int, Request]] = []
        self._reading: list[Request] = []
        self._writing: set[Request] = set()
        self._context = 0.0  # tokens that the writing sequences attend to
        # the least recently used first
        self.resident: OrderedDict[object, Resident] = OrderedDict()
        self._awaited: list[tuple[int, int, Request, Waiter]] = []  # by the number of the pass
        self._order = itertools.count()
        self._active = False  # it has the card, or waits for it
        self._timer: asyncio.TimerHandle | None = None
        # when the current passes began, and how many there are
        self._since = 0.0
        self._span = 0
        self._chunks: list[tuple[Request, int]] = []  # prompts that the current pass reads
        # of the first current pass: tokens, context, sequences
        self._prompts = 0
        self._attended = 0.0
        self._gain = 0
        self._slowed = 1.0  # how many times as long the current passes take as on a card of its own

    @property
    def working(self) -> bool:
        """Whether a pass is under way."""
        return self._timer is not None

    @property
    def reading(self) -> bool:
        """Whether the pass under way reads a prompt."""
        return self.working and self._prompts > 1

    @property
    def running(self) -> int:
        return len(self._reading) + len(self._writing)

    @property
    def waiting(self) -> int:
        return sum(not request.ended for _, _, request in self._waiting)

    # What clients do

    def submit(self, request: Request) -> None:
        """Queue *request*. Raise `ConfigurationError` if it never fits into the memory."""
        if self.costs.cache is not None and request.prompt + request.most > self.costs.cache:
            tokens = request.prompt + request.most
            raise ConfigurationError(
                f"a request of {tokens} tokens does not fit into a cache of {self.costs.cache}",
            )
        heapq.heappush(self._waiting, (request.priority, next(self._order), request))
        self._await(request, request.most, None)
        if not self._active:
            self._active = True
            asyncio.get_running_loop().call_soon(self._card.take, self._begin)
        self._cut_short()

    def reach(self, request: Request, count: int) -> asyncio.Future[None]:
        """Return a future that is done as soon as *request* has written *count* tokens."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.tokens(request) >= count:
            reached.set_result(None)
        else:
            self._await(request, count, reached)
            self._cut_short()
        return reached

    def extend(self, request: Request, most: int) -> None:
        """Let a running *request* write up to *most* tokens."""
        request.most = most
        self._await(request, most, None)

    def tokens(self, request: Request) -> int:
        """Return how many tokens *request* has written by now."""
        if request.ended or request.began is None:
            return request.written
        return self._tokens(request, self.passes + self._done())

    def close(self, request: Request) -> None:
        """End *request*, wherever it is."""
        if request.ended:
            return
        request.written = self.tokens(request)
        request.ended = True
        request.closed = asyncio.get_running_loop().time()
        if request in self._writing:
            self._writing.remove(request)
            self._context -= request.prompt + self._gained(request, self.passes)
        elif request in self._reading:
            self._reading.remove(request)
        else:
            return
        resident = self.resident[request.run]
        resident.requests -= 1
        if not resident.requests:
            resident.tokens = request.prompt + request.written
        self._cut_short()

    # Passes

    def _begin(self) -> None:
        """Begin as many passes as will be alike, or hand the card on if there is nothing to do."""
        self._admit()
        if not (self._reading or self._writing):
            self._active = False
            self._card.give()
            return
        room = self.costs.tokens - len(self._writing)
        self._chunks = []
        for request in self._reading:
            chunk = min(room, request.unread)
            room -= chunk
            self._chunks.append((request, chunk))
        while self._awaited and self._awaited[0][2].ended:
            heapq.heappop(self._awaited)
        alike = not self._reading and len(self._card.servers) == 1
        self._span = max(1, self._awaited[0][0] - self.passes) if alike else 1
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        self._prompts = sum(chunk for _, chunk in self._chunks)
        self._attended = self._context + sum(
            request.prompt - request.unread for request, chunk in self._chunks if chunk
        )
        self._gain = len(self._writing)
        self._slowed = self._slowing()
        self._timer = loop.call_at(self._since + self._seconds(self._span), self._end)

    def _slowing(self) -> float:
        """Return the factor by which the other servers of the card slow a pass that begins now."""
        if not self._card.together or self.costs.beside is None:
            return 1.0
        working = [server for server in self._card.servers if server is not self and server.working]
        if self.costs.beside_reading is not None and any(server.reading for server in working):
            return self.costs.beside_reading
        if self.costs.reading_beside is not None and working and self._prompts > 1:
            return self.costs.reading_beside
        return self.costs.beside if working else 1.0

    def _seconds(self, passes: int) -> float:
        """Return the seconds of the first *passes*. The context grows with every pass."""
        one = self.costs.seconds(self._gain, self._prompts, self._attended)
        growth = self.costs.per_context_token * self.costs.written * self._gain
        return self._slowed * (passes * one + growth * passes * (passes - 1) / 2)

    def _done(self) -> int:
        """Return how many of the current passes are over."""
        if self._timer is None or self._span <= 1:
            return 0
        return max(0, self._whole(asyncio.get_running_loop().time() - self._since) - 1)

    def _whole(self, seconds: float) -> int:
        """Return the number of the current pass that is under way after *seconds*, from 1."""
        passes = range(1, self._span)
        return 1 + bisect_right(passes, seconds, key=self._seconds)

    def _cut_short(self) -> None:
        """End the current passes with the one that is under way, because something changes."""
        if self._timer is None or self._span <= 1:
            return
        loop = asyncio.get_running_loop()
        span = self._whole(loop.time() - self._since)
        if span < self._span:
            self._timer.cancel()
            self._span = span
            self._timer = loop.call_at(self._since + self._seconds(span), self._end)

    def _end(self) -> None:
        """End the current passes, then begin the next ones."""
        self._timer = None
        self.busy += self._seconds(self._span)
        self.passes += self._span
        self.read += self._prompts
        self.sequences += self._gain * self._span
        self._context += len(self._writing) * self._span * self.costs.written
        for request, chunk in self._chunks:
            request.unread -= chunk
            if request.unread == 0 and not request.ended:
                self._first_token(request)
        while self._awaited and self._awaited[0][0] <= self.passes:
            _, _, request, waiter = heapq.heappop(self._awaited)
            if waiter is None:
                if not request.ended and self.tokens(request) >= request.most:
                    self.close(request)
            elif not waiter.done():
                waiter.set_result(None)
        if len(self._card.servers) == 1:
            self._begin()
        else:
            self._card.give()
            self._card.take(self._begin)

    def _first_token(self, request: Request) -> None:
        self._reading.remove(request)
        self._writing.add(request)
        request.began = self.passes
        request.first = asyncio.get_running_loop().time()
        self._context += request.prompt + 1
        for count, waiter in request.awaited:
            self._await(request, count, waiter)
        request.awaited.clear()

    def _await(self, request: Request, count: int, waiter: Waiter) -> None:
        if request.began is None:
            request.awaited.append((count, waiter))
            return
        passes = request.began + ceil((count - 1) / self.costs.written - 1e-9)
        heapq.heappush(self._awaited, (passes, next(self._order), request, waiter))

    def _tokens(self, request: Request, passes: int) -> int:
        return min(request.most, int(self._gained(request, passes) + 1e-9))

    def _gained(self, request: Request, passes: int) -> float:
        assert request.began is not None
        return 1 + (passes - request.began) * self.costs.written

    # Memory

    def _admit(self) -> None:
        """Admit what waits, in its order, until one does not fit."""
        while self._waiting and self.running < self.costs.sequences:
            request = self._waiting[0][2]
            if not request.ended and not self._fits(request):
                return
            heapq.heappop(self._waiting)
            if request.ended:
                continue
            resident = self.resident.setdefault(request.run, Resident())
            self.resident.move_to_end(request.run)
            known = min(request.shared, resident.tokens, request.prompt - 1)
            request.cached = known // self.costs.block * self.costs.block
            request.unread = request.prompt - request.cached
            resident.tokens = max(resident.tokens, request.prompt + request.most)
            resident.requests += 1
            self._reading.append(request)

    def _fits(self, request: Request) -> bool:
        """Make room for *request* by removing idle runs. Return whether there is enough."""
        if self.costs.cache is None:
            return True
        own = self.resident.get(request.run, Resident()).tokens
        used = sum(resident.tokens for resident in self.resident.values())
        needed = used + max(0, request.prompt + request.most - own) - self.costs.cache
        idle = {
            run: resident.tokens
            for run, resident in self.resident.items()
            if not resident.requests and run is not request.run
        }
        if needed > sum(idle.values()):
            return False
        for run, tokens in idle.items():
            if needed <= 0:
                break
            del self.resident[run]
            needed -= tokens
        return True
