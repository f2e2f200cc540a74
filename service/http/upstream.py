"""The forwarding of requests to a served model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
from stepspec.orchestrator.endpoints.request_context import CARRIED, SESSION, run_place
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointUnavailable,
)
from stepspec.orchestrator.http.client import MAX_FAILURE_BYTES
from stepspec.orchestrator.http.http_errors import as_object, no_reply, no_stream, object_in
from stepspec.orchestrator.http.sse import (
    CONNECTION_ERRORS,
    DONE,
    EventReader,
    EventTooLarge,
    begins_events,
)
from stepspec.orchestrator.json_values import write_json

from ..errors import ApiError
from ..formats.deltas import ANTHROPIC_ERROR_EVENT, OPENAI_ERROR_EVENT
from ..formats.requests import ServedModel, forwarded_priority
from ..json_types import JsonFields, JsonObject
from ..records import MESSAGES_PATH, ServiceRequest
from .connection import EVENT_STREAM, ClientConnection
from .runs import ServiceContext

RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
MAX_ANSWER_BYTES = 1 << 28
"""The service reads at most about this many bytes of an answer that is no stream."""
SERVER_DIED = "did the server die?"

T = TypeVar("T")


class BrokenAnswer(Exception):
    """A server did not complete its answer."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, and the model that it names."""

    context: ServiceContext
    """What all requests share: settings, clients, and the queue for admission."""
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

            # context variables: no other task sees the change
            SESSION.set(self.record.session)
            CARRIED.set(self.record.forwarded)
            try:
                async with asyncio.timeout(seconds):
                    await endpoint.call(send_to)
            except EndpointError as exc:
                # the server does not know the path; an error within an answer has no headers
                if exc.status in (404, 405) and exc.headers:
                    raise ApiError(exc.status, str(exc), code="upstream_rejected") from exc
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
        self._client_request = client_request
        self._record = client_request.record
        self._model = model
        self._endpoint = endpoint
        self._server = server
        self._connection = connection
        self._deadlines = server.settings.deadlines
        self._call = server.connection.call("forward")
        self._streams = client_request.content.get("stream") is True

    async def send(self, priority: int | None) -> None:
        """
        Send the request. Send the answer to the client.

        A server that orders requests by priority receives *priority*. With *priority* None, the
        request keeps the priority in its body, if there is one.
        """
        content = {**self._client_request.content, "model": self._model.name}
        record = self._record
        call = self._call
        # vLLM loses the top log-probabilities of a request if its batch also has a question of
        # a judge, which asks for the log-probabilities of given tokens
        exclusive = wants_top_logprobs(content)
        try:
            async with self._server.without_questions() if exclusive else nullcontext():
                await self._send(content, priority)
        except (BrokenAnswer, EventTooLarge) as exc:
            if not self._connection.started:
                raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
            message = f"the answer broke off: {exc}"
            self._endpoint.report(call.url, call.error(EndpointUnavailable, message))
            raise ApiError(503, message, code="upstream_error", retry=False) from exc
        record.upstream_seconds = record.seconds - (record.admitted or 0.0)

    async def _send(self, content: JsonObject, priority: int | None) -> None:
        """
        Send *content*. Send the answer to the client.

        An answer that refuses this request only is passed on as it is. All servers would refuse the
        request. If the prompt is too long, the client gets an error with its own code.
        """
        try:
            response = await self._open(content, priority)
        except EndpointError as exc:
            is_refusal = 400 <= exc.status < 500 and exc.status not in UNUSABLE_STATUSES
            if not is_refusal or isinstance(exc, ContextTooLong):
                raise
            await self._connection.send_whole(exc.body, returned(exc.headers), exc.status)
            return
        async with response:
            self._response = response
            await self._pass_on_answer()

    async def _open(self, content: JsonObject, priority: int | None) -> aiohttp.ClientResponse:
        """
        Send *content*. Return the answer when its headers have arrived.

        If the answer is not a stream, the server sends even the headers only after the whole answer
        is written. Then the service waits for the headers as long as the server is up.
        """
        request = self._client_request
        prioritised = None
        if priority is not None:
            prioritised = write_json({**content, "priority": run_place(priority)})
        opening = self._server.connection.open(
            self._call,
            self._record.path,
            # a request that stepspec does not change passes through byte by byte
            request.body if content == request.content else write_json(content),
            prioritised,
        )
        async with background(opening) as (answering,):
            return await self._within(
                self._deadlines.first,
                lambda: asyncio.shield(answering),
                patient=not self._streams,
            )

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
        await self._connection.send_whole(body, returned(response.headers), response.status)

    async def _pass_on_stream(self) -> None:
        """Send the client a stream."""
        connection = self._connection
        response = self._response
        answer = ForwardedAnswer()
        first = await self._first_event(answer)
        connection.last_event = self._failed
        headers = {**EVENT_STREAM, **returned(response.headers)}
        await connection.start(headers, response.status)
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

    def _failed(self, error: ApiError, body: bytes) -> bytes:
        """Return the event that ends the stream with *error*. *body* is *error* as JSON text."""
        has_names = self._record.path in (MESSAGES_PATH, "/v1/responses")
        return (ANTHROPIC_ERROR_EVENT if has_names else OPENAI_ERROR_EVENT) % body


def returned(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those *headers* of a server's answer that the client receives."""
    return {name: headers[name] for name in RETURNED_HEADERS if name in headers}


LAST_EVENTS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "message_stop", "error"}
)
"""The types of events that end a stream."""


class ForwardedAnswer:
    """
    A stream on its way from a server to the client.

    The client receives complete events only, so that an event with an error can follow at any
    point.
    """

    def __init__(self) -> None:
        self._reader = EventReader()
        self._last = b""  # the data of the last event that has data

    def add(self, part: bytes) -> bytes:
        """
        Read the next *part* of the stream. Return the events that the client receives.

        Raise `EventTooLarge`.
        """
        events = self._reader.feed(part)
        for event in events:
            self._last = event.data.strip() or self._last  # JSON can have spaces around it
        return b"".join(event.raw for event in events)

    def finish(self) -> bytes:
        """
        Return the rest of the stream, after the server has closed the connection.

        Some servers send no blank line after the last event. Raise `BrokenAnswer` if the stream was
        cut off.
        """
        rest = self._reader.rest
        data = self._reader.end().strip()
        is_whole = data == DONE or bool(object_in(data))
        is_cut = rest.strip(b"\r\n") != b"" and not rest.startswith(b":") and not is_whole
        if is_cut or not ends_stream(data or self._last):
            raise BrokenAnswer(SERVER_DIED)
        return rest + b"\n\n" if data else rest


def ends_stream(data: bytes) -> bool:
    """
    Return whether an event with *data* ends a stream. b"": there was no event with data.

    A stream without such an event was cut off, even if the server closed the connection normally.
    """
    fields = object_in(data)
    kind = fields.get("type")
    choices: object = fields.get("choices")
    if isinstance(kind, str):
        return kind in LAST_EVENTS
    if isinstance(choices, list):
        reasons = [
            as_object(choice).get("finish_reason") for choice in cast("list[object]", choices)
        ]
        # an event without choices has the usage, and comes after all choices
        return not reasons or any(reason is not None for reason in reasons)
    # [DONE], an error, or an event of an API whose last event is not known here
    return data != b""


def wants_top_logprobs(content: JsonFields) -> bool:
    """
    Return whether *content* asks for the log-probabilities of the likeliest tokens.

    In the chat API, ``top_logprobs`` is the number of these tokens, and ``logprobs`` is a flag. In
    the completions API, ``logprobs`` is the number.
    """
    logprobs = content.get("logprobs")
    is_number = bool(logprobs) and logprobs is not True
    return is_number or bool(content.get("top_logprobs"))
