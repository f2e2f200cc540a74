"""The forwarding of requests to a served model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeVar, cast

import aiohttp
from starlette.responses import Response

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.breaker import UNUSABLE_STATUSES
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.request_context import SESSION, run_place
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointUnavailable,
)
from stepspec.orchestrator.http.client import connection_error
from stepspec.orchestrator.http.http_errors import (
    Call,
    as_object,
    http_date,
    http_error,
    no_reply,
    no_stream,
    object_in,
    retry_after,
)
from stepspec.orchestrator.http.sse import (
    CONNECTION_ERRORS,
    DONE,
    EventReader,
    EventTooLarge,
    begins_events,
)
from stepspec.orchestrator.json_values import write_json

from ..errors import ApiError
from ..formats.deltas import ANTHROPIC_ERROR_EVENT, OPENAI_ERROR_EVENT, response_failed
from ..formats.requests import ServedModel, forwarded_priority
from ..json_types import JsonFields, JsonObject
from ..records import MESSAGES_PATH, ServiceRequest
from .connection import EVENT_STREAM, ClientConnection
from .runs import ServiceContext

RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
MAX_FAILURE_BYTES = 1 << 20
"""The service reads at most about this many bytes of an answer with an error status."""
MAX_ANSWER_BYTES = 1 << 28
"""The service reads at most about this many bytes of an answer that is no stream."""
SERVER_DIED = "did the server die?"

T = TypeVar("T")


class BrokenAnswer(Exception):
    """A server did not complete its answer."""


class PriorityRefused(Exception):
    """A server refused a request because of the priority that the service added."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, and the model that it names."""

    context: ServiceContext
    """What all requests share: settings, connections, and the queue for admission."""
    record: ServiceRequest
    """The record of the request, for the log and the metrics."""
    body: bytes
    """The body as the client sent it."""
    content: JsonFields
    """The parsed body."""
    model: str | ServedModel
    """The name of a method, in which both models answer together, or one served model."""

    @property
    def best_priority(self) -> int | None:
        """The best priority that the client's key allows. None: all are allowed."""
        return self.context.clients.best_priority(self.record.client)

    def forward(self, model: ServedModel) -> Response:
        """Send the request to a server of *model*. Send the server's answer to the client."""
        priority = forwarded_priority(self.content, self.best_priority)

        async def work(connection: ClientConnection, seconds: float) -> None:
            await Forwarding(self, model, priority, connection).run(seconds)

        return self.context.respond(self.record, work, priority or 0)


class Forwarding:
    """
    Forwards a request to a server of *model*. Sends the server's answer over *connection*.

    All requests with the same session header go to the same server. Other requests go to the
    server with the fewest requests. If a server fails before its answer begins, the request goes to
    the next server. A server that orders requests by priority receives *priority*. With *priority*
    None, the request keeps the priority in its body, if there is one.
    """

    def __init__(
        self,
        client_request: ClientRequest,
        model: ServedModel,
        priority: int | None,
        connection: ClientConnection,
    ) -> None:
        endpoint = client_request.context.models.endpoint(model.role)
        assert isinstance(endpoint, ReplicatedEndpoint)
        self._endpoint = endpoint
        self._client_request = client_request
        self._record = client_request.record
        self._model = model
        self._priority = priority
        self._connection = connection
        self._content: JsonObject = {**client_request.content, "model": model.name}
        self._streams = self._content.get("stream") is True

    async def run(self, seconds: float) -> None:
        """Answer within *seconds*. Raise `TimeoutError`, `EndpointError` or `ApiError`."""
        SESSION.set(self._record.session)  # a context variable: no other task sees the change
        try:
            async with asyncio.timeout(seconds):
                await self._endpoint.call(self._send_to)
        except EndpointError as exc:
            status = self._record.attempts[-1].status if self._record.attempts else 0
            if status in (404, 405):  # the server does not know the path
                raise ApiError(status, str(exc), code="upstream_rejected") from exc
            raise

    async def _send_to(self, server: Server) -> None:
        """
        Send the request to *server*. Send the answer to the client.

        Raise `EndpointError` only if the client has received nothing: then another server can
        answer.
        """
        assert isinstance(server, VllmEndpoint)
        # vLLM loses the top log-probabilities of a request if its batch also has a question of
        # a judge, which asks for the log-probabilities of given tokens
        exclusive = wants_top_logprobs(self._content)
        async with server.without_questions() if exclusive else nullcontext():
            if self._priority is None or not server.connection.priorities:
                await self._attempt(server, self._content)
                return
            try:
                place = run_place(self._priority)
                await self._attempt(server, {**self._content, "priority": place}, prioritised=True)
            except PriorityRefused:
                await self._attempt(server, self._content)
                # if the server accepts the request now, never send this server a priority again
                if self._record.attempts[-1].status < 400:
                    server.connection.priorities = False

    async def _attempt(
        self,
        server: VllmEndpoint,
        content: JsonObject,
        *,
        prioritised: bool = False,
    ) -> None:
        """
        Send *content* once. Send the answer to the client.

        *prioritised* says that the service added a priority. Raise `PriorityRefused` or
        `EndpointError` only if the client has received nothing.
        """
        record = self._record
        settings = server.settings
        call = Call(self._model.role, settings.url, "forward", settings.api_key is not None)
        try:
            with record.attempt(call.role, self._model.name, call.url) as attempt:
                async with await self._open(server, call, content) as response:
                    attempt.status = response.status
                    attempt.first = record.seconds - attempt.started
                    reply = ServerReply(server, self._endpoint, call, response)
                    await self._pass_on(reply, prioritised=prioritised)
        except (BrokenAnswer, EventTooLarge) as exc:
            if not self._connection.started:
                raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
            message = f"the answer broke off: {exc}"
            self._endpoint.report(call.url, call.error(EndpointUnavailable, message))
            raise ApiError(503, message, code="upstream_error", retry=False) from exc
        record.upstream_seconds = record.seconds - (record.admitted or 0.0)

    async def _open(
        self,
        server: VllmEndpoint,
        call: Call,
        content: JsonObject,
    ) -> aiohttp.ClientResponse:
        """
        Send *content*. Return the answer when its headers have arrived.

        If the answer is not a stream, the server sends even the headers only after the whole answer
        is written. Then the service waits for the headers as long as the server is up.
        """
        request = self._client_request
        deadlines = server.settings.deadlines
        api_key = server.settings.api_key
        proxy = server.connection.proxy
        headers = {
            **self._record.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key.get_secret_value()}"
        posting = request.context.http.post(
            f"{call.url}{self._record.path}",
            # a request that stepspec does not change passes through byte by byte
            data=request.body if content == request.content else write_json(content),
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=deadlines.connect),
            proxy=proxy,
        )
        try:
            async with background(posting) as (answering,):
                return await patiently(
                    lambda: asyncio.shield(answering),
                    deadlines.first,
                    lambda: not self._streams and server in self._endpoint.up,
                )
        except CONNECTION_ERRORS as exc:
            raise connection_error(call, exc, deadlines.connect, proxy) from exc

    async def _pass_on(self, reply: ServerReply, *, prioritised: bool) -> None:
        """
        Send the client the server's answer.

        Raise `BrokenAnswer`, `EventTooLarge`, `PriorityRefused` or `EndpointError`.
        """
        response = reply.response
        if not response.ok:
            body = await self._failure(reply, prioritised=prioritised)
        elif self._streams or response.content_type == "text/event-stream":
            await self._pass_on_stream(reply)
            return
        else:
            body = await reply.rest(MAX_ANSWER_BYTES)
            error = no_reply(reply.call, body)
            if error:
                raise error
        await self._connection.send_whole(body, reply.headers, response.status)

    async def _failure(self, reply: ServerReply, *, prioritised: bool) -> bytes:
        """
        Return the body of an answer whose status is an error.

        Raise `PriorityRefused` if the server refuses the priority that the service added. Raise
        `EndpointError` if another server can possibly answer, or if the prompt is too long.
        """
        status = reply.response.status
        body = await reply.rest(MAX_FAILURE_BYTES)
        if prioritised and status == 400 and b"priority" in body.lower():
            raise PriorityRefused
        error = http_error(reply.call, status, body, self._record.path)
        if isinstance(error, EndpointUnavailable):
            headers = reply.response.headers
            now = http_date(headers.get("Date")) or time.time()
            error.retry_after = retry_after(headers.get("Retry-After"), now)
        if status >= 500 or status in UNUSABLE_STATUSES or isinstance(error, ContextTooLong):
            raise error
        return body

    async def _pass_on_stream(self, reply: ServerReply) -> None:
        """Send the client a stream. Raise `BrokenAnswer`, `EventTooLarge` or `EndpointError`."""
        connection = self._connection
        answer = ForwardedAnswer(self._record.path)
        first = await reply.first_event(answer)
        connection.last_event = answer.failed
        await connection.start({**EVENT_STREAM, **reply.headers}, reply.response.status)
        await connection.send(first)
        # a server can be silent, for example until a tool call is complete
        while part := await reply.read(reply.server.settings.deadlines.between, patient=True):
            await connection.send(answer.add(part))
        await connection.finish(answer.finish())


async def patiently(
    wait: Callable[[], Awaitable[T]],
    seconds: float,
    is_up: Callable[[], bool],
) -> T:
    """
    Return what *wait* returns.

    Look every *seconds* whether the server *is_up*. Raise `BrokenAnswer` if it is not.
    """
    while True:
        try:
            async with asyncio.timeout(seconds):
                return await wait()
        except aiohttp.ServerTimeoutError:  # a connection was not opened in time
            raise
        except TimeoutError:
            if not is_up():
                raise BrokenAnswer(f"nothing came for {seconds:g} s") from None


@dataclass(frozen=True, slots=True)
class ServerReply:
    """
    A server's answer whose headers have arrived.

    The methods raise `BrokenAnswer` if the connection breaks, or if no bytes come for too long.
    """

    server: VllmEndpoint
    """The server."""
    endpoint: ReplicatedEndpoint
    """All servers of the model."""
    call: Call
    """The request, as error messages describe it."""
    response: aiohttp.ClientResponse
    """The headers, and the body that is still to be read."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the client receives."""
        headers = self.response.headers
        return {name: headers[name] for name in RETURNED_HEADERS if name in headers}

    async def read(self, seconds: float, *, patient: bool = False) -> bytes:
        """
        Return the next bytes of the body, which may take *seconds*. Return b"" at the end.

        With *patient*, wait as long as the server is up.
        """
        try:
            return await patiently(
                self.response.content.readany,
                seconds,
                lambda: patient and self.server in self.endpoint.up,
            )
        except CONNECTION_ERRORS as exc:
            raise BrokenAnswer(SERVER_DIED) from exc

    async def rest(self, max_bytes: int) -> bytes:
        """Return the rest of the body. Stop reading after *max_bytes*."""
        rest = bytearray()
        while len(rest) < max_bytes:
            part = await self.read(self.server.settings.deadlines.between)
            if not part:
                break
            rest += part
        return bytes(rest)

    async def first_event(self, answer: ForwardedAnswer) -> bytes:
        """
        Read until one event is complete. Return the complete events.

        *answer* divides the body into events. Raise `EndpointError` if the body is no stream of
        events.
        """
        received = b""
        events = b""
        while part := await self.read(self.server.settings.deadlines.first):
            received += part
            if not begins_events(received):
                break
            events += answer.add(part)
            if events.strip():
                return events
        # the server sent only a part of an event
        if received.strip() and begins_events(received):
            raise BrokenAnswer(SERVER_DIED)
        # the server sent nothing, or no events: for example an error in JSON
        raise no_stream(self.call, received + await self.rest(MAX_FAILURE_BYTES))


LAST_EVENTS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "message_stop", "error"}
)
"""The types of events that end a stream."""


class ForwardedAnswer:
    """
    A stream on its way from a server to the client: the answer to a request to *path*.

    The client receives complete events only, so that an event with an error can follow at any
    point.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader = EventReader()
        self._first_data = b""  # the data of the first event
        self._last_object = b""  # the data of the last event whose data is a JSON object
        self._done = False  # the event [DONE] has come

    @property
    def _is_complete(self) -> bool:
        """
        Whether the last event is one that ends a stream.

        Otherwise the stream was cut off, even if the server closed the connection normally.
        """
        last = object_in(self._last_object)
        kind = last.get("type")
        choices: object = last.get("choices")
        if self._done:
            return True
        if isinstance(kind, str):
            return kind in LAST_EVENTS
        if not isinstance(choices, list):
            # an error, or an event of an API whose last event is not known here
            return self._first_data != b""
        reasons = [
            as_object(choice).get("finish_reason") for choice in cast("list[object]", choices)
        ]
        # an event without choices has the usage, and comes after all choices
        return not reasons or any(reason is not None for reason in reasons)

    def add(self, part: bytes) -> bytes:
        """
        Read the next *part* of the stream. Return the events that the client receives.

        Raise `EventTooLarge`.
        """
        events = self._reader.feed(part)
        for event in events:
            self._note(event.data)
        return b"".join(event.raw for event in events)

    def finish(self) -> bytes:
        """
        Return the rest of the stream, after the server has closed the connection.

        Some servers send no blank line after the last event. Raise `BrokenAnswer` if the stream was
        cut off.
        """
        rest = self._reader.rest
        data = self._reader.end()
        self._note(data)
        is_cut = not rest.startswith(b":") and rest.strip(b"\r\n") != b""
        if data.strip() == DONE or object_in(data):
            is_cut = False
        if is_cut or not self._is_complete:
            raise BrokenAnswer(SERVER_DIED)
        return rest + b"\n\n" if data else rest

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """
        Return the event that ends the stream with *error*.

        *body* is the JSON text of *error* in the form of the stream's API.
        """
        if self._path == MESSAGES_PATH:
            return ANTHROPIC_ERROR_EVENT % body
        if self._path != "/v1/responses":
            return OPENAI_ERROR_EVENT % body
        response = as_object(object_in(self._first_data).get("response"))
        last_number: object = object_in(self._last_object).get("sequence_number")
        number = last_number + 1 if isinstance(last_number, int) else 0
        return response_failed(response, number, error.status, error.message)

    def _note(self, data: bytes) -> None:
        """Update the attributes from the *data* of the next event."""
        data = data.strip()  # JSON can have spaces around it
        self._first_data = self._first_data or data
        if data == DONE:
            self._done = True
        if data.startswith(b"{"):
            self._last_object = data


def wants_top_logprobs(content: JsonFields) -> bool:
    """
    Return whether *content* asks for the log-probabilities of the likeliest tokens.

    In the chat API, ``top_logprobs`` is the number of these tokens, and ``logprobs`` is a flag. In
    the completions API, ``logprobs`` is the number.
    """
    logprobs = content.get("logprobs")
    is_number = bool(logprobs) and logprobs is not True
    return is_number or bool(content.get("top_logprobs"))
