"""From what a server, or the way to it, did wrong to the error that says so and names the cure. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import orjson

from ..chain import Party
from ..errors import ContextTooLong, EndpointError, EndpointRejected, EndpointUnavailable

E = TypeVar("E", bound=EndpointError)

_TOO_LONG = ("maximum context length", "maximum model length", "max_model_len", "context window")


@dataclass(frozen=True, slots=True)
class Call:
    """Who is asked and for what, so that an error can say it."""

    role: Party
    url: str
    verb: str

    def error(self, kind: type[E], message: str) -> E:
        return kind(message, role=self.role, url=self.url, verb=self.verb)


def repeatable(status: int) -> bool:
    """Say whether a request that was answered with *status* may succeed when it is sent again."""
    return status in (408, 429) or status >= 500


def pause(retry_after: str | None) -> float:
    """Read a Retry-After header that is given in seconds; 0 if there is none."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        return 0.0


def failed(call: Call, status: int, body: bytes) -> EndpointError:
    """Turn an HTTP *status* of 400 or more into an error."""
    message = _message(body)
    if status in (401, 403):
        return call.error(EndpointRejected, f"the key was refused (HTTP {status}: {message}); set the right api_key")
    if status == 404:
        return call.error(EndpointRejected, f"HTTP 404: {message}; is a vLLM server at this URL?")
    if repeatable(status):
        return call.error(EndpointUnavailable, f"HTTP {status}: {message}")
    if any(words in message for words in _TOO_LONG):
        return call.error(ContextTooLong, message)
    return call.error(EndpointRejected, f"HTTP {status}: {message}")


def failed_stream(call: Call, reply: Mapping[str, Any]) -> EndpointError:
    """Turn an error that was sent as a piece of a stream, after the status 200, into an exception."""
    code = reply["error"].get("code")
    return failed(call, code if isinstance(code, int) else 500, orjson.dumps(reply))


def _message(body: bytes) -> str:
    """Find the server's own words in an error's *body*, whichever of the usual shapes it has."""
    try:
        reply: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace").strip()[:500] or "no reason given"
    for key in ("error", "message", "detail"):
        if isinstance(reply, dict):
            reply = cast("dict[str, Any]", reply).get(key, reply)
    return str(reply)[:500]
