"""Which status a failure has, and whether it is worth another try."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import orjson
import pytest

from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
    MissingCapability,
)
from stepspec.orchestrator.service.http import errors
from stepspec.orchestrator.service.http.errors import ApiError
from stepspec.orchestrator.service.http.middleware import ClientConnection, StreamedResponse
from stepspec.orchestrator.service.watch.records import ServiceRequest

from ....fakes import run


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (ConfigurationError("x"), 400, "invalid_value"),
        (MissingCapability("x"), 400, "invalid_value"),
        (ContextTooLong("x"), 400, "context_length_exceeded"),
        (EndpointRejected("HTTP 400: bad schema"), 400, "upstream_rejected"),
        (EndpointRejected("the key was refused (HTTP 401: no)"), 500, "upstream_error"),
        (EndpointRejected("HTTP 404: no; is a vLLM server at this URL?"), 500, "upstream_error"),
        (EndpointUnavailable("x"), 503, "upstream_unavailable"),
        (MalformedReply("x"), 500, "upstream_error"),
        (TimeoutError(), 504, "deadline"),
        (KeyError("secret"), 500, "internal_error"),
        (ApiError(429, "x", code="queue_full"), 429, "queue_full"),
    ],
)
def test_statuses(exc: Exception, status: int, code: str) -> None:
    refusal = errors.api_error(exc)
    assert (refusal.status, refusal.code) == (status, code)
    assert orjson.loads(refusal.body)["error"]["type"] == errors.TYPES[status]
    assert "secret" not in refusal.message
    assert ("Retry-After" in refusal.all_headers) is (status in (429, 503))


def test_a_failure_after_some_work_is_not_to_be_retried() -> None:
    assert errors.api_error(EndpointUnavailable("x"), partial=True).all_headers["x-should-retry"] == "false"
    assert "x-should-retry" not in errors.api_error(EndpointUnavailable("x")).all_headers


def test_a_client_that_does_not_read_is_disconnected_in_time_and_its_run_cancelled() -> None:
    async def main() -> tuple[str, int]:
        request = ServiceRequest("v", "POST", "/v1/chat/completions", {})
        ended = ""

        async def never(message: MutableMapping[str, Any]) -> None:
            await asyncio.Event().wait()

        async def present() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def work(connection: ClientConnection) -> None:
            nonlocal ended
            try:
                await connection.start({})
            except ApiError as exc:
                ended = f"{exc.status} {exc.code} after {asyncio.get_running_loop().time():g} s"

        await StreamedResponse(request, work, 60.0, asyncio.Event())({}, present, never)
        return ended, request.status

    assert run(main()) == (("499 client_stalled after 60 s", 0), 60)
