"""API errors: every failure with its status, in OpenAI's or Anthropic's shape. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from stepspec.orchestrator.errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointRejected,
    EndpointUnavailable,
    LocalShortage,
    MissingCapability,
    StepspecError,
)
from stepspec.orchestrator.json_values import write_json

from .json_types import HttpHeaders, JsonObject

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
OVERLOADED = 529
"""
Anthropic's status for too many requests at once. In its API 429 is for the limits of one client.
"""
QUEUE_FULL = "queue_full"
QUEUE_TIMEOUT = "queue_timeout"
RETRY_SECONDS = 2
"""Seconds in which a full queue and a restarting server usually move on."""
INTERNAL_ERROR = "internal_error"
MAX_MESSAGE_LENGTH = 2000
"""Characters of a message."""
MAX_PARAM_LENGTH = 200
"""Characters of the name of a parameter."""
CLIENT_CLOSED = 499
"""nginx's status, in logs and metrics, for a request whose client disconnected."""


@dataclass(eq=False)
class ApiError(Exception):
    """A request that gets no answer, or only the beginning of one."""

    status: int
    """The HTTP status."""
    message: str
    """What is wrong, and what to do."""
    param: str | None = None
    """The wrong parameter of the request. None: no parameter is wrong."""
    code: str | None = None
    """The code by which programs know the error. None: it has none."""
    retry: bool | None = None
    """Whether the same request may succeed soon. None: the client decides."""
    headers: HttpHeaders | None = None
    """Headers that are added to those of the response."""

    def __post_init__(self) -> None:
        """Shorten texts, which may repeat megabytes of the request."""
        self.message = shortened(self.message, MAX_MESSAGE_LENGTH)
        if self.param is not None:
            self.param = shortened(self.param, MAX_PARAM_LENGTH)

    def __str__(self) -> str:
        return self.message

    @property
    def label(self) -> str:
        """The code of the error in metrics and traces: its status if it has no code."""
        return self.code or str(self.status)

    @property
    def body(self) -> bytes:
        """The body in OpenAI's shape."""
        other = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message,
            "type": TYPES.get(self.status, other),
            "param": self.param,
            "code": self.code,
        }
        return write_json({"error": error})

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the response that say whether and when to try again, and `headers`."""
        headers = dict(self.headers or {})
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.status in (429, 503, OVERLOADED):
            headers.setdefault("Retry-After", str(RETRY_SECONDS))
        return headers

    def anthropic_body(self, request_id: str) -> bytes:
        """Return the body in Anthropic's shape, where only the message can name the parameter."""
        other = "api_error" if self.status >= 500 else "invalid_request_error"
        message = self.message
        if self.param is not None and self.param not in message:
            message = f"{self.param}: {message}"
        error: JsonObject = {
            "type": ANTHROPIC_TYPES.get(self.status, other),
            "message": message,
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
    Return the error that tells the client of *exc*.

    After *partial* work, when a served model has written tokens, the client is asked not to retry
    by itself.
    """
    message = str(exc)
    retry = False if partial else None
    match exc:
        case ApiError():
            return exc
        case ContextTooLong():
            return ApiError(400, message, "messages", "context_length_exceeded")
        case ConfigurationError() | MissingCapability():  # the method does not work with the models
            return ApiError(400, message, "model", "invalid_value")
        case EndpointRejected() if exc.cause.startswith(("HTTP 400", "HTTP 422")):
            return ApiError(400, message, code="upstream_rejected")
        case EndpointRejected():  # only the operator can correct that, such as a wrong key
            return ApiError(500, message, code="upstream_error", retry=False)
        case LocalShortage():
            return ApiError(503, message, code="overloaded", retry=True)
        case EndpointUnavailable():
            after = {"Retry-After": str(ceil(exc.retry_after))} if exc.retry_after else None
            return ApiError(
                503,
                message,
                code="upstream_unavailable",
                retry=retry,
                headers=after,
            )
        case StepspecError():
            return ApiError(500, message, code="upstream_error", retry=retry)
        case TimeoutError():
            return ApiError(
                504,
                "no answer before the deadline",
                code="deadline",
                retry=False,
            )
        case _:
            message = "the service failed; see its log for the cause"
            return ApiError(500, message, code=INTERNAL_ERROR, retry=retry)


def format_path(location: Sequence[int | str]) -> str:
    """Return the *location* of a value in a request in the form ``messages[0].content``."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")
