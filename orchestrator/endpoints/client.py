"""The events of one open stream. It is closed from within as soon as nothing arrives for too long."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import NoReturn, TypeVar

import aiohttp
import httpx2
import orjson
from asyncio_throttle import Throttler  # type: ignore[attr-defined]
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AsyncStream, DefaultAioHttpClient, OpenAIError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, stop_before_delay
from tenacity import wait_random_exponential as random_exponential

from ..errors import (
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
)
from ..interfaces import REQUEST
from .priority import RUN, priority
from .settings import Address, Deadlines
from .vllm_protocol import (
    COMPLETIONS,
    MODELS,
    PRIORITISED,
    Body,
    Call,
    Reply,
    http_error,
    model_names,
    parse_object,
    retry_after,
    retryable,
)

BROKEN = (httpx2.HTTPError, httpx2.StreamError, aiohttp.ClientError, OSError)
CLOSING = 1.0  # seconds; shutting the socket takes none, and the end of a finished stream comes with its last event


class Events:
    """
    Server-sent events as bytes, one by one.

    One timer per stream, set anew only when it fires, watches over both deadlines: a timer per event would cost as much
    as reading it. *ends* is when the whole stream has to be over, on the event loop's clock.
    """

    def __init__(self, call: Call, response: httpx2.Response, deadlines: Deadlines, ends: float) -> None:
        self._call = call
        self._response = response
        self._pieces = response.aiter_bytes()
        self._rest = b""
        self._ready: deque[bytes] = deque()
        self._done = False
        self._deadlines, self._ends = deadlines, ends
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._late = ""
        self._closing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def prime(self) -> None:
        """Wait for the first event, under the caller's deadline, and begin to watch the clock."""
        while not self._ready and not self._done:
            await self._read()
        self._watch()

    async def next(self) -> bytes | None:
        """Return the next event, or None once the server has said that there are no more."""
        while not self._ready:
            if self._done:
                return None
            await self._read()
        return self._ready.popleft()

    async def close(self) -> None:
        """Let go of the connection: keep it if the stream was read to its end, or shut it, which is the abort."""
        if self._timer:
            self._timer.cancel()
        with suppress(*BROKEN, TimeoutError):
            async with asyncio.timeout(CLOSING):
                if self._done:
                    async for _ in self._pieces:
                        pass
                await asyncio.shield(self._close())
                async for _ in self._pieces:  # The generators inside end now, by the error that closing gives them.
                    pass

    def _close(self) -> asyncio.Future[None]:
        self._closing = self._closing or asyncio.ensure_future(self._response.aclose())
        return self._closing

    async def _read(self) -> None:
        try:
            piece = await anext(self._pieces)
        except (StopAsyncIteration, *BROKEN) as exc:
            reason = self._late or f"the stream broke off ({exc!r}): did the server die?"
            raise self._call.error(EndpointUnavailable, reason) from exc
        self._arrived = self._loop.time()
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._take(line[5:].strip())

    def _take(self, event: bytes) -> None:
        if event == b"[DONE]":
            self._done = True
        else:
            self._ready.append(event)

    def _watch(self) -> None:
        due = min(self._arrived + self._deadlines.between, self._ends)
        if self._loop.time() < due:
            self._timer = self._loop.call_at(due, self._watch)
            return
        between, total = self._deadlines.between, self._deadlines.total
        self._late = (
            f"not finished after {total:g} s (deadlines.total)"
            if due == self._ends
            else f"no token for {between:g} s (deadlines.between)"
        )
        self._close()


T = TypeVar("T")

CARRIED: ContextVar[Mapping[str, str]] = ContextVar("CARRIED", default=MappingProxyType({}))
"""Headers that every request of a run carries besides, for whoever began the run to set: ``traceparent``, say."""


@contextmanager
def carrying(headers: Mapping[str, str], run_priority: int = 0) -> Generator[None]:
    """
    Let the requests of a run, which is begun in the block, carry *headers* as well, and its priority among other runs.

    A header that is carried already keeps its value.
    """
    carried = CARRIED.get()
    names = {name.lower() for name in carried}
    tokens = CARRIED.set({**{key: value for key, value in headers.items() if key.lower() not in names}, **carried})
    before = RUN.set(run_priority)
    try:
        yield
    finally:
        RUN.reset(before)
        CARRIED.reset(tokens)


class Connection:
    """
    The connections to one endpoint, shared by all of its requests.

    A request that got no answer at all is sent again after a connection error, a 408, a 429 or a 5xx, as often as the
    endpoint's settings say and as long as its deadlines let it.

    The requests of a run carry vLLM's ``priority``, unless the settings or a refusal of the server say otherwise.
    """

    def __init__(self, endpoint: Address) -> None:
        self.endpoint = endpoint
        self.priorities = endpoint.priorities
        self._client = AsyncOpenAI(
            base_url=endpoint.v1,
            api_key=endpoint.api_key.get_secret_value() if endpoint.api_key else "none",  # None: OPENAI_API_KEY's value
            max_retries=0,  # Tenacity repeats; together the two would multiply.
            timeout=httpx2.Timeout(None, connect=endpoint.deadlines.connect),
            http_client=DefaultAioHttpClient(),
        )
        self._slots = asyncio.Semaphore(endpoint.max_concurrency)
        self._starts = _throttle(endpoint.requests_per_second)

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    def call(self, verb: str) -> Call:
        """Describe a request, for its errors."""
        return Call(self.endpoint.role, self.endpoint.url, verb)

    async def post(self, call: Call, path: str, body: Body, *, retries: int | None = None) -> Reply:
        """Send *body* and return the answer."""
        return parse_object(call, await self._fetch(call, path, body, retries))

    async def get(self, call: Call, path: str, *, retries: int | None = None) -> bytes:
        """Fetch what is at *path*."""
        return await self._fetch(call, path, None, retries)

    async def glance(self, call: Call, path: str) -> bytes:
        """Fetch what is at *path*, once; it takes none of the places that requests for tokens wait for."""
        return await self._fetch_now(call, path, None, 0)

    async def served(self) -> list[str]:
        """List the names of the models that the server knows, adapters last."""
        call = self.call("connect")
        return model_names(parse_object(call, await self.get(call, MODELS)))

    async def chosen(self) -> str:
        """Return the model to talk to: the one that the settings name, or the first. Raise `EndpointRejected`."""
        wanted, served = self.endpoint.model, await self.served()
        if served and wanted in (None, *served):
            return wanted or served[0]
        message = f"no model {wanted or 'at all'!r} is served here; served: {', '.join(map(repr, served)) or 'none'}"
        raise self.call("connect").error(EndpointRejected, message)

    @asynccontextmanager
    async def stream(self, call: Call, body: Body) -> AsyncGenerator[Events]:
        """Send *body* and yield the events of the answer. Leaving the block early aborts the request."""
        deadlines = self.endpoint.deadlines
        async with self._slots:
            ends = asyncio.get_running_loop().time() + deadlines.total

            async def begin() -> Events:
                return await self._begin(call, body, ends)

            async with _within(call, min(deadlines.first, deadlines.total), "no token in the first {:g} s"):
                events = await self._repeat(begin, deadlines.first)
            try:
                yield events
            finally:
                await events.close()

    async def _begin(self, call: Call, body: Body, ends: float) -> Events:
        events = Events(call, await self._send(call, COMPLETIONS, body), self.endpoint.deadlines, ends)
        try:
            await events.prime()
        except BaseException as exc:
            await events.close()
            if isinstance(exc, EndpointUnavailable):
                raise _Repeatable(exc) from exc.__cause__
            raise
        return events

    async def _fetch(self, call: Call, path: str, body: Body | None, retries: int | None) -> bytes:
        async with self._slots:
            return await self._fetch_now(call, path, body, retries)

    async def _fetch_now(self, call: Call, path: str, body: Body | None, retries: int | None) -> bytes:
        async def fetch() -> bytes:
            response = await self._send(call, path, body)
            try:
                return await response.aread()
            except BROKEN as exc:
                raise _Repeatable(call.error(EndpointUnavailable, f"the connection broke ({exc!r})")) from exc
            finally:
                await response.aclose()

        total = self.endpoint.deadlines.total
        async with _within(call, total, "no answer after {:g} s"):
            return await self._repeat(fetch, total, retries)

    async def _send(self, call: Call, path: str, body: Body | None) -> httpx2.Response:
        """Send one request, with its priority; return the answer with its body still to be read."""
        value = priority(REQUEST.get(), RUN.get()) if self.priorities and path in PRIORITISED else None
        if body is None or value is None:
            return await self._send_once(call, path, body)
        try:
            return await self._send_once(call, path, {**body, "priority": value})
        except EndpointRejected as exc:
            if "priority" not in exc.cause.lower():
                raise
            self.priorities = False
            return await self._send_once(call, path, body)

    async def _send_once(self, call: Call, path: str, body: Body | None) -> httpx2.Response:
        url = f"{self.endpoint.url}{path}"
        async with self._starts:
            try:
                if body is None:
                    unread = await self._client.get(
                        url, cast_to=object, options={"headers": {**CARRIED.get()}}, stream=True, stream_cls=_Unread
                    )
                else:
                    unread = await self._client.post(
                        url,
                        cast_to=object,
                        content=orjson.dumps(body),
                        options={"headers": {"Content-Type": "application/json", **CARRIED.get()}},
                        stream=True,
                        stream_cls=_Unread,
                    )
            except OpenAIError as exc:
                raise _failure(call, exc) from exc
        return unread.response

    async def _repeat(self, send: Callable[[], Awaitable[T]], deadline: float, retries: int | None = None) -> T:
        repeating = AsyncRetrying(
            stop=stop_after_attempt(1 + (self.endpoint.retries if retries is None else retries))
            | stop_before_delay(deadline),
            wait=_wait,
            retry=retry_if_exception_type(_Repeatable),
            retry_error_callback=_give_up,
        )
        return await repeating(send)


class _Unread(AsyncStream[bytes]):
    """Takes the SDK's answer as it is; `Events` reads it in a fraction of the time that the SDK would need."""

    def __init__(self, *, response: httpx2.Response, **_: object) -> None:
        self.response = response


class _Repeatable(Exception):
    """The request may be sent again, *after* so many seconds at the earliest; *error* is what to raise otherwise."""

    def __init__(self, error: EndpointError, after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after = error, after


def _failure(call: Call, exc: OpenAIError) -> Exception:
    if isinstance(exc, APIStatusError):
        error = http_error(call, exc.status_code, exc.response.content)
        again = retryable(exc.status_code)
        return _Repeatable(error, retry_after(exc.response.headers.get("retry-after"))) if again else error
    if isinstance(exc, APIConnectionError):
        cause = exc.__cause__ or exc
        message = f"no connection ({str(cause) or type(cause).__name__}); is the server running, and is the URL right?"
        return _Repeatable(call.error(EndpointUnavailable, message))
    return call.error(EndpointError, str(exc))


_backoff = random_exponential(multiplier=0.2, max=10)  # seconds


def _wait(state: RetryCallState) -> float:
    exc = state.outcome.exception() if state.outcome else None
    return max(_backoff(state), exc.after if isinstance(exc, _Repeatable) else 0.0)


def _give_up(state: RetryCallState) -> NoReturn:
    exc = state.outcome.exception() if state.outcome else None
    if not isinstance(exc, _Repeatable):
        raise RuntimeError("there was nothing to repeat")
    raise exc.error from None  # Its message names the cause; five libraries deep, the traceback would bury it.


def _throttle(rate: float | None) -> AbstractAsyncContextManager[object]:
    """Limit the requests begun per second, in whole requests: the throttler would wait for half a one for ever."""
    if rate is None:
        return nullcontext()
    burst = max(1, int(rate))
    return Throttler(burst, burst / rate)


@asynccontextmanager
async def _within(call: Call, seconds: float, complaint: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise call.error(EndpointUnavailable, complaint.format(seconds)) from None
