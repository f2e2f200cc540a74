"""
API errors: every failure in OpenAI's or Anthropic's shape, with its status and whether to try
again. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    LocalShortage,
    MissingCapability,
    StepspecError,
)
from stepspec.orchestrator.json_values import write_json

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
ANTHROPIC_TYPES: Mapping[int, str] = {
    **TYPES,
    403: "permission_error",
    413: "request_too_large",
    503: "overloaded_error",
    529: "overloaded_error",
}
# in Anthropic's API alone: too many requests at once; there, 429 is for the limits of one client
OVERLOADED = 529
# the codes of an overloaded service
QUEUE_FULL = "queue_full"
QUEUE_TIMEOUT = "queue_timeout"
RETRY_AFTER = 2  # seconds; a full queue and a restarting server both move on in about that time
INTERNAL_ERROR = "internal_error"
# characters
MAX_MESSAGE = 2000
MAX_PARAM = 200
# the status in logs and metrics of a request whose client disconnected; nginx's number
CLIENT_CLOSED = 499


@dataclass(eq=False)
class ApiError(Exception):
    """
    A request that gets no answer, or only the beginning of one.

    *param* names the wrong parameter of the request. *retry* says whether the same request may
    succeed soon; None leaves that to the client's own rules. *headers* are added to those of the
    response.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: bool | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Shorten what repeats megabytes of the request."""
        self.message = shortened(self.message, MAX_MESSAGE)
        self.param = self.param and shortened(self.param, MAX_PARAM)

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> bytes:
        kind = TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return write_json({"error": error})

    @property
    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers or {})
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.status in (429, 503, OVERLOADED):
            headers.setdefault("Retry-After", str(RETRY_AFTER))
        return headers

    def anthropic_body(self, request_id: str) -> bytes:
        """The body in Anthropic's shape, whose message alone says which parameter is wrong."""
        kind = ANTHROPIC_TYPES.get(
            self.status, "api_error" if self.status >= 500 else "invalid_request_error"
        )
        named = self.param is None or self.param in self.message
        error: dict[str, Any] = {
            "type": kind,
            "message": self.message if named else f"{self.param}: {self.message}",
        }
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return write_json({"type": "error", "error": error, "request_id": request_id})


def shortened(text: str, longest: int) -> str:
    """Return *text* with its middle left out if it is longer than *longest* characters."""
    if len(text) <= longest:
        return text
    half = longest // 2 - 2
    return f"{text[:half]}...{text[-half:]}"


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Make the error of a request that is wrong in itself."""
    return ApiError(400, message, param, code)


def api_error(exc: BaseException, *, partial: bool = False) -> ApiError:
    """
    Translate *exc* for the client.

    After *partial* work (a served model has written tokens) the client is asked not to retry by
    itself.
    """
    retry = False if partial else None
    match exc:
        case ApiError():
            return exc
        case ContextTooLong():
            return ApiError(400, str(exc), "messages", "context_length_exceeded")
        # what the method of the request cannot do with these models
        case ConfigurationError() | MissingCapability():
            return ApiError(400, str(exc), "model", "invalid_value")
        case EndpointRejected() if exc.cause.startswith(("HTTP 400", "HTTP 422")):
            return ApiError(400, str(exc), code="upstream_rejected")
        case LocalShortage():
            return ApiError(503, str(exc), code="overloaded", retry=True)
        case EndpointUnavailable():
            after = {"Retry-After": str(ceil(exc.retry_after))} if exc.retry_after else None
            return ApiError(503, str(exc), code="upstream_unavailable", retry=retry, headers=after)
        case EndpointError() | StepspecError():
            return ApiError(500, str(exc), code="upstream_error", retry=retry)
        case TimeoutError():
            return ApiError(504, "no answer before the deadline", code="deadline", retry=False)
        case _:
            return ApiError(
                500,
                "the service failed; see its log for the cause",
                code=INTERNAL_ERROR,
                retry=retry,
            )


def format_path(location: Sequence[int | str]) -> str:
    """Write the location of a value in a request as ``messages[0].content``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path
