"""The errors of vLLM's HTTP protocol as exceptions, with what cures them. Pure: no I/O."""

from __future__ import annotations

import re
from calendar import timegm
from codecs import BOM_UTF8
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, TypeAlias, TypeVar, cast

import orjson

from ..chain import Party
from ..endpoints.settings import key_variable
from ..errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
    MissingCapability,
    ModelGone,
)
from .paths import COMPLETIONS, DETOKENIZE, MODELS, PRIORITISED, TOKENIZE

Reply: TypeAlias = Mapping[str, Any]
"""The JSON object of a response."""

E = TypeVar("E", bound=EndpointError)

CONTEXT_COMPLAINT = re.compile(
    "max_model_len|maximum model length|context"
    " (length|window)|context_length_exceeded|(prompt|input) is too long",
    re.IGNORECASE,
)

LOGPROBS_COMPLAINT = "greater than max allowed"
LOGPROBS_CURE = (
    "; start vLLM with a larger --max-logprobs (by default 20), or choose another method"
)

TEMPLATE_COMPLAINT = "must provide a chat template"
TEMPLATE_CURE = (
    "the model has no chat template: start vLLM with --chat-template FILE, or serve a model that"
    " was trained on conversations (its name often ends in Instruct, Chat or Thinking)"
)

BAD_REQUEST = re.compile("(bad|invalid)_?request", re.IGNORECASE)
"""In the type of an error for whose status the server sent 200."""

NOT_A_VLLM_SERVER = (
    ", which every vLLM server has: is this another server, or a proxy that forwards only /v1? Let"
    " it forward all paths, or use vLLM's own URL"
)
NOT_FOUND_CURES = {
    MODELS: (
        f", at {MODELS}: no OpenAI-compatible server is at this URL; is the port right, and does"
        " the URL end where /v1 begins, or in /v1, such as http://localhost:8000/v1?"
    ),
    TOKENIZE: f", at {TOKENIZE}{NOT_A_VLLM_SERVER}",
    DETOKENIZE: f", at {DETOKENIZE}{NOT_A_VLLM_SERVER}",
}
"""What follows the message of a server that does not know a path."""

MAX_MESSAGE_LENGTH = 500
"""Characters of a server's message that are shown."""

NOT_READY_STATUSES = (502, 503, 504)
"""Of a gateway, or of a server that has not loaded its model."""

PAGE_TITLE = re.compile(r"<title>([^<]*)</title>", re.IGNORECASE)
PAGE_TAG = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Call:
    """What the error messages of a request name."""

    role: Party
    """The model."""
    url: str
    """The URL of its server."""
    verb: str
    """What the request asks for."""
    keyed: bool = False
    """Whether the request has a key."""

    def error(self, kind: type[E], message: str) -> E:
        """Make an error of this *kind*."""
        return kind(
            message,
            role=self.role,
            url=self.url,
            verb=self.verb,
        )

    def missing(self, message: object) -> MissingCapability:
        """Make the error of a model that cannot do what it has to."""
        return MissingCapability(f"the {self.role} model at {self.url}: {message}")


def retry_after(header: str | None, now: float) -> float:
    """
    Return the seconds of a Retry-After header, a number or a date. 0: it is neither, or missing.

    *now* is the server's time, in seconds since 1970.
    """
    try:
        seconds = float(header or 0)
    except ValueError:
        seconds = (http_date(header) or now) - now
    return max(0.0, seconds) if isfinite(seconds) else 0.0


def http_date(header: str | None) -> float | None:
    """Return the date in *header*, in seconds since 1970. None: there is none."""
    with suppress(TypeError, ValueError):
        # A date without a time zone is UTC.
        return float(timegm(parsedate_to_datetime(header or "").utctimetuple()))
    return None


def http_error(call: Call, status: int, body: bytes, path: str = "") -> EndpointError:
    """Make the error for a response of *path* with an HTTP *status* of 400 or more."""
    return _status_error(call, status, _body_message(body), path)


def _status_error(call: Call, status: int, message: str, path: str) -> EndpointError:
    kind: type[EndpointError] = EndpointRejected
    cause = f"HTTP {status}: {message}"
    if status in (401, 403):
        reason = "the key was refused" if call.keyed else "a key is needed, and none is set"
        setting = f"api_key in [{call.role}], or {key_variable(call.role)}"
        cause = f"{reason} ({cause}); set {setting}"
    elif status == 404 and path in PRIORITISED and "model" in message.lower():
        kind = ModelGone
        cure = f"does the server serve another model now? Correct model in [{call.role}]"
        cause = f"{cause.rstrip('.')}; {cure}"
    elif status in (404, 501):
        cause += NOT_FOUND_CURES.get(path, "; is a vLLM server at this URL?")
    elif status in (408, 429) or status >= 500:
        kind = EndpointUnavailable
        if status in NOT_READY_STATUSES:
            cause += "; wait until the server is ready: it may be loading or overloaded"
    elif CONTEXT_COMPLAINT.search(message):
        kind = ContextTooLong
        cause = message
    elif LOGPROBS_COMPLAINT in message:
        cause += LOGPROBS_CURE
    elif TEMPLATE_COMPLAINT in message:
        cause = TEMPLATE_CURE
    error = call.error(kind, cause)
    error.status = status
    return error


def reply_error(call: Call, reply: Reply) -> EndpointError | None:
    """
    Make the error that a *reply* with the HTTP status 200 carries, whole or in a stream. None: it
    carries none.
    """
    error = reply.get("error")
    if not error:
        return None
    message = _message(reply)
    code = str(as_object(error).get("code"))
    if re.fullmatch("[45][0-9]{2}", code):
        return _status_error(call, int(code), message, COMPLETIONS)
    if BAD_REQUEST.search(str(as_object(error).get("type"))):
        return _status_error(call, 400, message, COMPLETIONS)
    return call.error(EndpointUnavailable, f"an error with HTTP 200: {message}")


def no_reply(call: Call, body: bytes) -> EndpointError | None:
    """
    Make the error that a *body* with the HTTP status 200 is, or carries. None: a JSON object
    without an error.
    """
    if not body.strip():
        cause = "an empty answer: did the server, or a proxy in front of it, give up?"
        return call.error(EndpointUnavailable, cause)
    try:
        reply = parse_object(call, body)
    except MalformedReply as exc:
        return exc
    return None if reply.get("object") == "response" else reply_error(call, reply)


def no_stream(call: Call, body: bytes) -> EndpointError:
    """
    Make the error for a *body*, or its beginning, that came with HTTP 200 in place of a stream.
    """
    error = no_reply(call, body)
    if error is not None:
        return error
    cause = f"no stream, but {_body_message(body)}; is this the URL of a vLLM server?"
    if "choices" in parse_object(call, body):
        cause = "the answer in one piece, not as a stream: does a proxy collect it?"
    return call.error(MalformedReply, cause)


def _message(reply: object) -> str:
    """Return the server's message in *reply*, in any of the usual shapes."""
    for key in ("error", "message", "detail"):
        reply = as_object(reply).get(key) or reply
    return one_line(str(reply))[:MAX_MESSAGE_LENGTH]


def _body_message(body: bytes) -> str:
    """Return the server's message in *body*, which may be JSON, a web page or any other text."""
    reply = _json(body)
    if reply is None:
        return _text(body)[:MAX_MESSAGE_LENGTH] or "no reason given"
    return _message(reply)


def _text(body: bytes) -> str:
    """Return the title of a web page, or its text if it has none. Any other text stays."""
    text = body.decode(errors="replace").strip()
    if text.startswith("<"):
        title = PAGE_TITLE.search(text)
        text = title[1] if title else PAGE_TAG.sub(" ", text)
    return one_line(text)


def one_line(text: str) -> str:
    return " ".join(text.split())


def _json(body: bytes) -> object:
    """Parse JSON. None: there is none."""
    try:
        return orjson.loads(body.removeprefix(BOM_UTF8))
    except orjson.JSONDecodeError:
        return None


def parse_object(call: Call, body: bytes) -> Reply:
    """Parse a JSON object. Raise `MalformedReply` for anything else."""
    reply = _json(body)
    if isinstance(reply, Mapping):
        return cast("Reply", reply)
    found = f"not a JSON object: {body[:200]!r}"
    if body.lstrip().startswith(b"<"):
        found = f"a web page ({_text(body)[:80]!r}), not JSON"
    raise call.error(MalformedReply, f"{found}; is this the URL of a vLLM server?")


def object_in(body: bytes) -> Reply:
    """Parse a JSON object. Return an empty one for anything else."""
    return as_object(_json(body))


@contextmanager
def reading(call: Call, wanted: str, reply: object) -> Generator[None]:
    """Raise `MalformedReply` if the block finds no *wanted* in *reply*, as vLLM sends it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        message = f"no {wanted} in the answer {str(reply)[:200]}; is this the URL of a vLLM server?"
        raise call.error(MalformedReply, message) from exc


def checked(call: Call, reply: Reply) -> Reply:
    """Return *reply*. Raise the error that it carries."""
    error = reply_error(call, reply)
    if error is not None:
        raise error
    return reply


def no_room(count: int, room: int) -> str:
    """
    Return the message that *count* tokens leave no room in a context of *room* tokens.

    Clients look for its words.
    """
    return (
        f"the prompt is too long: {count} tokens leave no room to think; this model's maximum"
        f" context length is {room} tokens; shorten it, or serve the model with a longer"
        " --max-model-len"
    )


def as_object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
