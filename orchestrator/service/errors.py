"""
Every refusal and failure as the service tells it: OpenAI's shape, the right status, and whether to try again. Pure.

    400  the request is wrong: the parameter is named, and what would do
    401  no key, or not the right one
    404  no such model or path;  405  no such method;  408  the body did not come;  413  it is too large
    429  too many requests at once;  503  draining, or a server is down: both say when to come back
    500  ours, or a server that answers nonsense;  504  no answer before the deadline
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from ..errors import (
    ConfigurationError,
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MissingCapability,
    StepspecError,
)

TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
RETRY_AFTER = 2  # seconds; a full queue and a restarting server both move on in about that time
UNFORESEEN = "internal_error"
LEFT = 499  # what a request counts as whose client went away


@dataclass(eq=False)
class ApiError(Exception):
    """
    A request that gets no answer, or only the beginning of one.

    *param* names what is wrong with the request. *retry* says whether the same request may succeed soon; None leaves
    that to the client's own rules. *open* are more headers.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: bool | None = None
    headers: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> bytes:
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    @property
    def all_headers(self) -> dict[str, str]:
        headers = dict(self.headers or {})
        if self.retry is not None:
            headers["x-should-retry"] = "true" if self.retry else "false"
        if self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_AFTER)
        return headers


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Refuse a request that is wrong in itself."""
    return ApiError(400, message, param, code)


def of(exc: BaseException, *, worked: bool = False) -> ApiError:
    """
    Say what *exc* means for a client.

    A run that *worked* for a while before it failed is not worth repeating without being asked.
    """
    retry = False if worked else None
    match exc:
        case ApiError():
            return exc
        case ContextTooLong():
            return ApiError(400, str(exc), "messages", "context_length_exceeded")
        case ConfigurationError() | MissingCapability():
            return ApiError(400, str(exc), code="invalid_value")
        case EndpointRejected() if exc.cause.startswith(("HTTP 400", "HTTP 422")):
            return ApiError(400, str(exc), code="upstream_rejected")
        case EndpointUnavailable():
            return ApiError(503, str(exc), code="upstream_unavailable", retry=retry)
        case EndpointError() | StepspecError():
            return ApiError(500, str(exc), code="upstream_error", retry=retry)
        case TimeoutError():
            return ApiError(504, "no answer before the deadline", code="deadline", retry=False)
        case _:
            return ApiError(500, "the service failed; its log says how", code=UNFORESEEN, retry=retry)


def place(location: Sequence[int | str]) -> str:
    """Spell where in a request something stands, as ``messages[0].content``."""
    spelt = ""
    for part in location:
        spelt += f"[{part}]" if isinstance(part, int) else f".{part}" if spelt else part
    return spelt
