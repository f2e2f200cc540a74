"""The forwarding of requests to a served model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import cast

import aiohttp
from starlette.responses import Response

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.breaker import UNUSABLE_STATUSES
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.request_context import SESSION, run_place
from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
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

from ..errors import ApiError, api_error
from ..formats.deltas import ANTHROPIC_ERROR_EVENT, OPENAI_ERROR_EVENT, response_failed
from ..formats.requests import ServedModel, forwarded_priority
from ..json_types import JsonFields
from ..records import MESSAGES_PATH, ServiceRequest
from .connection import EVENT_STREAM, ClientConnection
from .health import is_healthy
from .runs import ServiceContext

RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
MAX_FAILURE_BYTES = 1 << 20
"""The service reads at most about this many bytes of an answer with an error status."""
MAX_ANSWER_BYTES = 1 << 28
"""The service reads at most about this many bytes of an answer that is no stream."""
SERVER_DIED = "did the server die?"


async def send_anew_after_idle(
    post: Callable[[], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    """
    Call *post*, which sends a request. Call it once more if the connection breaks.

    aiohttp keeps idle connections. A server can close an idle connection just when the request is
    sent.
    """
    try:
        return await post()
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
        return await post()


class BrokenAnswer(Exception):
    """A server did not complete its answer."""


class PriorityRefused(Exception):
    """A server refused a request because of the priority that the service added."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """
    A server's answer whose headers have arrived.

    The methods raise `BrokenAnswer` if the connection breaks, or if no bytes come for too long.
    """

    server: VllmEndpoint
    """The server."""
    error_context: Call
    """The request, as error messages describe it."""
    response: aiohttp.ClientResponse
    """The headers, and the body that is still to be read."""
    prioritised: bool
    """Whether the service added a priority to the request."""

    @property
    def deadlines(self) -> Deadlines:
        return self.server.settings.deadlines

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the client receives."""
        headers = self.response.headers
        return {name: headers[name] for name in RETURNED_HEADERS if name in headers}

    async def read(
        self,
        seconds: float,
        healthy: Callable[[], Awaitable[bool]] | None = None,
    ) -> bytes:
        """
        Return the next bytes of the body. Return b"" at the end.

        Wait at most *seconds*. With *healthy*, wait again as long as *healthy* returns True.
        """
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await self.response.content.readany()
            except TimeoutError:
                if healthy is None or not await healthy():
                    raise BrokenAnswer(f"nothing came for {seconds:g} s") from None
            except CONNECTION_ERRORS as exc:
                raise BrokenAnswer(SERVER_DIED) from exc

    async def rest(self, max_bytes: int) -> bytes:
        """Return the rest of the body. Stop reading after *max_bytes*."""
        rest = bytearray()
        while len(rest) < max_bytes:
            part = await self.read(self.deadlines.between)
            if not part:
                break
            rest += part
        return bytes(rest)

    async def first_event(self, answer: ForwardedAnswer) -> bytes:
        """
        Read until one event is complete. Return the complete events that the client receives.

        *answer* divides the body into events. Raise `EndpointError` if the body is no stream of
        events.
        """
        received = b""
        events = b""
        while part := await self.read(self.deadlines.first):
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
        raise no_stream(self.error_context, received + await self.rest(MAX_FAILURE_BYTES))


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
        context = self.context

        async def work(connection: ClientConnection) -> None:
            priority = forwarded_priority(self.content, self.best_priority)
            async with context.admitted(self.record, priority or 0) as remaining_seconds:
                await Forwarding(self, model, priority, connection).run(remaining_seconds)

        return context.respond(self.record, work)


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
        self._http = client_request.context.http
        self._endpoint = endpoint
        self._client_request = client_request
        self._record = client_request.record
        self._model = model
        self._connection = connection
        self._priority = priority if endpoint.settings.priorities else None
        content = {**client_request.content, "model": model.name}
        # tokens of the large model count against the limits of the client's key
        self._charged = bool(self._record.client) and model.role == "large"
        # the service needs the usage (the numbers of tokens), but the client has not asked for it
        self._adds_usage = self._charged and lacks_usage(self._record.path, content)
        if self._adds_usage:
            options = as_object(content.get("stream_options"))
            content["stream_options"] = {**options, "include_usage": True}
        self._content = content
        self._failed_status = 0  # the status of the last failed answer that was not passed on

    async def run(self, seconds: float) -> None:
        """
        Answer within *seconds*.

        Raise `ApiError` if the answer cannot begin. The client receives a later error in the
        answer.
        """
        SESSION.set(self._record.session)  # a context variable: no other task sees the change
        try:
            async with asyncio.timeout(seconds):
                await self._endpoint.call(self._send_to)
        except EndpointError as exc:
            raise self._refusal(exc) from exc
        except ApiError as exc:
            # the client does not read its answer: `fail` sends nothing, and notes the error
            await self._connection.fail(exc)
        except TimeoutError:
            await self._connection.fail(
                ApiError(
                    504,
                    f"the {self._model.role} model did not answer in time",
                    code="deadline",
                    retry=False,
                )
            )

    async def _send_to(self, server: Server) -> None:
        """
        Send the request to *server*. Send the answer to the client.

        Raise `EndpointError` only if the client has received nothing: then another server can
        answer.
        """
        assert isinstance(server, VllmEndpoint)
        settings = server.settings
        error_context = Call(
            self._model.role,
            settings.url,
            "forward",
            settings.api_key is not None,
        )
        connection = server.connection
        priority = self._priority if connection.priorities else None
        # vLLM loses the top log-probabilities of a request if its batch also has a question of
        # a judge, which asks for the log-probabilities of given tokens
        exclusive = (
            server.without_questions() if wants_top_logprobs(self._content) else nullcontext()
        )
        async with exclusive:
            try:
                await self._attempt(server, error_context, priority)
            except PriorityRefused:
                await self._attempt(server, error_context, None)
                # if the server accepts the request now, never send this server a priority again
                if self._record.attempts[-1].status < 400:
                    connection.priorities = False

    async def _attempt(
        self,
        server: VllmEndpoint,
        error_context: Call,
        priority: int | None,
    ) -> None:
        """
        Send the request once. Send the answer to the client.

        With *priority* None, the service adds no priority to the request.

        Raise `PriorityRefused` or `EndpointError` only if the client has received nothing.
        """
        record = self._record
        with record.attempt(self._model.role, self._model.name, error_context.url) as attempt:
            async with await self._open(server, error_context, priority) as response:
                attempt.answered(response.status, record.seconds)
                reply = ServerReply(
                    server,
                    error_context,
                    response,
                    prioritised=priority is not None,
                )
                pass_on = self._pass_on_answer if response.ok else self._pass_on_failure
                try:
                    await pass_on(reply)
                except (BrokenAnswer, EventTooLarge) as exc:
                    raise error_context.error(EndpointUnavailable, f"no answer: {exc}") from exc
        record.upstream_seconds = record.seconds - (record.admitted or 0.0)

    async def _open(
        self,
        server: VllmEndpoint,
        error_context: Call,
        priority: int | None,
    ) -> aiohttp.ClientResponse:
        """
        Send the request. Return the answer when its headers have arrived.

        Raise `EndpointUnavailable` if the headers do not arrive in time. If the answer is not a
        stream, the server sends even the headers only after the whole answer is written. Then the
        service waits for the headers as long as the server is healthy.
        """
        settings = server.settings
        deadlines = settings.deadlines
        proxy = server.connection.proxy
        content = self._content
        if priority is not None:
            content = {**content, "priority": run_place(priority)}
        # a request that stepspec does not change passes through byte by byte
        unchanged = content == self._client_request.content
        body = self._client_request.body if unchanged else write_json(content)
        headers = {
            **self._record.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if settings.api_key is not None:
            headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        post = partial(
            self._http.post,
            f"{error_context.url}{self._record.path}",
            data=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=deadlines.connect),
            proxy=proxy,
        )
        async with background(send_anew_after_idle(post)) as (sending,):
            while True:
                await asyncio.wait([sending], timeout=deadlines.first)
                if sending.done():
                    break
                if self._streams or not await is_healthy(self._endpoint, server):
                    late = f"no answer after {deadlines.first:g} s (deadlines.first)"
                    raise error_context.error(EndpointUnavailable, late)
            try:
                return sending.result()
            except CONNECTION_ERRORS as exc:
                raise connection_error(error_context, exc, deadlines.connect) from exc

    async def _pass_on_failure(self, reply: ServerReply) -> None:
        """
        Send the client an answer whose status is an error.

        Raise `PriorityRefused` if the server refuses the priority that the service added. Raise
        `EndpointError` if another server can possibly answer, or if the prompt is too long.
        """
        status = reply.response.status
        body = await reply.rest(MAX_FAILURE_BYTES)
        if reply.prioritised and status == 400 and b"priority" in body.lower():
            raise PriorityRefused
        error = http_error(reply.error_context, status, body, self._record.path)
        if isinstance(error, EndpointUnavailable):
            headers = reply.response.headers
            now = http_date(headers.get("Date")) or time.time()
            error.retry_after = retry_after(headers.get("Retry-After"), now)
        if status >= 500 or status in UNUSABLE_STATUSES or isinstance(error, ContextTooLong):
            self._failed_status = status
            raise error
        await self._pass_on_body(reply, body)

    async def _pass_on_answer(self, reply: ServerReply) -> None:
        """
        Send the client an answer without an error status, as a stream or in one piece.

        Raise `BrokenAnswer`, `EventTooLarge` or `EndpointError` only if the client has received
        nothing.
        """
        if self._streams or reply.response.content_type == "text/event-stream":
            await self._pass_on_stream(reply)
            return
        body = await reply.rest(MAX_ANSWER_BYTES)
        failed = no_reply(reply.error_context, body)
        if failed:
            raise failed
        self._charge(written_tokens(object_in(body)) or 0)
        await self._pass_on_body(reply, body)

    async def _pass_on_body(self, reply: ServerReply, body: bytes) -> None:
        """Send the client an answer in one piece."""
        await self._connection.start(reply.headers, reply.response.status)
        await self._connection.finish(body)

    async def _pass_on_stream(self, reply: ServerReply) -> None:
        """Send the client a stream. Raise the same errors as `_pass_on_answer`."""
        connection = self._connection
        error_context = reply.error_context
        answer = ForwardedAnswer(self._record.path, hides_usage=self._adds_usage)
        first = await reply.first_event(answer)
        await connection.start(
            {**EVENT_STREAM, **reply.headers},
            reply.response.status,
            failure=answer.failed,
        )
        try:
            await connection.send(first)
            # a healthy server can be silent, for example until a tool call is complete
            healthy = partial(is_healthy, self._endpoint, reply.server)
            while part := await reply.read(reply.deadlines.between, healthy):
                await connection.send(answer.add(part))
            rest = answer.finish()
        except (BrokenAnswer, EventTooLarge) as exc:
            message = f"the answer broke off: {exc}"
            self._endpoint.report(
                error_context.url,
                error_context.error(EndpointUnavailable, message),
            )
            self._record.attempts[-1].failure = type(exc).__name__
            await connection.fail(ApiError(503, message, code="upstream_error", retry=False))
            return
        finally:
            self._charge(answer.written)
        await connection.finish(rest)

    @property
    def _streams(self) -> bool:
        """Whether the client asks for a stream."""
        return self._content.get("stream") is True

    def _charge(self, tokens: int) -> None:
        """With `_charged`, add *tokens* to the client's tokens of the large model."""
        if self._charged:
            limit = max_answer_tokens(self._content, self._endpoint.room)
            self._record.large_tokens += min(tokens, limit)

    def _refusal(self, exc: EndpointError) -> ApiError:
        """
        Return the error that the client receives after *exc*.

        No server gave an answer that could be passed on.
        """
        # A server receives the key of the operator, and never the key of the client. So only the
        # operator can correct the key.
        if isinstance(exc, EndpointRejected) and exc.status in (401, 403):
            role = self._model.role
            refused = "the service's key for it"
            if self._endpoint.settings.api_key is None:
                refused = "a request without a key; the service has none"
            return ApiError(
                500,
                f"the {role} model's server at {exc.url} refused {refused} (HTTP {exc.status}): the"
                f" operator has to set STEPSPEC_{role.upper()}__API_KEY",
                code="upstream_error",
                retry=False,
            )
        # a server answered this request with 404 or 405: the server does not know the path
        if exc.status in (404, 405) and exc.status == self._failed_status:
            return ApiError(exc.status, str(exc), code="upstream_rejected")
        return api_error(exc)


LAST_EVENTS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "message_stop", "error"}
)
"""The types of events that end a stream."""
USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams end with the usage only if the request asks for it."""


def lacks_usage(path: str, content: JsonFields) -> bool:
    """Return whether the answer has no usage. *path* and *content* are those of the request."""
    if path not in USAGE_PATHS or content.get("stream") is not True:
        return False
    return not as_object(content.get("stream_options")).get("include_usage")


def max_answer_tokens(content: JsonFields, context_length: int) -> int:
    """
    Return the largest number of tokens that the answer to *content* can have.

    A request for n choices of each of p prompts gets n times p answers. Each answer has at most
    *context_length* tokens. A list of numbers is one prompt, given as token ids.
    """
    prompt = content.get("prompt")
    choices = content.get("n")
    answers = 1
    if isinstance(prompt, list):
        prompts = cast("list[object]", prompt)
        if any(type(item) is not int for item in prompts):
            answers = len(prompts)
    if type(choices) is int and choices > 0:
        answers *= choices
    return context_length * answers


class ForwardedAnswer:
    """
    A stream on its way from a server to the client: the answer to a request to *path*.

    The client receives complete events only, so that an event with an error can follow at any
    point. With *hides_usage*, the client does not receive the event that has only the usage.
    """

    def __init__(self, path: str, *, hides_usage: bool = False) -> None:
        self._path = path
        self._hides_usage = hides_usage
        self._reader = EventReader()
        self._first_data = b""  # the data of the first event
        self._last_object = b""  # the data of the last event whose data is a JSON object
        self._events = 0  # the number of events that have a JSON object and no error
        self._used_tokens: int | None = None  # written tokens, by the last usage in the stream
        self._done = False  # the event [DONE] has come

    @property
    def written(self) -> int:
        """The tokens that the model has written. Without a usage, each event counts as a token."""
        return self._events if self._used_tokens is None else self._used_tokens

    @property
    def _is_complete(self) -> bool:
        """
        Whether the last event is one that ends a stream.

        Otherwise the stream was cut off, even if the server closed the connection normally.
        """
        if self._done:
            return True
        last = object_in(self._last_object)
        kind = last.get("type")
        if isinstance(kind, str):
            return kind in LAST_EVENTS
        choices: object = last.get("choices")
        if not isinstance(choices, list):
            # an error, or an event of an API whose last event is not known here
            return True
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
        shown: list[bytes] = []
        for data, _, raw in self._reader.feed(part):
            self._note(data)
            if not self._is_hidden(data):
                shown.append(raw)
        return b"".join(shown)

    def finish(self) -> bytes:
        """
        Return the rest of the stream, after the server has closed the connection.

        Some servers send no blank line after the last event. Raise `BrokenAnswer` if the stream was
        cut off.
        """
        rest = self._reader.rest
        data = self._reader.end()
        is_comment = rest.startswith(b":")
        has_event = rest.strip(b"\r\n") != b"" and not is_comment
        is_whole = data.strip() == DONE or bool(object_in(data))
        if has_event and not is_whole:
            raise BrokenAnswer(SERVER_DIED)
        self._note(data)
        if not self._first_data or not self._is_complete:
            raise BrokenAnswer(SERVER_DIED)
        if self._is_hidden(data):
            return b""
        if data:
            rest += b"\n\n"
        return rest

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
        if not data.startswith(b"{"):
            return
        self._last_object = data
        if b'"error"' not in data:
            self._events += 1
        if b'"usage"' in data:
            tokens = written_tokens(object_in(data))
            if tokens is not None:
                self._used_tokens = tokens

    def _is_hidden(self, data: bytes) -> bool:
        """Return whether the client does not receive the event with this *data*."""
        if not self._hides_usage or b'"usage"' not in data:
            return False
        content = object_in(data)
        return "usage" in content and not content.get("choices")


def written_tokens(reply: JsonFields) -> int | None:
    """
    Return the number of tokens that the model has written, from the usage of a reply or an event.

    Return None if there is no usage. An event of the Responses API has the usage within the field
    ``response``.
    """
    holder = as_object(reply.get("response")) or reply
    usage = as_object(holder.get("usage"))
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return tokens if type(tokens) is int and tokens >= 0 else None


def wants_top_logprobs(content: JsonFields) -> bool:
    """
    Return whether *content* asks for the log-probabilities of the likeliest tokens.

    In the chat API, ``top_logprobs`` is the number of these tokens, and ``logprobs`` is a flag. In
    the completions API, ``logprobs`` is the number.
    """
    logprobs = content.get("logprobs")
    is_number = bool(logprobs) and logprobs is not True
    return is_number or bool(content.get("top_logprobs"))
