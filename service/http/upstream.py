"""
The servers of both models: whether they are up, and forwarding of requests to a served model by its
own name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Literal, cast

import aiohttp

from stepspec.orchestrator.backends.vllm import VllmEndpoint
from stepspec.orchestrator.backends.vllm.client import connection_error
from stepspec.orchestrator.backends.vllm.http_errors import (
    Call,
    http_date,
    http_error,
    no_reply,
    no_stream,
    object_in,
    retry_after,
)
from stepspec.orchestrator.backends.vllm.sse import DONE, EventReader, EventTooLarge, begins_events
from stepspec.orchestrator.chain import Role
from stepspec.orchestrator.concurrency import background
from stepspec.orchestrator.endpoints import ModelEndpoint, ReplicatedEndpoint
from stepspec.orchestrator.endpoints.breaker import UNUSABLE
from stepspec.orchestrator.endpoints.interfaces import Server
from stepspec.orchestrator.endpoints.request_context import SESSION, run_place
from stepspec.orchestrator.endpoints.settings import Deadlines
from stepspec.orchestrator.errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    LocalShortage,
)
from stepspec.orchestrator.json_values import write_json
from stepspec.orchestrator.nesting import leaves

from ..errors import ApiError, api_error
from ..formats.deltas import FAILED, FAILED_EVENT, response_failed
from ..formats.requests import ServedModel
from ..records import MESSAGES_PATH, HealthChecked, ServiceObserver, ServiceRequest
from .middleware import EVENT_STREAM, ClientConnection

# seconds that an idle connection stays open; vLLM closes its own after 5, maybe as a request is
# under way
IDLE = 2.0
CHECK_SECONDS = 5.0  # for one health check
RETURNED_HEADERS = ("Content-Type", "Retry-After", "x-should-retry")
# bytes of a failed answer that are passed on, and of one in a piece
LARGEST_FAILURE = 1 << 20
LARGEST_ANSWER = 1 << 28
BROKEN = (aiohttp.ClientError, OSError)


class HealthMonitor:
    """
    Checks the health of the servers; `up` is the last result by role. *observe* receives every
    result.

    A server that fails a check is reported to its circuit breaker, which probes it from then on.
    """

    def __init__(self, endpoints: Mapping[Role, ModelEndpoint], observe: ServiceObserver) -> None:
        self._observe = observe
        self._endpoints: dict[Role, ModelEndpoint] = {
            role: leaves(each)[-1] for role, each in endpoints.items()
        }
        self.up: dict[Role, bool] = {role: endpoint.usable for role, endpoint in endpoints.items()}

    @property
    def status(self) -> Literal["ready", "degraded", "down"]:
        """
        Degraded while the small model is down, as runs go on with the large one alone; down without
        the large.
        """
        return "ready" if all(self.up.values()) else "degraded" if self.up["large"] else "down"

    @asynccontextmanager
    async def checking(self, seconds: float) -> AsyncGenerator[None]:
        """Check every server, and again *seconds* after that, while the block lasts."""

        async def check() -> None:
            while True:
                await asyncio.gather(*map(self._check, self._endpoints))
                await asyncio.sleep(seconds)

        async with background(check()):
            yield

    async def _check(self, role: Role) -> None:
        endpoint = self._endpoints[role]
        assert isinstance(endpoint, ReplicatedEndpoint)
        self.up[role] = any(
            await asyncio.gather(*(_is_healthy(endpoint, server) for server in endpoint.up))
        )
        self._observe(HealthChecked(role, self.up[role]))


async def _is_healthy(endpoint: ReplicatedEndpoint, server: Server) -> bool:
    url = server.settings.url
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await server.check_health()
    except TimeoutError:
        message = f"/health does not answer within {CHECK_SECONDS:g} s"
        endpoint.report(
            url, EndpointUnavailable(message, role=endpoint.role, url=url, verb="health")
        )
        return False
    except LocalShortage:
        return True  # Nothing is known of the server.
    except EndpointError as exc:
        endpoint.report(url, exc)
        return False
    return True


class BrokenAnswer(Exception):
    """A server broke off its answer."""


class Forwarding:
    """
    Forwards a *request* to the servers of *model*, an *endpoint*, over *http*, and the answer over
    *connection*.

    It goes to the server that the request's session prefers, or to the one with the least to do,
    and to the next one if it fails before its answer begins. The *body* of the client (parsed:
    *content*) is sent unchanged where nothing has to be added. *priority* is that of a run, for
    servers that take one; None: the request keeps its own.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        endpoint: ModelEndpoint,
        request: ServiceRequest,
        model: ServedModel,
        content: Mapping[str, Any],
        body: bytes,
        connection: ClientConnection,
        priority: int | None,
    ) -> None:
        assert isinstance(endpoint, ReplicatedEndpoint)
        self.http = http
        self.endpoint = endpoint
        self.request = request
        self.model = model
        self.connection = connection
        self.priority = priority if endpoint.settings.priorities else None
        # whether the tokens of the answer are charged
        self.counted = bool(request.client) and model.role == "large"
        changed = content if content["model"] == model.name else {**content, "model": model.name}
        asking = asking_for_usage(request.path, changed) if self.counted else None
        self.hidden = asking is not None  # whether the client has not asked for their number
        self.content = asking or changed
        self.client_body = body if self.content is content else None
        self.status = 0  # of the last failed answer that was not passed on

    async def run(self, seconds: float) -> None:
        """Answer within so many *seconds*. Raise `ApiError`."""
        SESSION.set(self.request.session)  # in the task of this request
        try:
            async with asyncio.timeout(seconds):
                await self.endpoint.call(self.to)
        except EndpointError as exc:
            raise self.refusal(exc) from exc
        except ApiError as exc:  # the client takes nothing
            if not self.connection.started:
                raise
            self.request.error = exc
            self.request.status = exc.status
        except TimeoutError:
            error = ApiError(
                504,
                f"the {self.model.role} model did not answer in time",
                code="deadline",
                retry=False,
            )
            if not self.connection.started:
                raise error from None
            self.request.error = error
            await self.connection.fail(error)

    async def to(self, server: Server) -> None:
        """
        Send the request to *server* and its answer to the client. Raise `EndpointError` before it
        has begun.
        """
        assert isinstance(server, VllmEndpoint)
        call = Call(
            self.model.role, server.settings.url, "forward", server.settings.api_key is not None
        )
        prioritised = self.priority is not None and server.connection.priorities
        async with server.apart() if reads_likeliest(self.content) else nullcontext():
            if not await self._try(server, call, prioritised=prioritised):
                await self._try(server, call, prioritised=False)
                # then the request is at fault
                server.connection.priorities &= self.request.calls[-1].status >= 400

    async def _try(self, server: VllmEndpoint, call: Call, *, prioritised: bool) -> bool:
        """
        Send the request once; return False if the server refuses the priority that was added to it.
        """
        with self.request.calling(self.model.role, self.model.name, call.url) as record:
            response = await self._open(server, call, prioritised=prioritised)
            async with response:
                record.answered(response.status, self.request.seconds)
                try:
                    if response.status < 400:
                        await self._answer(response, server, call)
                    elif not await self._failure(response, server, call, prioritised=prioritised):
                        return False
                except (BrokenAnswer, EventTooLarge) as exc:
                    raise call.error(EndpointUnavailable, f"no answer: {exc}") from exc
        self.request.upstream = self.request.seconds - (self.request.admitted or 0.0)
        return True

    async def _open(
        self, server: VllmEndpoint, call: Call, *, prioritised: bool
    ) -> aiohttp.ClientResponse:
        """
        Send the request, and once more if the server closed an idle connection just then; return
        its answer.
        """
        settings = server.settings
        content = self.content
        proxy = server.connection.proxy
        if prioritised and self.priority is not None:
            content = {**content, "priority": run_place(self.priority)}
        unchanged = content is self.content and self.client_body is not None
        body = self.client_body if unchanged else write_json(content)
        headers = {
            **self.request.forwarded,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
        }
        if settings.api_key is not None:
            headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        url = f"{call.url}{self.request.path}"
        timeout = aiohttp.ClientTimeout(sock_connect=settings.deadlines.connect)

        async def send() -> aiohttp.ClientResponse:
            try:
                return await self.http.post(
                    url, data=body, headers=headers, timeout=timeout, proxy=proxy
                )
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                return await self.http.post(
                    url, data=body, headers=headers, timeout=timeout, proxy=proxy
                )

        async with background(send()) as (sending,):
            await self._wait(sending, server, call)
            try:
                return sending.result()
            except BROKEN as exc:
                raise connection_error(call, exc, settings.deadlines.connect, proxy) from exc

    async def _wait(self, sending: asyncio.Task[Any], server: VllmEndpoint, call: Call) -> None:
        """
        Wait for the beginning of an answer. Raise `EndpointUnavailable` if it does not begin in
        time.

        One in one piece begins when all of it is written: it may take longer, as long as the server
        is healthy.
        """
        first = server.settings.deadlines.first
        while not (await asyncio.wait([sending], timeout=first))[0]:
            late = call.error(EndpointUnavailable, f"no answer after {first:g} s (deadlines.first)")
            if self.content.get("stream") is True:
                raise late
            try:
                async with asyncio.timeout(min(first, CHECK_SECONDS)):
                    await server.check_health()
            except TimeoutError:
                raise late from None

    async def _failure(
        self,
        response: aiohttp.ClientResponse,
        server: VllmEndpoint,
        call: Call,
        *,
        prioritised: bool,
    ) -> bool:
        """
        Pass on a failed answer; return False if the server refuses the priority that was added to
        the request.

        Raise `EndpointError` if another server may answer, or the prompt is too long.
        """
        status = response.status
        body = await _all(response, server.settings.deadlines.between)
        if prioritised and status == 400 and b"priority" in body.lower():
            return False
        error = http_error(call, status, body, self.request.path)
        if isinstance(error, EndpointUnavailable):
            now = http_date(response.headers.get("Date")) or time.time()
            error.retry_after = retry_after(response.headers.get("Retry-After"), now)
        if status >= 500 or status in UNUSABLE or isinstance(error, ContextTooLong):
            self.status = status
            raise error
        await self.connection.start(_returned(response), status)
        await self.connection.finish(body)
        return True

    async def _answer(
        self, response: aiohttp.ClientResponse, server: VllmEndpoint, call: Call
    ) -> None:
        """
        Pass on an answer that has begun. Raise `BrokenAnswer` or `EndpointError` before any of it
        is sent.
        """
        deadlines = server.settings.deadlines
        most = most_tokens(self.content, self.endpoint.room)
        answer = ForwardedAnswer(self.request.path, counted=self.counted, hidden=self.hidden)
        if self.content.get("stream") is not True and response.content_type != "text/event-stream":
            body = await _all(response, deadlines.between, LARGEST_ANSWER)
            if failed := no_reply(call, body):
                raise failed
            self.request.large_tokens += (
                min(written_tokens(object_in(body)), most) if self.counted else 0
            )
            await self.connection.start(_returned(response), response.status)
            await self.connection.finish(body)
            return
        passed = await _first_event(response, answer, call, deadlines)
        await self.connection.start(
            {**EVENT_STREAM, **_returned(response)}, response.status, failure=answer.failed
        )
        try:
            await self.connection.send(passed)
            # parsers of calls keep their text until it is whole
            healthy = partial(_is_healthy, self.endpoint, server)
            while part := await _read(response, deadlines.between, healthy):
                await self.connection.send(answer.add(part))
            rest = answer.finish()
        except (BrokenAnswer, EventTooLarge) as exc:
            message = f"the answer broke off: {exc}"
            self.endpoint.report(call.url, call.error(EndpointUnavailable, message))
            self.request.calls[-1].failure = type(exc).__name__
            self.request.error = error = ApiError(503, message, code="upstream_error", retry=False)
            await self.connection.fail(error)
            return
        finally:
            self.request.large_tokens += min(answer.written, most) if self.counted else 0
        await self.connection.finish(rest)

    def refusal(self, exc: EndpointError) -> ApiError:
        """Return the error of a request that no server has answered."""
        # the client's own key was accepted already
        if isinstance(exc, EndpointRejected) and exc.status in (401, 403):
            role = self.model.role
            keyed = self.endpoint.settings.api_key is not None
            key = (
                "the service's key for it"
                if keyed
                else "a request without a key; the service has none"
            )
            message = (
                f"the {role} model's server at {exc.url} refused {key} (HTTP {exc.status}): the"
                f" operator has to set STEPSPEC_{role.upper()}__API_KEY"
            )
            return ApiError(500, message, code="upstream_error", retry=False)
        if exc.status == self.status in (404, 405):
            return ApiError(self.status, str(exc), code="upstream_rejected")
        return api_error(exc)


async def _first_event(
    response: aiohttp.ClientResponse, answer: ForwardedAnswer, call: Call, deadlines: Deadlines
) -> bytes:
    """Return what is to be passed on of a stream once its first event is whole."""
    part = await _read(response, deadlines.first)
    head = part
    passed = b""
    while part and begins_events(head):
        passed += answer.add(part)
        if passed.strip():
            return passed
        part = await _read(response, deadlines.first)
        head += part
    if head.strip() and begins_events(head):
        raise BrokenAnswer("did the server die?")
    raise no_stream(call, head + await _all(response, deadlines.between))


LAST_EVENTS = frozenset(
    {"response.completed", "response.failed", "response.incomplete", "message_stop", "error"}
)
USAGE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""The paths whose streams tell the usage only if asked to."""


def asking_for_usage(path: str, content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """
    Return *content*, the body of a request to *path*, with the wish for the usage; None if it needs
    no change.
    """
    options = content.get("stream_options")
    wished = isinstance(options, Mapping) and bool(
        cast("Mapping[str, Any]", options).get("include_usage")
    )
    if path not in USAGE_PATHS or content.get("stream") is not True or wished:
        return None
    kept = dict(cast("Mapping[str, Any]", options)) if isinstance(options, Mapping) else {}
    return {**content, "stream_options": {**kept, "include_usage": True}}


def most_tokens(content: Mapping[str, Any], room: int) -> int:
    """
    Return how many tokens an answer to *content* can have: *room*, the model's, for each prompt and
    choice.
    """
    prompt = content.get("prompt")
    choices = content.get("n")
    prompts = cast("list[object]", prompt) if isinstance(prompt, list) else []
    several = any(type(each) is not int for each in prompts)  # a list of numbers is one prompt
    return (
        room
        * (len(prompts) if several else 1)
        * (choices if type(choices) is int and choices > 0 else 1)
    )


class ForwardedAnswer:
    """
    Reads a stream that answers a request to *path* as it passes. `written` is the tokens that the
    model wrote.

    Only whole events are passed on, so that an error may follow at any time. Their tokens are
    *counted* by the events until the usage is there. With *hidden* the event with the usage alone
    is left out: the client did not ask for it.
    """

    def __init__(self, path: str, *, counted: bool = False, hidden: bool = False) -> None:
        self._path = path
        self._counted = counted
        self._hidden = hidden
        self._reader = EventReader()
        self._first = self._last = b""  # the data of the first and the last event with an object
        self._events = 0
        self._told = -1
        self._done = False

    @property
    def written(self) -> int:
        return self._told if self._told >= 0 else self._events

    @property
    def _over(self) -> bool:
        """
        Whether the last event may be the last of all: a stream without one was cut off, even if in
        good order.
        """
        last = object_in(self._last)
        kind = last.get("type")
        choices = cast("object", last.get("choices"))
        each = cast("list[object]", choices) if isinstance(choices, list) else []
        unfinished = {_field(choice, "finish_reason") for choice in each} == {None}
        return self._done or (kind in LAST_EVENTS if isinstance(kind, str) else not unfinished)

    def add(self, part: bytes) -> bytes:
        """Read the next *part*, and return what is to be passed on now. Raise `EventTooLarge`."""
        return b"".join(raw for data, _, raw in self._reader.feed(part) if self._passes(data))

    def finish(self) -> bytes:
        """
        Return what is still to be passed on at the end. Raise `BrokenAnswer` if a stream ends
        before its own end.
        """
        rest = self._reader.rest
        data = self._reader.end()
        cut = rest.strip(b"\r\n") != b"" and not rest.startswith(b":") and not _whole(data)
        passed = b"" if cut or not self._passes(data) else rest + b"\n\n" if data else rest
        if cut or not self._first or not self._over:
            raise BrokenAnswer("did the server die?")
        return passed

    def failed(self, error: ApiError, body: bytes) -> bytes:
        """
        Return the last event of a stream that breaks off: *error*, whose *body* is in the shape of
        its API.
        """
        if self._path != "/v1/responses":
            return (FAILED_EVENT if self._path == MESSAGES_PATH else FAILED) % body
        last = object_in(self._last)
        begun = object_in(self._first).get("response")
        number: Any = last.get("sequence_number")
        response = cast("dict[str, Any]", begun) if isinstance(begun, dict) else {}
        return response_failed(
            response, number + 1 if isinstance(number, int) else 0, error.status, error.message
        )

    def _passes(self, data: bytes) -> bool:
        data = data.strip()  # as JSON may have spaces around it
        if not data:
            return True
        self._first = self._first or data
        self._last = data if data.startswith(b"{") else self._last
        self._done = self._done or data == DONE
        if not (self._counted and data.startswith(b"{")):
            return True
        self._events += b'"error"' not in data
        if b'"usage"' not in data:
            return True
        content = object_in(data)
        self._told = written_tokens(content, self._told)
        return not (self._hidden and "usage" in content and not content.get("choices"))


def written_tokens(reply: Mapping[str, Any], unknown: int = 0) -> int:
    """
    Return how many tokens the model has written, by a *reply* or an event of one; *unknown* if it
    does not say.
    """
    # the Responses API's events have a response
    usage = _field(_field(reply, "response") or reply, "usage")
    counts = _field(usage, "completion_tokens"), _field(usage, "output_tokens")
    tokens = counts[1] if counts[0] is None else counts[0]
    return tokens if type(tokens) is int and tokens >= 0 else unknown


def _field(value: object, name: str) -> Any:
    """Return the field *name* of an object; None of anything else."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _whole(data: bytes) -> bool:
    """Whether *data*, of an event without its blank line, is complete."""
    return data.strip() == DONE or bool(object_in(data))


def reads_likeliest(content: Mapping[str, Any]) -> bool:
    """
    Whether the answer to *content* has the likeliest tokens of positions, in the chat API or the
    completions API.
    """
    logprobs = content.get("logprobs")
    top = content.get("top_logprobs")
    return bool(top) or (bool(logprobs) and logprobs is not True)


def _returned(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {
        name: value
        for name in RETURNED_HEADERS
        if (value := response.headers.get(name)) is not None
    }


async def _read(
    response: aiohttp.ClientResponse,
    seconds: float,
    healthy: Callable[[], Awaitable[bool]] | None = None,
) -> bytes:
    """
    Return the next part of an answer; b"" at its end. Raise `BrokenAnswer`, but not if a *healthy*
    one is silent.
    """
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    return await response.content.readany()
            if healthy is None or not await healthy():
                raise BrokenAnswer(f"nothing came for {seconds:g} s")
    except BROKEN as exc:
        raise BrokenAnswer("did the server die?") from exc


async def _all(
    response: aiohttp.ClientResponse, seconds: float, most: int = LARGEST_FAILURE
) -> bytes:
    """
    Return the rest of an answer, each part of which comes within so many *seconds*. Raise
    `BrokenAnswer`.
    """
    whole = bytearray()
    while len(whole) < most and (part := await _read(response, seconds)):
        whole += part
    return bytes(whole)
