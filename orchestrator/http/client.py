"""
The HTTP client of one endpoint: `Connection` sends requests and retries them.

`ConnectedEndpoint` is what the endpoints of language models and of reward models share.

`priority` orders the requests that wait at a server. vLLM with ``--scheduling-policy priority``
takes the lowest number first, and of equal numbers the earliest request. With any other policy vLLM
ignores the number. Requests that a chain waits for go before requests that it may never need.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from ..concurrency import background
from ..endpoints.breaker import UNUSABLE_STATUSES
from ..endpoints.request_context import CACHE, CARRIED, RUN, priority
from ..endpoints.settings import Address
from ..errors import (
    WAITING,
    ConfigurationError,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    EndpointUnreachable,
    LocalShortage,
    ModelGone,
    StepspecError,
)
from ..interfaces import REQUEST
from .failures import no_connection, shortage
from .http_errors import (
    Call,
    Reply,
    checked,
    http_date,
    http_error,
    parse_object,
    reading,
    retry_after,
)
from .paths import COMPLETIONS, HEALTH, METRICS, MODELS, PRIORITISED, WITHOUT_ENGINE, Body
from .prompts import write_body
from .slots import Slots
from .sse import CONNECTION_ERRORS, Events

KEEP_ALIVE_SECONDS = 4.0
"""How long an idle connection stays open. vLLM closes it after 5, maybe during a request."""
UNREPORTED_SECONDS = 1.0
"""A shorter wait for a server is not reported."""
REPORT_SECONDS = 5.0
"""Between two reports of a wait."""
SILENCE_SECONDS = 4.0
"""A restart of the server takes longer than this. After such a silence, look at it again."""
FIRST_PAUSE_SECONDS = 0.2
"""The longest pause before the second try. Each further pause may be twice as long."""
MAX_PAUSE_SECONDS = 10.0
"""Between two tries, unless the server wants more."""
MAX_DOUBLINGS = 10
"""The most doublings of the pause. It exceeds `MAX_PAUSE_SECONDS` already after six."""
MAX_FAILURE_BYTES = 1 << 20
"""At most about this many bytes are read of an answer that is an error."""

log = logging.getLogger("stepspec.requests")
waiting = logging.getLogger(WAITING)

A = TypeVar("A", bound=Address)
T = TypeVar("T")


class Connection:
    """
    The HTTP connections to one endpoint, shared by all of its requests.

    A request is sent again after a connection error, a 408, a 429 or a 5xx. A stream is sent again
    only if it has not begun. The ``retries`` and ``deadlines`` of *endpoint* limit the tries.

    The requests of a run carry vLLM's ``priority``, unless the settings forbid it or the server has
    refused one.
    """

    def __init__(self, endpoint: Address) -> None:
        self.endpoint = endpoint
        self.priorities = endpoint.priorities
        self.reopened = 0
        """Connections that were opened after a silence."""
        self.proxy = _proxy(endpoint.url)
        """The URL of the proxy. None: requests go to the server itself."""
        self._heard = -inf  # when the last answer arrived, by the event loop's clock
        self._session: aiohttp.ClientSession | None = None
        self._try = 1  # the number of the last try of a request; its first try is 1
        self.slots = Slots(endpoint)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        # Use aiohttp directly. The openai SDK makes each request longer by the time of ten tokens.
        key = self.endpoint.api_key.get_secret_value() if self.endpoint.api_key else "none"
        connector = aiohttp.TCPConnector(
            limit=0,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            ssl=_ssl_context(self.endpoint.url),
            socket_factory=self._open_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.endpoint.deadlines.connect),
            headers={
                "Authorization": f"Bearer {key}",
                "Accept": "application/json",
                # a gateway would hold back the tokens of a compressed stream
                "Accept-Encoding": "identity",
            },
            # Keep no cookies. A cookie that names a replica would bind all runs to this replica.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _open_socket(self, address: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        if asyncio.get_running_loop().time() - self._heard >= SILENCE_SECONDS:
            self.reopened += 1
        return socket.socket(*address[:3])

    def call(self, verb: str) -> Call:
        """Describe a request, for its errors."""
        return Call(
            role=self.endpoint.role,
            url=self.endpoint.url,
            verb=verb,
            keyed=self.endpoint.api_key is not None,
        )

    async def post(
        self,
        call: Call,
        path: str,
        body: Body,
        *,
        retries: int | None = None,
        shorten: Callable[[bytes], bytes] = bytes,
    ) -> Reply:
        """
        Send *body* to *path* and return the reply. *retries* None means the settings' number.

        *shorten* removes parts that nobody reads from the text of the reply, before it is parsed.
        """
        answer = await self.fetch(call, path, body, retries=retries)
        return checked(call, parse_object(call, shorten(answer)))

    async def model_name(self) -> str:
        """
        Return the model that the settings name, or the first. Raise `EndpointRejected` if it is not
        served.
        """
        call = self.call("connect")
        wanted = self.endpoint.model
        async with background(self._report_waiting()):
            served = model_names(call, parse_object(call, await self.fetch(call, MODELS)))
        if served and wanted in (None, *served):
            return wanted or served[0]
        names = ", ".join(map(repr, served)) or "none"
        message = f"no model {repr(wanted) if wanted else 'at all'} is served here; served: {names}"
        if served:
            message += f"; name one of them as model in [{self.endpoint.role}], or leave model out"
        raise call.error(EndpointRejected, message)

    @asynccontextmanager
    async def stream(
        self,
        call: Call,
        body: Body,
        *,
        path: str = COMPLETIONS,
    ) -> AsyncGenerator[Events]:
        """
        Send *body* to *path* and yield the events of the stream. Leaving the block early aborts the
        request.
        """
        async with self.slots.held():
            ends = asyncio.get_running_loop().time() + self.endpoint.deadlines.total
            begin = partial(
                self._begin,
                call,
                path,
                body,
                ends,
            )
            events = await self._in_time(call, begin, "no token in the first {:g} s")
            try:
                yield events
            finally:
                await events.close()

    async def _begin(self, call: Call, path: str, body: Body, ends: float) -> Events:
        response = await self._send(call, path, body)
        pieces = response.content.iter_any()
        events = Events(
            call,
            pieces,
            response.release,
            self.endpoint.deadlines,
            ends,
        )
        try:
            await events.prime()
        except BaseException:
            await events.close()
            raise
        return events

    async def fetch(
        self,
        call: Call,
        path: str,
        body: Body | None = None,
        *,
        retries: int | None = None,
    ) -> bytes:
        """
        Send *body* to *path*, or read *path* without one. Return the body of the reply.

        The reply is not checked: with a status of success, its body may still be an error.
        *retries* None means the settings' number.
        """

        async def fetch_once() -> bytes:
            response = await self._send(call, path, body)
            try:
                return await response.read()
            except CONNECTION_ERRORS as exc:
                broke = "the connection broke before the end of the answer: did the server die?"
                raise call.error(EndpointUnavailable, broke) from exc

        async with self._admitted(path):
            return await self._in_time(call, fetch_once, "no answer after {:g} s", retries)

    @asynccontextmanager
    async def _admitted(self, path: str) -> AsyncGenerator[None]:
        """Wait until a request for *path* may start; hold a slot if an engine works on it."""
        if path not in WITHOUT_ENGINE:
            async with self.slots.held():
                yield
            return
        if path not in (HEALTH, METRICS):
            await self.slots.start()
        yield

    async def _send(
        self,
        call: Call,
        path: str,
        body: Body | None,
    ) -> aiohttp.ClientResponse:
        """
        Send one request, with its priority and the salt of its cache; return the response with its
        body unread.
        """
        if body is None or path not in PRIORITISED:
            return await self._send_once(call, path, body)
        body = {**body, **CACHE.get()}
        value = priority(REQUEST.get(), RUN.get())
        prioritised = None if value is None else {**body, "priority": value}
        return await self.open(call, path, body, prioritised)

    async def open(
        self,
        call: Call,
        path: str,
        body: Body | bytes,
        prioritised: Body | bytes | None,
    ) -> aiohttp.ClientResponse:
        """
        Send *body* once; return the response with its body unread.

        *prioritised* is *body* with a priority, which is sent first. None: it has no priority. If
        the server refuses the priority and accepts *body*, it never gets a priority again.
        """
        if prioritised is None or not self.priorities:
            return await self._send_once(call, path, body)
        try:
            return await self._send_once(call, path, prioritised)
        except EndpointRejected as exc:
            if b"priority" not in exc.body.lower():
                raise
        response = await self._send_once(call, path, body)
        self.priorities = False
        return response

    async def _send_once(
        self,
        call: Call,
        path: str,
        body: Body | bytes | None,
    ) -> aiohttp.ClientResponse:
        method = "GET"
        content: bytes | None = None
        headers = CARRIED.get()
        if body is not None:
            method = "POST"
            content = body if isinstance(body, bytes) else _json(call, body)
            headers = {"Content-Type": "application/json", **headers}
        url = self.endpoint.url + path
        try:
            self._session = self._session or self._open_session()
            response = await self._session.request(
                method,
                url,
                data=content,
                headers=headers,
                proxy=self.proxy,
            )
            self._heard = asyncio.get_running_loop().time()
            log.debug("%s %s: %d", method, url, response.status)
            if response.status >= 400:
                async with response:
                    raise await _refusal(call, response, path, self.endpoint.deadlines.between)
        except CONNECTION_ERRORS as exc:
            raise connection_error(call, exc, self.endpoint.deadlines.connect) from exc
        return response

    async def _in_time(
        self,
        call: Call,
        send: Callable[[], Awaitable[T]],
        late: str,
        retries: int | None = None,
    ) -> T:
        """Call *send* until it succeeds. The message *late* has a place for the seconds."""
        seconds = self.endpoint.deadlines.unstreamed
        try:
            async with asyncio.timeout(seconds):
                return await self._retry(send, seconds, retries)
        except TimeoutError:
            raise call.error(EndpointUnavailable, late.format(seconds)) from None

    async def _retry(
        self,
        send: Callable[[], Awaitable[T]],
        deadline: float,
        retries: int | None,
    ) -> T:
        """
        Call *send*. Call it again after each failure that may pass.

        Raise the failure if the next call would begin more than *deadline* seconds after the first.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline
        if retries is None:
            retries = self.endpoint.retries
        for failures in range(1, retries + 1):
            try:
                return await send()
            except ModelGone:
                raise
            except (EndpointUnavailable, LocalShortage) as exc:
                pause = _pause(exc, failures)
                if loop.time() + pause >= ends:
                    raise
                self._try = failures + 1
                log.info("%s; try %d in %.1f s", exc, self._try, pause)
            await asyncio.sleep(pause)
            await self.slots.start()
        return await send()

    async def _report_waiting(self) -> None:
        """
        Report, after a second and then every few seconds, that the server does not answer its first
        request.
        """
        self._try = 1
        await asyncio.sleep(UNREPORTED_SECONDS)
        server = f"the {self.endpoint.role} model at {self.endpoint.url}"
        while True:
            waiting.info(
                "waiting for %s: try %d of %d",
                server,
                self._try,
                1 + self.endpoint.retries,
            )
            await asyncio.sleep(REPORT_SECONDS)


class ConnectedEndpoint(Generic[A]):
    """
    One served model and the connection to it, which all runs share; the connection is closed on
    leaving.

    Entering raises an `EndpointError`, with the cure, if the server cannot be used.
    """

    def __init__(self, settings: A) -> None:
        self.settings = settings
        self.name = settings.model or ""
        self._looked = 0  # `Connection.reopened` at the last look at the server

    async def __aenter__(self) -> Self:
        self.connection = Connection(self.settings)
        try:
            self.name = await self.connection.model_name()
            await self._learn()
            self._looked = self.connection.reopened
        except BaseException:
            await self.connection.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.connection.close()

    async def refresh(self) -> None:
        """
        Look at the server again if it may have restarted since the last look.

        A connection that was opened after a silence (`SILENCE_SECONDS`) is a sign of a restart.
        """
        reopened = self.connection.reopened
        if reopened > self._looked:
            await self._look()
            self._looked = reopened

    async def _look(self) -> None:
        """Find out what has changed at the server."""
        raise NotImplementedError

    async def _learn(self) -> None:
        """Find out what is needed of the model besides its name."""
        raise NotImplementedError


def connection_error(
    call: Call,
    exc: Exception,
    seconds: float,
) -> EndpointUnreachable | LocalShortage:
    """
    Make the error of a request without an answer, with the exception *exc* of the HTTP client.

    *seconds* is the deadline for a connection.
    """
    reason = shortage(exc) or _shortage_of_names(exc)
    if reason:
        return LocalShortage(reason)
    return call.error(EndpointUnreachable, no_connection(exc, call.url, seconds))


def model_names(call: Call, reply: Reply) -> list[str]:
    """Return the names of the served models, adapters last. Raise `MalformedReply`."""
    with reading(call, "list of models", reply):
        models: list[Reply] = reply["data"] or []
        adapters_last = sorted(models, key=lambda model: bool(model.get("parent")))
        return [str(model["id"]) for model in adapters_last]


def _shortage_of_names(exc: Exception) -> str:
    """
    Return what this machine lacks, if the lookup of a host name failed because of it. Else "".

    The resolver does not report that it could open no file. So open a socket, and read its error.
    """
    if isinstance(exc, aiohttp.ClientConnectorDNSError):
        try:
            socket.socket().close()
        except OSError as cause:
            return shortage(cause)
    return ""


async def _refusal(
    call: Call,
    response: aiohttp.ClientResponse,
    path: str,
    seconds: float,
) -> EndpointError:
    """
    Make the error of a *response*, whose body may take *seconds*.

    The error says when the server wants the request again. After a redirection, it names the URL
    that refused the request.
    """
    body = b""
    try:
        async with asyncio.timeout(seconds):
            while len(body) < MAX_FAILURE_BYTES and not response.content.at_eof():
                body += await response.content.readany()
    except TimeoutError:
        message = f"HTTP {response.status}, and no whole answer in {seconds:g} s"
        return call.error(EndpointUnavailable, message)
    error = http_error(call, response.status, body, path)
    if isinstance(error, EndpointUnavailable):
        now = http_date(response.headers.get("date")) or time.time()
        error.retry_after = retry_after(response.headers.get("retry-after"), now)
    elif response.history and response.status in UNUSABLE_STATUSES:
        # A redirection may lose the key or the body.
        place = str(response.url).removesuffix(path)
        status = f"(HTTP {response.status})"
        moved = (
            f"this URL redirects to {place}, which refuses the request {status}: set that as url"
        )
        error = call.error(EndpointRejected, moved)
        error.status = response.status
    error.body = body
    error.headers = response.headers.copy()
    return error


def _json(call: Call, body: Body) -> bytes:
    try:
        return write_body(body)
    except TypeError as exc:  # The text has half of a surrogate pair.
        raise call.error(
            EndpointRejected, f"a text that is no Unicode cannot be sent ({exc}): is it UTF-8?"
        ) from exc


def _proxy(url: str) -> str | None:
    """
    Return the HTTP proxy for *url* that the environment names, as urllib reads it. None: there is
    none.
    """
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.netloc):
        return None
    if proxy.startswith("socks"):
        raise ConfigurationError(
            f"{parts.scheme}_proxy names a SOCKS proxy, which cannot be used: name an HTTP proxy,"
            f" or add {parts.hostname} to no_proxy"
        )
    return proxy if "://" in proxy else f"http://{proxy}"


def _ssl_context(url: str) -> ssl.SSLContext | bool:
    """
    Return the certificates to trust at *url*, which ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` may
    name.
    """
    if not url.startswith("https:"):
        return True
    from httpx2 import create_ssl_context  # only https needs it

    return create_ssl_context()


def _pause(failure: StepspecError, failures: int) -> float:
    """
    Return the seconds before the next try of a request that has failed *failures* times.

    The pause is random. It is never shorter than the pause that the server asked for.
    """
    longest = FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, MAX_DOUBLINGS)
    pause = random.uniform(0, min(longest, MAX_PAUSE_SECONDS))
    return max(pause, getattr(failure, "retry_after", 0.0))
