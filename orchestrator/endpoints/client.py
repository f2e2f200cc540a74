"""The way to one server: requests out, bytes in. Every wait is bounded and every failure has a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from types import MappingProxyType
from typing import NoReturn, TypeVar, cast

import httpx2
import orjson
from asyncio_throttle import Throttler  # type: ignore[attr-defined]
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AsyncStream, DefaultAioHttpClient, OpenAIError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, stop_before_delay
from tenacity import wait_random_exponential as random_exponential

from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, MalformedReply
from ..interfaces import REQUEST
from .failures import Call, failed, pause, repeatable
from .priority import RUN, priority
from .scoring import GENERATE
from .settings import Address
from .sse import BROKEN, Events
from .wire import Body, Reply

T = TypeVar("T")

CARRIED: ContextVar[Mapping[str, str]] = ContextVar("CARRIED", default=MappingProxyType({}))
"""Headers that every request of a run carries besides, for whoever began the run to set: ``traceparent``, say."""

PRIORITISED = frozenset({"/v1/completions", "/pooling", GENERATE})


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
        return _object(call, await self._fetch(call, path, body, retries))

    async def get(self, call: Call, path: str, *, retries: int | None = None) -> bytes:
        """Fetch what is at *path*."""
        return await self._fetch(call, path, None, retries)

    async def glance(self, call: Call, path: str) -> bytes:
        """Fetch what is at *path*, once; it takes none of the places that requests for tokens wait for."""
        return await self._fetch_now(call, path, None, 0)

    async def served(self) -> list[str]:
        """List the names of the models that the server knows, adapters last."""
        call = self.call("connect")
        listed: list[Reply] = _object(call, await self.get(call, "/v1/models")).get("data") or []
        return [model["id"] for model in sorted(listed, key=lambda model: bool(model.get("parent")))]

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
        events = Events(call, await self._send(call, "/v1/completions", body), self.endpoint.deadlines, ends)
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
        error = failed(call, exc.status_code, exc.response.content)
        again = repeatable(exc.status_code)
        return _Repeatable(error, pause(exc.response.headers.get("retry-after"))) if again else error
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


def _object(call: Call, body: bytes) -> Reply:
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = None
    if not isinstance(reply, dict):
        raise call.error(MalformedReply, f"not a JSON object: {body[:200]!r}")
    return cast("Reply", reply)
