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
from stepspec.orchestrator.http.sse import DONE, EventReader, EventTooLarge, begins_events
from stepspec.orchestrator.json_values import write_json

from ..errors import ApiError, api_error
from ..formats.deltas import FAILED, FAILED_EVENT, response_failed
from ..formats.requests import ServedModel, forwarded_priority
from ..json_types import JsonFields
from ..records import MESSAGES_PATH, ServiceRequest
from .connection import EVENT_STREAM, ClientConnection
from .health import is_healthy
from .runs import ServiceContext

RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
MAX_FAILURE_BYTES = 1 << 20
"""Bytes of a failed answer that are passed on."""
MAX_ANSWER_BYTES = 1 << 28
"""Bytes of an answer in one piece that are passed on."""
CONNECTION_ERRORS = (aiohttp.ClientError, OSError)
SERVER_DIED = "did the server die?"


class BrokenAnswer(Exception):
    """A server broke off its answer."""


class PriorityRefused(Exception):
    """A server refuses the priority that was added to a request."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """
    An answer of a server that has begun.

    Its methods raise `BrokenAnswer` if the connection breaks, or if nothing comes for too long.
    """

    server: VllmEndpoint
    """The server."""
    call: Call
    """What error messages name."""
    response: aiohttp.ClientResponse
    """The answer."""
    prioritised: bool
    """Whether a priority was added to the request."""

    @property
    def deadlines(self) -> Deadlines:
        return self.server.settings.deadlines

    @property
    def headers(self) -> dict[str, str]:
        """The headers that are passed on."""
        headers = self.response.headers
        return {name: headers[name] for name in RETURNED_HEADERS if name in headers}

    async def read(
        self,
        seconds: float,
        healthy: Callable[[], Awaitable[bool]] | None = None,
    ) -> bytes:
        """
        Return the next part; b"" at the end.

        Wait longer than *seconds* only while the server is *healthy*.
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
        """Return the rest, at most one part more than *max_bytes*."""
        whole = bytearray()
        while len(whole) < max_bytes:
            part = await self.read(self.deadlines.between)
            if not part:
                break
            whole += part
        return bytes(whole)

    async def first_event(self, answer: ForwardedAnswer) -> bytes:
        """Return the bytes of a stream to pass on as soon as its first event is whole."""
        head = b""
        passed = b""
        while part := await self.read(self.deadlines.first):
            head += part
            if not begins_events(head):
                break
            passed += answer.add(part)
            if passed.strip():
                return passed
        if head.strip() and begins_events(head):
            raise BrokenAnswer(SERVER_DIED)
        raise no_stream(self.call, head + await self.rest(MAX_FAILURE_BYTES))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A request that names a model, as the client sent it."""

    context: ServiceContext
    """What all requests of the service share."""
    request: ServiceRequest
    """The record of the request."""
    content: JsonFields
    """The body."""
    model: str | ServedModel
    """The name of a method, or a served model."""

    @property
    def best_priority(self) -> int | None:
        """The best priority that the request may have. None: any."""
        return self.context.clients.best_priority(self.request.client)

    def forward(self, model: ServedModel) -> Response:
        """Answer with the answer of *model*'s server."""
        context = self.context

        async def work(connection: ClientConnection) -> None:
            priority = forwarded_priority(self.content, self.best_priority)
            async with context.admitted(self.request, priority or 0) as seconds:
                await Forwarding(self, model, priority, connection).run(seconds)

        return context.respond(self.request, work)


class Forwarding:
    """
    Forwards the request *call* to a server of *model*, and the answer over *connection*.

    The request goes to the server that its session prefers, or to the server with the least to do.
    It goes to the next server if that one fails before its answer begins. Servers that take a
    *priority* among runs get it; None: the request keeps its own.
    """

    def __init__(
        self,
        call: ModelCall,
        model: ServedModel,
        priority: int | None,
        connection: ClientConnection,
    ) -> None:
        endpoint = call.context.models.endpoint(model.role)
        assert isinstance(endpoint, ReplicatedEndpoint)
        self._http = call.context.http
        self._endpoint = endpoint
        self._request = call.request
        self._model = model
        self._connection = connection
        self._priority = priority if endpoint.settings.priorities else None
        # whether the tokens of the answer are charged to the client
        self._counted = bool(self._request.client) and self._model.role == "large"
        content = {**call.content, "model": model.name}
        with_usage = asking_for_usage(self._request.path, content) if self._counted else None
        self._hides_usage = with_usage is not None  # the client has not asked for the usage
        self._content = with_usage or content
        self._failed_status = 0  # of the last failed answer that was not passed on

    async def run(self, seconds: float) -> None:
        """Answer within *seconds*. Raise `ApiError`."""
        SESSION.set(self._request.session)  # in the task of this request
        try:
            async with asyncio.timeout(seconds):
                await self._endpoint.call(self._send_to)
        except EndpointError as exc:
            raise self._refusal(exc) from exc
        except ApiError as exc:  # the client takes nothing
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
        Send the request to *server* and its answer to the client.

        Raise `EndpointError` before the answer has begun.
        """
        assert isinstance(server, VllmEndpoint)
        settings = server.settings
        call = Call(self._model.role, settings.url, "forward", settings.api_key is not None)
        connection = server.connection
        priority = self._priority if connection.priorities else None
        async with server.apart() if reads_likeliest(self._content) else nullcontext():
            try:
                await self._try(server, call, priority)
            except PriorityRefused:
                await self._try(server, call, None)
                # if this fails too, the request is at fault and not the priority
                connection.priorities &= self._request.calls[-1].status >= 400

    async def _try(self, server: VllmEndpoint, call: Call, priority: int | None) -> None:
        """
        Send the request once, with a *priority* if it is not None.

        Raise `PriorityRefused`, or `EndpointError` before any of the answer is sent.
        """
        request = self._request
        with request.calling(self._model.role, self._model.name, call.url) as record:
            async with await self._open(server, call, priority) as response:
                record.answered(response.status, request.seconds)
                reply = ServerReply(server, call, response, prioritised=priority is not None)
                receive = self._answer if response.ok else self._failure
                try:
                    await receive(reply)
                except (BrokenAnswer, EventTooLarge) as exc:
                    raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
        request.upstream = request.seconds - (request.admitted or 0.0)

    async def _open(
        self,
        server: VllmEndpoint,
        call: Call,
        priority: int | None,
    ) -> aiohttp.ClientResponse:
        """
        Send the request and return the answer, which has begun.

        Raise `EndpointUnavailable` if it does not begin in time. An answer in one piece begins when
        all of it is written, which may take longer while the server is healthy.
        """
        settings = server.settings
        deadlines = settings.deadlines
        proxy = server.connection.proxy
        content = self._content
        if priority is not None:
            content = {**content, "priority": run_place(priority)}
        headers = {
            **self._request.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if settings.api_key is not None:
            headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        post = self._http.post(
            f"{call.url}{self._request.path}",
            data=write_json(content),
            headers=headers,
            timeout=aiohttp.ClientTimeout(sock_connect=deadlines.connect),
            proxy=proxy,
        )
        async with background(post) as (sending,):
            while not (await asyncio.wait([sending], timeout=deadlines.first))[0]:
                if self._streams or not await is_healthy(self._endpoint, server):
                    late = f"no answer after {deadlines.first:g} s (deadlines.first)"
                    raise call.error(EndpointUnavailable, late)
            try:
                return sending.result()
            except CONNECTION_ERRORS as exc:
                raise connection_error(call, exc, deadlines.connect, proxy) from exc

    async def _failure(self, reply: ServerReply) -> None:
        """
        Pass on a failed answer.

        Raise `PriorityRefused` if the server refuses the priority that was added to the request.
        Raise `EndpointError` if another server may answer, or if the prompt is too long.
        """
        status = reply.response.status
        body = await reply.rest(MAX_FAILURE_BYTES)
        if reply.prioritised and status == 400 and b"priority" in body.lower():
            raise PriorityRefused
        error = http_error(reply.call, status, body, self._request.path)
        if isinstance(error, EndpointUnavailable):
            headers = reply.response.headers
            now = http_date(headers.get("Date")) or time.time()
            error.retry_after = retry_after(headers.get("Retry-After"), now)
        if status >= 500 or status in UNUSABLE_STATUSES or isinstance(error, ContextTooLong):
            self._failed_status = status
            raise error
        await self._pass_on(reply, body)

    async def _answer(self, reply: ServerReply) -> None:
        """
        Pass on an answer that has begun.

        Raise `BrokenAnswer`, `EventTooLarge` or `EndpointError` before any of it is sent.
        """
        if self._streams or reply.response.content_type == "text/event-stream":
            await self._stream(reply)
            return
        body = await reply.rest(MAX_ANSWER_BYTES)
        failed = no_reply(reply.call, body)
        if failed:
            raise failed
        self._charge(written_tokens(object_in(body)) or 0)
        await self._pass_on(reply, body)

    async def _pass_on(self, reply: ServerReply, body: bytes) -> None:
        """Pass on an answer in one piece."""
        await self._connection.start(reply.headers, reply.response.status)
        await self._connection.finish(body)

    async def _stream(self, reply: ServerReply) -> None:
        """Pass on a stream. Raise the same errors as `_answer`."""
        connection = self._connection
        call = reply.call
        answer = ForwardedAnswer(self._request.path, hidden=self._hides_usage)
        first = await reply.first_event(answer)
        headers = {**EVENT_STREAM, **reply.headers}
        await connection.start(headers, reply.response.status, failure=answer.failed)
        try:
            await connection.send(first)
            # a server may be silent: parsers of calls keep their text until it is whole
            healthy = partial(is_healthy, self._endpoint, reply.server)
            while part := await reply.read(reply.deadlines.between, healthy):
                await connection.send(answer.add(part))
            rest = answer.finish()
        except (BrokenAnswer, EventTooLarge) as exc:
            message = f"the answer broke off: {exc}"
            self._endpoint.report(call.url, call.error(EndpointUnavailable, message))
            self._request.calls[-1].failure = type(exc).__name__
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
        """Count *tokens* of the answer, if the client is charged for them."""
        if self._counted:
            limit = max_answer_tokens(self._content, self._endpoint.room)
            self._request.large_tokens += min(tokens, limit)

    def _refusal(self, exc: EndpointError) -> ApiError:
        """Return the error of a request that no server has answered."""
        # the service has accepted the client's own key, so the server has refused the service's
        if isinstance(exc, EndpointRejected) and exc.status in (401, 403):
            role = self._model.role
            key = "the service's key for it"
            if self._endpoint.settings.api_key is None:
                key = "a request without a key; the service has none"
            return ApiError(
                500,
                f"the {role} model's server at {exc.url} refused {key} (HTTP {exc.status}): the"
                f" operator has to set STEPSPEC_{role.upper()}__API_KEY",
                code="upstream_error",
                retry=False,
            )
        if exc.status == self._failed_status in (404, 405):
            return ApiError(exc.status, str(exc), code="upstream_rejected")
        return api_error(exc)


LAST_EVENTS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "message_stop", "error"}
)
"""The types of events that end a stream."""
USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams have the usage only if the request asks for it."""


def asking_for_usage(path: str, content: JsonFields) -> JsonFields | None:
    """
    Return *content*, the body of a request to *path*, asking for the usage.

    Return None if it asks for the usage already, or if nothing has to ask.
    """
    if path not in USAGE_PATHS or content.get("stream") is not True:
        return None
    options = as_object(content.get("stream_options"))
    if options.get("include_usage"):
        return None
    return {**content, "stream_options": {**options, "include_usage": True}}


def max_answer_tokens(content: JsonFields, room: int) -> int:
    """
    Return the most tokens that an answer to *content* can have.

    Each prompt and each choice can have *room* tokens, the model's context. A list of numbers is
    one prompt.
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
    return room * answers


class ForwardedAnswer:
    """
    Reads the stream that answers a request to *path* while it passes.

    Only whole events are passed on, so that an error may follow at any time. The events count as
    tokens until the usage is known. With *hidden* the event that has only the usage is left out, as
    the client did not ask for it.
    """

    def __init__(self, path: str, *, hidden: bool = False) -> None:
        self._path = path
        self._hidden = hidden
        self._reader = EventReader()
        self._first = b""  # the data of the first event
        self._last = b""  # the data of the last event with an object
        self._events = 0
        self._reported: int | None = None  # tokens of the last usage
        self._done = False

    @property
    def written(self) -> int:
        """The tokens that the model has written."""
        return self._events if self._reported is None else self._reported

    @property
    def _over(self) -> bool:
        """
        Whether the last event may end the stream.

        A stream without such an event was cut off, even if its connection ended in good order.
        """
        if self._done:
            return True
        last = object_in(self._last)
        kind = last.get("type")
        if isinstance(kind, str):
            return kind in LAST_EVENTS
        choices: object = last.get("choices")
        if not isinstance(choices, list):
            return True
        reasons = [
            as_object(choice).get("finish_reason") for choice in cast("list[object]", choices)
        ]
        return not reasons or any(reason is not None for reason in reasons)

    def add(self, part: bytes) -> bytes:
        """Read the next *part*. Return the events to pass on. Raise `EventTooLarge`."""
        passed: list[bytes] = []
        for data, _, raw in self._reader.feed(part):
            self._take(data)
            if not self._hides(data):
                passed.append(raw)
        return b"".join(passed)

    def finish(self) -> bytes:
        """
        Return the rest to pass on at the end of the connection.

        Raise `BrokenAnswer` if the stream was cut off.
        """
        rest = self._reader.rest
        data = self._reader.end()
        has_event = rest.strip(b"\r\n") != b"" and not rest.startswith(b":")
        is_whole = data.strip() == DONE or bool(object_in(data))
        if has_event and not is_whole:
            raise BrokenAnswer(SERVER_DIED)
        self._take(data)
        if not self._first or not self._over:
            raise BrokenAnswer(SERVER_DIED)
        if self._hides(data):
            return b""
        return rest + b"\n\n" if data else rest

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """
        Return the last event of a stream that breaks off with *error*.

        *body* is the error in the shape of the stream's API.
        """
        if self._path == MESSAGES_PATH:
            return FAILED_EVENT % body
        if self._path != "/v1/responses":
            return FAILED % body
        response = as_object(object_in(self._first).get("response"))
        last_number: object = object_in(self._last).get("sequence_number")
        number = last_number + 1 if isinstance(last_number, int) else 0
        return response_failed(response, number, error.status, error.message)

    def _take(self, data: bytes) -> None:
        """Take note of an event."""
        data = data.strip()  # JSON may have spaces around it
        self._first = self._first or data
        if data == DONE:
            self._done = True
        if not data.startswith(b"{"):
            return
        self._last = data
        if b'"error"' not in data:
            self._events += 1
        if b'"usage"' in data:
            tokens = written_tokens(object_in(data))
            if tokens is not None:
                self._reported = tokens

    def _hides(self, data: bytes) -> bool:
        """Return whether an event has only the usage, which the client did not ask for."""
        if not self._hidden or b'"usage"' not in data:
            return False
        content = object_in(data)
        return "usage" in content and not content.get("choices")


def written_tokens(reply: JsonFields) -> int | None:
    """
    Return the number of tokens that the model has written, by the usage in *reply*.

    *reply* is a reply or an event. Events of the Responses API have the usage within their
    response. None: there is no usage.
    """
    usage = as_object((as_object(reply.get("response")) or reply).get("usage"))
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return tokens if type(tokens) is int and tokens >= 0 else None


def reads_likeliest(content: JsonFields) -> bool:
    """
    Return whether the answer to *content* has the likeliest tokens of each position.

    The chat API counts them in ``top_logprobs``, the completions API in ``logprobs``.
    """
    logprobs = content.get("logprobs")
    return bool(content.get("top_logprobs")) or (bool(logprobs) and logprobs is not True)
