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
        """
        Send the request to a server of *model*. Send the server's answer to the client.

        All requests with the same session header go to the same server. Other requests go to the
        server with the fewest requests. If a server fails before its answer begins, the request
        goes to the next server.
        """
        endpoint = model.endpoint
        priority = forwarded_priority(self.content, self.best_priority)

        async def work(connection: ClientConnection, seconds: float) -> None:
            async def send_to(server: Server) -> None:
                assert isinstance(server, VllmEndpoint)
                attempt = Attempt(self, model, endpoint, server, connection)
                await attempt.send(priority)

            SESSION.set(self.record.session)  # a context variable: no other task sees the change
            try:
                async with asyncio.timeout(seconds):
                    await endpoint.call(send_to)
            except EndpointError as exc:
                attempts = self.record.attempts
                status = attempts[-1].status if attempts else 0
                if status in (404, 405):  # the server does not know the path
                    raise ApiError(status, str(exc), code="upstream_rejected") from exc
                raise

        return self.context.respond(self.record, work, priority or 0)


class Attempt:
    """
    Sends *client_request* to *server*, and the server's answer over *connection*.

    The methods raise `EndpointError` only if the client has received nothing: then another server
    of *endpoint* can answer. They raise `BrokenAnswer` or `EventTooLarge` if the answer breaks off.
    """

    _response: aiohttp.ClientResponse  # the answer, whose headers have arrived

    def __init__(
        self,
        client_request: ClientRequest,
        model: ServedModel,
        endpoint: ReplicatedEndpoint,
        server: VllmEndpoint,
        connection: ClientConnection,
    ) -> None:
        settings = server.settings
        self._client_request = client_request
        self._record = client_request.record
        self._model = model
        self._endpoint = endpoint
        self._server = server
        self._connection = connection
        self._deadlines = settings.deadlines
        self._call = Call(model.role, settings.url, "forward", settings.api_key is not None)
        self._streams = client_request.content.get("stream") is True

    async def send(self, priority: int | None) -> None:
        """
        Send the request. Send the answer to the client.

        A server that orders requests by priority receives *priority*. With *priority* None, the
        request keeps the priority in its body, if there is one.
        """
        content = {**self._client_request.content, "model": self._model.name}
        server = self._server
        # vLLM loses the top log-probabilities of a request if its batch also has a question of
        # a judge, which asks for the log-probabilities of given tokens
        exclusive = wants_top_logprobs(content)
        async with server.without_questions() if exclusive else nullcontext():
            if priority is None or not server.connection.priorities:
                await self._send(content)
                return
            prioritised = {**content, "priority": run_place(priority)}
            try:
                await self._send(prioritised, may_refuse_priority=True)
            except PriorityRefused:
                await self._send(content)
                # if the server accepts the request now, never send this server a priority again
                if self._response.ok:
                    server.connection.priorities = False

    async def _send(self, content: JsonObject, *, may_refuse_priority: bool = False) -> None:
        """
        Send *content* once. Send the answer to the client.

        With *may_refuse_priority*, raise `PriorityRefused` if the server refuses the priority.
        """
        record = self._record
        call = self._call
        try:
            with record.attempt(self._model.role, self._model.name, call.url) as attempt:
                async with await self._open(content) as response:
                    self._response = response
                    attempt.status = response.status
                    attempt.first = record.seconds - attempt.started
                    await self._pass_on(may_refuse_priority=may_refuse_priority)
        except (BrokenAnswer, EventTooLarge) as exc:
            if not self._connection.started:
                raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
            message = f"the answer broke off: {exc}"
            self._endpoint.report(call.url, call.error(EndpointUnavailable, message))
            raise ApiError(503, message, code="upstream_error", retry=False) from exc
        record.upstream_seconds = record.seconds - (record.admitted or 0.0)

    async def _pass_on(self, *, may_refuse_priority: bool) -> None:
        if self._response.ok:
            await self._pass_on_answer()
        else:
            await self._pass_on_failure(may_refuse_priority=may_refuse_priority)

    async def _open(self, content: JsonObject) -> aiohttp.ClientResponse:
        """
        Send *content*. Return the answer when its headers have arrived.

        If the answer is not a stream, the server sends even the headers only after the whole answer
        is written. Then the service waits for the headers as long as the server is up.
        """
        request = self._client_request
        api_key = self._server.settings.api_key
        proxy = self._server.connection.proxy
        headers = {
            **self._record.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key.get_secret_value()}"
        posting = request.context.http.post(
            f"{self._call.url}{self._record.path}",
            # a request that stepspec does not change passes through byte by byte
            data=request.body if content == request.content else write_json(content),
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=self._deadlines.connect),
            proxy=proxy,
        )
        try:
            async with background(posting) as (answering,):
                return await self._within(
                    self._deadlines.first,
                    lambda: asyncio.shield(answering),
                    patient=not self._streams,
                )
        except CONNECTION_ERRORS as exc:
            raise connection_error(self._call, exc, self._deadlines.connect) from exc

    async def _within(
        self,
        seconds: float,
        wait: Callable[[], Awaitable[T]],
        *,
        patient: bool,
    ) -> T:
        """
        Return what *wait* returns. Raise `BrokenAnswer` if that takes more than *seconds*.

        With *patient*, wait again as long as the server is up.
        """
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await wait()
            except aiohttp.ServerTimeoutError:  # a connection was not opened in time
                raise
            except TimeoutError:
                if not (patient and self._server in self._endpoint.up):
                    raise BrokenAnswer(f"nothing came for {seconds:g} s") from None

    async def _read(self, seconds: float, *, patient: bool = False) -> bytes:
        """
        Return the next bytes of the body, which may take *seconds*. Return b"" at the end.

        With *patient*, wait as long as the server is up.
        """
        try:
            return await self._within(seconds, self._response.content.readany, patient=patient)
        except CONNECTION_ERRORS as exc:
            raise BrokenAnswer(SERVER_DIED) from exc

    async def _rest(self, max_bytes: int) -> bytes:
        """Return the rest of the body. Stop reading after *max_bytes*."""
        rest = bytearray()
        while len(rest) < max_bytes:
            part = await self._read(self._deadlines.between)
            if not part:
                break
            rest += part
        return bytes(rest)

    async def _pass_on_failure(self, *, may_refuse_priority: bool) -> None:
        """
        Send the client an answer whose status is an error.

        Raise `EndpointError` if another server can possibly answer, or if the prompt is too long.
        """
        status = self._response.status
        body = await self._rest(MAX_FAILURE_BYTES)
        if may_refuse_priority and status == 400 and b"priority" in body.lower():
            raise PriorityRefused
        error = http_error(self._call, status, body, self._record.path)
        if isinstance(error, EndpointUnavailable):
            headers = self._response.headers
            now = http_date(headers.get("Date")) or time.time()
            error.retry_after = retry_after(headers.get("Retry-After"), now)
        if status >= 500 or status in UNUSABLE_STATUSES or isinstance(error, ContextTooLong):
            raise error
        await self._connection.send_whole(body, self._headers, status)

    async def _pass_on_answer(self) -> None:
        """Send the client an answer without an error status, as a stream or in one piece."""
        response = self._response
        if self._streams or response.content_type == "text/event-stream":
            await self._pass_on_stream()
            return
        body = await self._rest(MAX_ANSWER_BYTES)
        error = no_reply(self._call, body)
        if error:
            raise error
        await self._connection.send_whole(body, self._headers, response.status)

    async def _pass_on_stream(self) -> None:
        """Send the client a stream."""
        connection = self._connection
        answer = ForwardedAnswer(self._record.path)
        first = await self._first_event(answer)
        connection.last_event = answer.failed
        await connection.start({**EVENT_STREAM, **self._headers}, self._response.status)
        await connection.send(first)
        # a server can be silent, for example until a tool call is complete
        while part := await self._read(self._deadlines.between, patient=True):
            await connection.send(answer.add(part))
        await connection.finish(answer.finish())

    async def _first_event(self, answer: ForwardedAnswer) -> bytes:
        """
        Read until one event is complete. Return the complete events.

        *answer* divides the body into events. Raise `EndpointError` if the body is no stream of
        events.
        """
        received = b""
        events = b""
        while part := await self._read(self._deadlines.first):
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
        raise no_stream(self._call, received + await self._rest(MAX_FAILURE_BYTES))

    @property
    def _headers(self) -> dict[str, str]:
        """The headers of the answer that the client receives."""
        headers = self._response.headers
        return {name: headers[name] for name in RETURNED_HEADERS if name in headers}


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
