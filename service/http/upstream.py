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
from ..formats.deltas import FAILED, FAILED_EVENT, response_failed
from ..formats.requests import ServedModel, forwarded_priority
from ..json_types import JsonFields
from ..records import MESSAGES_PATH, ServiceRequest
from .connection import EVENT_STREAM, ClientConnection
from .health import is_healthy
from .runs import ServiceContext

RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
MAX_FAILURE_BYTES = 1 << 20
"""The largest number of bytes of a failed answer that are passed on."""
MAX_ANSWER_BYTES = 1 << 28
"""The largest number of bytes of an answer in one piece that are passed on."""
SERVER_DIED = "did the server die?"


async def send_anew_after_idle(
    post: Callable[[], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    """Send a request by *post*. Send it again if the server closed an idle connection just then."""
    try:
        return await post()
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
        return await post()


class BrokenAnswer(Exception):
    """A server did not complete its answer."""


class PriorityRefused(Exception):
    """A server refuses the priority that was added to a request."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """
    A server's answer whose headers have arrived.

    The methods raise `BrokenAnswer` if the connection breaks, or if no bytes come for too long.
    """

    server: VllmEndpoint
    """The server."""
    call: Call
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
        Return the next bytes of the body; b"" at the end.

        Wait at most *seconds*. With *healthy*, wait again as long as it returns True.
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
        Read until one event is complete. Return the bytes so far that the client receives.

        Raise `EndpointError` if the body is no stream of events.
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
        # the server sent a part of an event, and no more
        if received.strip() and begins_events(received):
            raise BrokenAnswer(SERVER_DIED)
        # the server sent nothing, or something else than events, such as an error in JSON
        raise no_stream(self.call, received + await self.rest(MAX_FAILURE_BYTES))


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A client's request, and the model that it names."""

    context: ServiceContext
    """Settings, admission and connections, which all requests share."""
    request: ServiceRequest
    """The record of the request."""
    body: bytes
    """The body as the client sent it."""
    content: JsonFields
    """The parsed body."""
    model: str | ServedModel
    """The name of a method, or a served model."""

    @property
    def best_priority(self) -> int | None:
        """The best priority that the client's key allows. None: the key allows any."""
        return self.context.clients.best_priority(self.request.client)

    def forward(self, model: ServedModel) -> Response:
        """Send the request to a server of *model*, and its answer to the client."""
        context = self.context

        async def work(connection: ClientConnection) -> None:
            priority = forwarded_priority(self.content, self.best_priority)
            async with context.admitted(self.request, priority or 0) as seconds:
                await Forwarding(self, model, priority, connection).run(seconds)

        return context.respond(self.request, work)


class Forwarding:
    """
    Forwards *call* to a server of *model*, and the server's answer over *connection*.

    The request goes to the server of its session, or to the server with the fewest requests. If a
    server fails before its answer begins, the request goes to the next server. A server that orders
    requests by priority receives *priority*. None: the request keeps the priority in its body.
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
        self._call = call
        self._request = call.request
        self._model = model
        self._connection = connection
        self._priority = priority if endpoint.settings.priorities else None
        content = {**call.content, "model": model.name}
        # the client pays for the tokens of the large model
        self._charged = bool(call.request.client) and model.role == "large"
        # the service needs the usage, and the client has not asked for it
        self._adds_usage = self._charged and lacks_usage(call.request.path, content)
        if self._adds_usage:
            options = as_object(content.get("stream_options"))
            content["stream_options"] = {**options, "include_usage": True}
        self._content = content
        self._failed_status = 0  # of the last failed answer that the client did not receive

    async def run(self, seconds: float) -> None:
        """
        Answer within *seconds*.

        Raise `ApiError` if the answer cannot begin. The client receives a later error in the
        answer.
        """
        SESSION.set(self._request.session)  # a context variable: no other task sees the change
        try:
            async with asyncio.timeout(seconds):
                await self._endpoint.call(self._send_to)
        except EndpointError as exc:
            raise self._refusal(exc) from exc
        except ApiError as exc:  # the client has stopped reading
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
        Send the request to *server*, and the answer to the client.

        Raise `EndpointError` only if the client has received nothing: another server may answer.
        """
        assert isinstance(server, VllmEndpoint)
        settings = server.settings
        call = Call(
            self._model.role,
            settings.url,
            "forward",
            settings.api_key is not None,
        )
        connection = server.connection
        priority = self._priority if connection.priorities else None
        # vLLM cannot answer such a request and a question by token ids in one batch
        alone = server.apart() if wants_top_logprobs(self._content) else nullcontext()
        async with alone:
            try:
                await self._attempt(server, call, priority)
            except PriorityRefused:
                await self._attempt(server, call, None)
                # the server accepted the request without the priority: send it none from now on
                if self._request.calls[-1].status < 400:
                    connection.priorities = False

    async def _attempt(
        self,
        server: VllmEndpoint,
        call: Call,
        priority: int | None,
    ) -> None:
        """
        Send the request once, and the answer to the client. None: send no *priority*.

        Raise `PriorityRefused` or `EndpointError` only if the client has received nothing.
        """
        request = self._request
        with request.calling(self._model.role, self._model.name, call.url) as record:
            async with await self._open(server, call, priority) as response:
                record.answered(response.status, request.seconds)
                reply = ServerReply(
                    server,
                    call,
                    response,
                    prioritised=priority is not None,
                )
                pass_on = self._pass_on_answer if response.ok else self._pass_on_failure
                try:
                    await pass_on(reply)
                except (BrokenAnswer, EventTooLarge) as exc:
                    raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
        request.upstream_seconds = request.seconds - (request.admitted or 0.0)

    async def _open(
        self,
        server: VllmEndpoint,
        call: Call,
        priority: int | None,
    ) -> aiohttp.ClientResponse:
        """
        Send the request. Return the answer when its headers have arrived.

        Raise `EndpointUnavailable` if the headers do not arrive in time. A server sends the headers
        of an answer in one piece after it has written the whole answer. The service waits for them
        as long as the server is healthy.
        """
        settings = server.settings
        deadlines = settings.deadlines
        proxy = server.connection.proxy
        content = self._content
        if priority is not None:
            content = {**content, "priority": run_place(priority)}
        # a request that stepspec does not change passes through byte by byte
        unchanged = content == self._call.content
        body = self._call.body if unchanged else write_json(content)
        headers = {
            **self._request.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if settings.api_key is not None:
            headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        post = partial(
            self._http.post,
            f"{call.url}{self._request.path}",
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
                    raise call.error(EndpointUnavailable, late)
            try:
                return sending.result()
            except CONNECTION_ERRORS as exc:
                raise connection_error(call, exc, deadlines.connect, proxy) from exc

    async def _pass_on_failure(self, reply: ServerReply) -> None:
        """
        Send the client an answer whose status is an error.

        Raise `PriorityRefused` if the server refuses the priority that the service added. Raise
        `EndpointError` if another server may answer, or if the prompt is too long.
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
        await self._pass_on_body(reply, body)

    async def _pass_on_answer(self, reply: ServerReply) -> None:
        """
        Send the client an answer, as a stream or in one piece.

        Raise `BrokenAnswer`, `EventTooLarge` or `EndpointError` only if the client has received
        nothing.
        """
        if self._streams or reply.response.content_type == "text/event-stream":
            await self._pass_on_stream(reply)
            return
        body = await reply.rest(MAX_ANSWER_BYTES)
        failed = no_reply(reply.call, body)
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
        call = reply.call
        answer = ForwardedAnswer(self._request.path, hides_usage=self._adds_usage)
        first = await reply.first_event(answer)
        headers = {**EVENT_STREAM, **reply.headers}
        await connection.start(headers, reply.response.status, failure=answer.failed)
        try:
            await connection.send(first)
            # a healthy server may be silent: it keeps the text of a tool call until the call ends
            healthy = partial(is_healthy, self._endpoint, reply.server)
            while part := await reply.read(reply.deadlines.between, healthy):
                await connection.send(answer.add(part))
            rest = answer.finish()
        except (BrokenAnswer, EventTooLarge) as exc:
            message = f"the answer broke off: {exc}"
            self._endpoint.report(call.url, call.error(EndpointUnavailable, message))
            self._request.calls[-1].failure = type(exc).__name__
            await connection.fail(
                ApiError(
                    503,
                    message,
                    code="upstream_error",
                    retry=False,
                )
            )
            return
        finally:
            self._charge(answer.written)
        await connection.finish(rest)

    @property
    def _streams(self) -> bool:
        """Whether the client asks for a stream."""
        return self._content.get("stream") is True

    def _charge(self, tokens: int) -> None:
        """Add *tokens* of the answer to what the client has used, if the client pays for them."""
        if self._charged:
            limit = max_answer_tokens(self._content, self._endpoint.room)
            self._request.large_tokens += min(tokens, limit)

    def _refusal(self, exc: EndpointError) -> ApiError:
        """Return the client's error for *exc*: no server has answered the request."""
        # The service sends a server its own key, and never the client's. So the operator has to
        # correct the key, and the client can do nothing.
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
        # a server has answered this very request: it does not have the path
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
    """Return whether the answer to *content*, a request to *path*, has no usage."""
    if path not in USAGE_PATHS or content.get("stream") is not True:
        return False
    return not as_object(content.get("stream_options")).get("include_usage")


def max_answer_tokens(content: JsonFields, room: int) -> int:
    """
    Return the largest number of tokens that the answer to *content* can have.

    A request for n choices of each of p prompts gets n times p answers. Each answer has at most
    *room* tokens, the model's context. A list of numbers is one prompt, given as token ids.
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
    A stream on its way from a server to the client. It answers a request to *path*.

    The client receives complete events only, so that an event with an error can follow at any
    point. With *hides_usage*, it does not receive the event that has nothing but the usage.
    """

    def __init__(self, path: str, *, hides_usage: bool = False) -> None:
        self._path = path
        self._hides_usage = hides_usage
        self._reader = EventReader()
        self._first_data = b""  # of the first event
        self._last_object = b""  # the data of the last event whose data is a JSON object
        self._events = 0  # events with an object that is no error
        self._used_tokens: int | None = None  # by the last usage in the stream
        self._done = False  # the event [DONE] has come

    @property
    def written(self) -> int:
        """The tokens that the model has written. Without a usage, each event counts as a token."""
        return self._events if self._used_tokens is None else self._used_tokens

    @property
    def _may_end(self) -> bool:
        """
        Whether the stream may end after the events so far.

        A stream that ends at another point was cut off, even if its connection was closed normally.
        """
        if self._done:
            return True
        last = object_in(self._last_object)
        kind = last.get("type")
        if isinstance(kind, str):
            return kind in LAST_EVENTS
        choices: object = last.get("choices")
        if not isinstance(choices, list):
            return True  # an error, or an event of another API, whose last event is unknown
        reasons = [
            as_object(choice).get("finish_reason") for choice in cast("list[object]", choices)
        ]
        return not reasons or any(reason is not None for reason in reasons)

    def add(self, part: bytes) -> bytes:
        """Read the next *part*. Return the events for the client. Raise `EventTooLarge`."""
        shown: list[bytes] = []
        for data, _, raw in self._reader.feed(part):
            self._note(data)
            if not self._is_hidden(data):
                shown.append(raw)
        return b"".join(shown)

    def finish(self) -> bytes:
        """
        Return the rest for the client. The server has closed the connection.

        The last event may lack the blank line that ends an event. Raise `BrokenAnswer` if the
        stream was cut off.
        """
        rest = self._reader.rest
        data = self._reader.end()
        has_event = rest.strip(b"\r\n") != b"" and not rest.startswith(b":")
        is_whole = data.strip() == DONE or bool(object_in(data))
        if has_event and not is_whole:
            raise BrokenAnswer(SERVER_DIED)
        self._note(data)
        if not self._first_data or not self._may_end:
            raise BrokenAnswer(SERVER_DIED)
        if self._is_hidden(data):
            return b""
        if data:
            rest += b"\n\n"
        return rest

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """
        Return the event that ends the stream with *error*.

        *body* is *error* in the form of the stream's API.
        """
        if self._path == MESSAGES_PATH:
            return FAILED_EVENT % body
        if self._path != "/v1/responses":
            return FAILED % body
        response = as_object(object_in(self._first_data).get("response"))
        last_number: object = object_in(self._last_object).get("sequence_number")
        number = last_number + 1 if isinstance(last_number, int) else 0
        return response_failed(response, number, error.status, error.message)

    def _note(self, data: bytes) -> None:
        """Note what the *data* of an event says about the stream."""
        data = data.strip()  # JSON may have spaces around it
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
    Return the number of tokens in the usage of *reply*, a reply or an event. None: it has no usage.

    In an event of the Responses API, the usage is a field of the field ``response``.
    """
    usage = as_object((as_object(reply.get("response")) or reply).get("usage"))
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    return tokens if type(tokens) is int and tokens >= 0 else None


def wants_top_logprobs(content: JsonFields) -> bool:
    """
    Return whether *content* asks for the likeliest tokens of each position, with their logprobs.

    The chat API has their number in ``top_logprobs``, and a flag in ``logprobs``. The completions
    API has the number in ``logprobs``.
    """
    logprobs = content.get("logprobs")
    is_number = bool(logprobs) and logprobs is not True
    return is_number or bool(content.get("top_logprobs"))
