"""
vLLM's HTTP protocol: the paths, the bodies of requests, the replies read as values, and its errors
as exceptions.

Pure: no I/O and no clock. A second back end would need another module like this one.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import islice
from math import exp, isfinite, isnan
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import orjson

from ..chain import Party, Stop, Token
from ..errors import (
    ContextTooLong,
    EndpointError,
    EndpointRejected,
    EndpointUnavailable,
    MalformedReply,
    ModelGone,
)
from ..tokens import LARGEST_ID
from .prompts import EncodedPrompt
from .settings import Sampling

Body: TypeAlias = dict[str, Any]
Reply: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = Sequence[int] | EncodedPrompt
Prompts: TypeAlias = Prompt | Sequence[Prompt]  # one prompt, or several in one request
# one position of the prompt: log-probability and rank by token id
Row: TypeAlias = Mapping[str, Mapping[str, Any]]
E = TypeVar("E", bound=EndpointError)


@dataclass(frozen=True, slots=True)
class ServerFormat:
    """
    The form of a text in the server's own words: the *outputs* of its parameter
    ``structured_outputs``.
    """

    outputs: Mapping[str, Any]


Format: TypeAlias = Literal["json"] | Mapping[str, Any] | ServerFormat
"""
The form of a text: any JSON object, the values that a JSON schema describes, or in the server's own
words.
"""

MODELS, COMPLETIONS, POOLING = "/v1/models", "/v1/completions", "/pooling"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
METRICS, VERSION, HEALTH = "/metrics", "/version", "/health"
DECISIONS = "/v1/decisions"
# vLLM's own route, which takes token ids and all sampling parameters
GENERATE = "/inference/v1/generate"
# the paths whose requests take a ``priority``
PRIORITISED = frozenset({COMPLETIONS, POOLING, GENERATE})
# those that wait for no place at the server
WITHOUT_ENGINE = frozenset({HEALTH, METRICS, TOKENIZE, DETOKENIZE})

GIVEN_UP = ("abort", "error")  # finish reasons
_ENDINGS: Mapping[str, Stop] = {"length": "length", "repetition": "repetition"}
# vLLM refuses more stop strings (VLLM_MAX_STOP_STRINGS); `StepBuilder` matches the others.
MAX_STOPS = 4
MAX_LOGPROBS = 20  # the most that vLLM returns unless started with --max-logprobs
MOST_TOKENS = 2**40  # of one request; sums of larger numbers would not fit into JSON
FLOOR = -9999.0  # nats; vLLM sends it for minus infinity, which JSON has no number for
GREEDY = Sampling(temperature=0.0, top_p=1.0)
REPLACEMENT = "\ufffd"  # stands for bytes that are no complete character
# vLLM's complaint if uninitialised memory holds no finite number
NOT_JSON_COMPLIANT = "not JSON compliant"
TOO_LONG = re.compile(
    "max_model_len|maximum model length|context"
    " (length|window)|context_length_exceeded|(prompt|input) is too long",
    re.IGNORECASE,
)
MOST_LOGPROBS = "greater than max allowed"  # the complaint of vLLM about log-probabilities
NO_TEMPLATE = "must provide a chat template"  # the complaint of vLLM, in words of transformers
TEMPLATE_CURE = (
    "the model has no chat template: start vLLM with --chat-template FILE, or serve a model that"
    " was trained on conversations (its name often ends in Instruct, Chat or Thinking)"
)
JUDGE = "judge"  # the verb of requests to a verifier, whose server may be any
NOT_READY = (502, 503, 504)  # of a gateway or a server that has not loaded its model
TOKENS = b'"tokens":['
# Without one of these a list of JSON has nothing but whole numbers from 0 on, close together.
OTHER_VALUES = tuple([b"%c" % sign for sign in b'"-.eElL[{ \t\r\n'])
PROMPT_ROWS = "log-probabilities of the prompt"
# the JSON of these rows: no text in it can have these bytes, whose quotes would be escaped
ROWS = b'"prompt_logprobs":['
ROW_ENDS = b"}},"
NEXT_ROW = ROW_ENDS + b'{"'
ROW_BEGINS = re.compile(rb'\d+":\{')  # what follows `NEXT_ROW`, but in no text
ROUNDING = 1e-3  # by which a log-probability may exceed 0: servers add up float32 and bfloat16
TITLE, TAG = re.compile(r"<title>([^<]*)</title>", re.IGNORECASE), re.compile(r"<[^<>]*>")


# Errors


@dataclass(frozen=True, slots=True)
class Call:
    """
    What the error messages of a request name: the model's role, the server's URL, and the verb of
    the request.

    *keyed* is whether it has a key. *table* is the model's table of the settings, as
    ``small.large``; "": its role.
    """

    role: Party
    url: str
    verb: str
    keyed: bool = False
    table: str = ""

    def error(self, kind: type[E], message: str) -> E:
        return kind(message, role=self.role, url=self.url, verb=self.verb)


def retry_after(header: str | None, now: float) -> float:
    """
    Read the seconds of a Retry-After header, a number or a date; 0 without one, and for anything
    else.

    *now* is the server's time, in seconds since 1970.
    """
    try:
        seconds = float(header or 0)
    except ValueError:
        date = http_date(header)
        seconds = 0.0 if date is None else date - now
    return max(0.0, seconds) if isfinite(seconds) else 0.0


def http_date(header: str | None) -> float | None:
    """Read a date in a header as seconds since 1970; None without one, and for anything else."""
    try:
        date = parsedate_to_datetime(header or "")
    except (TypeError, ValueError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def http_error(call: Call, status: int, body: bytes, path: str = "") -> EndpointError:
    """Make the error for a response of *path* with an HTTP *status* of 400 or more."""
    error = _http_error(call, status, _error_message(body), path)
    error.status = status
    return error


def _http_error(call: Call, status: int, message: str, path: str) -> EndpointError:
    if status in (401, 403):
        return call.error(EndpointRejected, _refused_key(call, status, message))
    if status == 404 and path in PRIORITISED and "model" in message.lower():
        cure = (
            f"does the server serve another model now? Correct model in [{call.table or call.role}]"
        )
        return call.error(ModelGone, f"HTTP 404: {message.rstrip('.')}; {cure}")
    if status == 404:
        return call.error(EndpointRejected, f"HTTP 404: {_not_found(call, message, path)}")
    if status in NOT_READY:
        cause = (
            f"HTTP {status}: {message}; wait until the server is ready: it may be loading or"
            " overloaded"
        )
        return call.error(EndpointUnavailable, cause)
    if status in (408, 429) or status >= 500:
        return call.error(EndpointUnavailable, f"HTTP {status}: {message}")
    if TOO_LONG.search(message):
        return call.error(ContextTooLong, message)
    if MOST_LOGPROBS in message:
        message += (
            "; start vLLM with a larger --max-logprobs (by default 20), or choose another method"
        )
    if NO_TEMPLATE in message:
        return call.error(EndpointRejected, TEMPLATE_CURE)
    return call.error(EndpointRejected, f"HTTP {status}: {message}")


def _refused_key(call: Call, status: int, message: str) -> str:
    refused = "the key was refused" if call.keyed else "a key is needed, and none is set"
    table = call.table or call.role
    setting = f"api_key in [{table}], or STEPSPEC_{table.upper().replace('.', '__')}__API_KEY"
    return (
        f"{refused} (HTTP {status}: {message}); set {'the right' if call.keyed else 'it as'}"
        f" {setting}"
    )


def _not_found(call: Call, message: str, path: str) -> str:
    if path == MODELS:
        return (
            f"{message}, at {path}: no OpenAI-compatible server is at this URL; is the port right,"
            " and does the URL end where /v1 begins, or in /v1, such as http://localhost:8000/v1?"
        )
    if path in (TOKENIZE, DETOKENIZE):
        return (
            f"{message}, at {path}, which every vLLM server has: is this another server, or a proxy"
            " that forwards only /v1? Let it forward all paths, or use vLLM's own URL"
        )
    if call.verb == JUDGE:
        return f"{message}, at {path}; is the path of url in [critic] right?"
    return f"{message}; is a vLLM server at this URL?"


def refused_elsewhere(error: EndpointError, url: str) -> EndpointError:
    """
    Make the error for a request that was redirected to *url* and rejected there: a key or a body
    gets lost so.
    """
    cause = (
        f"this URL redirects to {url}, which refuses the request (HTTP {error.status}): set that"
        " as url"
    )
    moved = EndpointRejected(cause, role=error.role, url=error.url, verb=error.verb)
    moved.status = error.status
    return moved


def reply_error(call: Call, reply: Reply) -> EndpointError | None:
    """
    Make the error that a *reply* with the HTTP status 200 carries, whole or inside a stream; None
    for no error.
    """
    error = reply.get("error") or (reply if reply.get("object") == "error" else None)
    if not error:
        return None
    code: Any = _object(error).get("code")
    status = int(code) if str(code).isdecimal() else 0
    body = orjson.dumps(reply)
    if 400 <= status < 600:
        return http_error(call, status, body, COMPLETIONS)
    if "badrequest" in str(_object(error).get("type")).lower().replace("_", "").replace(
        "invalidrequest", "badrequest"
    ):
        return http_error(call, 400, body, COMPLETIONS)
    return call.error(EndpointUnavailable, f"an error with HTTP 200: {_error_message(body)}")


def no_reply(call: Call, body: bytes) -> EndpointError | None:
    """
    Make the error that a *body* without an HTTP error is, or carries; None for a JSON object
    without one.
    """
    if not body.strip():
        return call.error(
            EndpointUnavailable,
            "an empty answer: did the server, or a proxy in front of it, give up?",
        )
    try:
        reply = parse_object(call, body.removeprefix(BOM_UTF8))
    except MalformedReply as exc:
        return exc
    return None if reply.get("object") == "response" else reply_error(call, reply)


def no_stream(call: Call, body: bytes) -> EndpointError:
    """
    Make the error for a *body*, or its beginning, that came with HTTP 200 where a stream was asked
    for.
    """
    if error := no_reply(call, body):
        return error
    if "choices" in parse_object(call, body.removeprefix(BOM_UTF8)):
        return call.error(
            MalformedReply, "the answer in one piece, not as a stream: does a proxy collect it?"
        )
    return call.error(
        MalformedReply, f"no stream, but {_error_message(body)}; is this the URL of a vLLM server?"
    )


def _error_message(body: bytes) -> str:
    """
    Find the server's message in the *body* of an error, in any of the usual shapes, as one line.
    """
    try:
        reply: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body.decode(errors="replace").strip()
        return (
            one_line(_page_title(text) if text.startswith("<") else text)[:500] or "no reason given"
        )
    for key in ("error", "message", "detail"):
        reply = _object(reply).get(key) or reply
    return one_line(str(reply))[:500]


def _page_title(page: str) -> str:
    """Return the title of a web page, or its text if it has none."""
    title = TITLE.search(page)
    return title[1] if title else TAG.sub(" ", page)


def one_line(text: str) -> str:
    return " ".join(text.split())


def parse_object(call: Call, body: bytes) -> Reply:
    """Parse a JSON object. Raise `MalformedReply` for anything else."""
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = None
    if not isinstance(reply, dict):
        text = body.decode(errors="replace").strip()
        if text.startswith("<"):
            title = one_line(_page_title(text))[:80]
            raise call.error(
                MalformedReply,
                f"a web page ({title!r}), not JSON; is this the URL of a vLLM server?",
            )
        raise call.error(
            MalformedReply, f"not a JSON object: {body[:200]!r}; is this the URL of a vLLM server?"
        )
    return cast("Reply", reply)


def object_in(body: bytes) -> Reply:
    """Parse a JSON object; empty for anything else."""
    try:
        return _object(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


@contextmanager
def reading(call: Call, wanted: str, reply: object) -> Generator[None]:
    """Raise `MalformedReply` if the block finds no *wanted* in *reply*, as vLLM sends it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        message = f"no {wanted} in the answer {str(reply)[:200]}; is this the URL of a vLLM server?"
        raise call.error(MalformedReply, message) from exc


# The server and its tokenizer


def model_names(call: Call, reply: Reply) -> list[str]:
    """
    List the names of the served models, adapters last. Raise `MalformedReply` for anything but a
    list of models.
    """
    with reading(call, "list of models", reply):
        models: list[Reply] = reply["data"] or []
        return [
            str(model["id"])
            for model in sorted(models, key=lambda model: bool(model.get("parent")))
        ]


def version(body: bytes) -> str | None:
    """Read vLLM's version; None if the server does not report one."""
    try:
        return str(orjson.loads(body)["version"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None


def tokenize_body(model: str, text: str, *, special_tokens: bool = False) -> Body:
    """Encode *text*, with the tokenizer's own *special_tokens* around it or without."""
    return {"model": model, "prompt": text, "add_special_tokens": special_tokens}


def tokenize_messages_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    generate: bool = True,
    template: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Body:
    """
    Render *messages* and *tools* with the chat template and encode the text; *generate* adds the
    generation prompt.

    *template* holds variables of the chat template (``chat_template_kwargs``); None sends none.
    """
    body: Body = {"model": model, "messages": messages, "add_generation_prompt": generate}
    if tools:
        body["tools"] = tools
    return body | {"chat_template_kwargs": template} if template else body


def tokenized(call: Call, reply: Reply, *, fitting: bool = False) -> tuple[list[int], int]:
    """
    Read a reply of ``/tokenize``: the token ids, and the model's context length. Raise
    `MalformedReply`.

    Raise `ContextTooLong`, before the ids are read, if they have to be *fitting* into that context
    and are not.
    """
    with reading(call, "token ids", reply):
        count, room = len(reply["tokens"]), int(reply["max_model_len"])
        if not fitting or count <= room:
            return _ids(reply["tokens"]), room
    del reply  # The error holds this frame, and a million ids take 40 MB.
    raise call.error(ContextTooLong, no_room(count, room))


def tokenized_prompt(call: Call, body: bytes) -> EncodedPrompt:
    """
    Read the *body* of a reply of ``/tokenize`` as `tokenized` does, but leave the ids as JSON.

    A million ids take longer to parse than the event loop may wait. A body with other white space
    than vLLM's is parsed all the same. Raise the error that the reply carries, `MalformedReply`,
    and `ContextTooLong` if the ids do not fit into the context.
    """
    head, tokens, rest = body.partition(TOKENS)
    ids, end, tail = rest.partition(b"]")
    if not ids or not end or any(sign in ids for sign in OTHER_VALUES):
        reply = checked(call, parse_object(call, body))
        return EncodedPrompt.of(tokenized(call, reply, fitting=True)[0])
    reply = checked(call, parse_object(call, head + tokens + end + tail))
    count = ids.count(b",") + 1
    with reading(call, "token ids", reply):
        room = int(reply["max_model_len"])
    if count > room:
        raise call.error(ContextTooLong, no_room(count, room))
    return EncodedPrompt(count, (ids,))


def checked(call: Call, reply: Reply) -> Reply:
    """Return *reply*. Raise the error that it carries."""
    if error := reply_error(call, reply):
        raise error
    return reply


def no_room(count: int, room: int) -> str:
    """
    Say, in words that clients look for, that *count* tokens leave no room in a context of *room*,
    and what to do.
    """
    cure = "shorten it, or serve the model with a longer --max-model-len"
    longest = f"this model's maximum context length is {room} tokens"
    return f"the prompt is too long: {count} tokens leave no room to think; {longest}; {cure}"


def _ids(value: Any) -> list[int]:
    """
    Return *value*, a list of token ids, perhaps a million. Raise `ValueError` for anything else.
    """
    ids = cast("list[int]", value)
    if not isinstance(value, list) or {*map(type, ids)} - {int}:
        raise ValueError(str(ids)[:80])
    if min(ids, default=0) < 0 or max(ids, default=0) > LARGEST_ID:
        raise ValueError(str(ids)[:80])
    return ids


def detokenized(call: Call, reply: Reply) -> str:
    """Read a reply of ``/detokenize``. Raise `MalformedReply`."""
    with reading(call, "text of tokens", reply):
        return str(reply["prompt"])


def detokenize_body(model: str, ids: Sequence[int]) -> Body:
    """Decode token *ids*, special tokens included."""
    return {"model": model, "tokens": ids}


# Writing


class Chunk(NamedTuple):
    """
    One event of a stream: its tokens and, with the last ones, how the text ended.

    *received* also counts the token that ended the turn, which is not among *tokens*. *cached*
    counts tokens of the prompt, and is 0 before the server has sent its usage.
    """

    tokens: tuple[Token, ...] = ()
    received: int = 0
    ended: Stop | None = None
    cached: int = 0


def completion_body(model: str, prompt: Prompts, sampling: Sampling, limit: int) -> Body:
    """
    Ask for *limit* tokens, with every sampling parameter set, so that no default of the server
    applies.
    """
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": sampling.repetition_penalty,
        "skip_special_tokens": False,
    }


def stream_body(
    model: str,
    prompt: Prompt,
    sampling: Sampling,
    format: Format | None = None,
    *,
    limit: int,
    stop: Iterable[str],
    stop_token: int = -1,
    spelt: bool = True,
) -> Body:
    """
    Ask for a stream of at most *limit* tokens in this *format*.

    It ends after a *stop* string, or with the *stop_token* if that is not -1. Only *spelt* tokens
    come with their spellings and log-probabilities; without them it has to have no stops.
    """
    body = completion_body(model, prompt, sampling, limit) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": list(stop)[:MAX_STOPS],
        "include_stop_str_in_output": spelt,
        "return_token_ids": True,
        "return_tokens_as_token_ids": False,
    }
    if stop_token >= 0:
        body["stop_token_ids"] = [stop_token]
    if spelt:
        body["logprobs"] = sampling.logprobs
    if isinstance(format, ServerFormat):
        body["structured_outputs"] = format.outputs
    elif format is not None:
        body["structured_outputs"] = {"json_object": True} if format == "json" else {"json": format}
    return body


def parse_chunk(
    call: Call, event: bytes, logprobs: int | None, closing: Sequence[int] = ()
) -> Chunk:
    """
    Parse one event of a stream. Raise the error that it carries, or `MalformedReply`.

    *closing* are the tokens at which the server was asked to stop: they are text, unlike others
    that end the turn.
    """
    try:
        reply = orjson.loads(event)
        if "choices" in reply and not reply.get("error"):
            return _chunk(call, reply, logprobs, closing)
        raise reply_error(call, reply) or LookupError("choices")
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise call.error(
            MalformedReply, f"not a piece of a stream as vLLM sends it: {event[:200]!r}"
        ) from exc


def _chunk(call: Call, reply: Reply, logprobs: int | None, closing: Sequence[int]) -> Chunk:
    if not reply["choices"]:
        return Chunk(cached=usage(reply)[1])
    choice = reply["choices"][0]
    reason = choice.get("stop_reason")
    matched = choice.get("finish_reason") == "stop" and isinstance(reason, str)
    ended = ending(call, choice)
    if choice.get("token_ids") is None:
        cause = (
            "no token ids, which the field return_token_ids requests: does a proxy leave out what"
            " it does not know?"
        )
        raise call.error(MalformedReply, cause)
    ids = _ids(choice["token_ids"])
    received = len(ids)
    turn_ended = ended == "end" and reason not in closing
    # The text has the token that ended the turn only among spelt tokens.
    if turn_ended and logprobs is None:
        del ids[-1:]
    tokens = _tokens(choice, ids, logprobs, matched=matched) if ids or not turn_ended else ()
    if turn_ended and logprobs is not None:
        tokens = tokens[:-1]
    return Chunk(tokens, received, ended)


def ending(call: Call, choice: Reply) -> Stop | None:
    """
    Read why a text ended; None if it goes on. Raise `EndpointUnavailable` if the server gave it up.
    """
    finish = choice.get("finish_reason")
    if not finish:
        return None
    if finish in GIVEN_UP:
        raise call.error(
            EndpointUnavailable,
            f"the server gave the request up (finish_reason {finish!r}): see its log",
        )
    if finish != "stop":
        return _ENDINGS[finish]
    return "delimiter" if isinstance(choice.get("stop_reason"), str) else "end"


def _tokens(
    choice: Reply, ids: Sequence[int], logprobs: int | None, *, matched: bool
) -> tuple[Token, ...]:
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(text)
    known = choice.get("logprobs")
    if logprobs is None or not known:
        parts = (
            [(text, ids[0])] if len(ids) == 1 and not matched else spell(text, ids, (), cut=matched)
        )
        return tuple([Token(part, id=number) for part, number in parts])
    spelt = spell(text, ids, known["tokens"], cut=matched)
    rows = zip(spelt, known["token_logprobs"], known["top_logprobs"], strict=True)
    return tuple(
        [
            Token(part, finite(value), _rank(value, top, logprobs), number, _top(top, logprobs))
            for (part, number), value, top in rows
        ]
    )


def _rank(value: float | None, top: Mapping[str, float] | None, known: int) -> int:
    """Return the token's rank among the *known* most probable ones; 0 if it is none of them."""
    if value is None or not top or not known:
        return 0
    above = sum(other > value for other in top.values())
    return above + 1 if above < known else 0


def _top(top: Mapping[str, float] | None, known: int) -> tuple[Token, ...]:
    """Sort the *known* most probable tokens; vLLM adds the written token if it is none of them."""
    if not top or not known:
        return ()
    best = sorted(top.items(), key=lambda item: item[1], reverse=True)[:known]
    return tuple([Token(text, finite(value), rank) for rank, (text, value) in enumerate(best, 1)])


def finite(logprob: float | None) -> float:
    """
    Return *logprob*, at least `FLOOR`, because JSON has no infinity; None is a token that vLLM
    lost.

    Raise `ValueError` for NaN.
    """
    if logprob is None:
        return FLOOR
    if isnan(logprob):
        raise ValueError(logprob)
    return max(logprob, FLOOR)


def spell(
    text: str, ids: Sequence[int], pieces: Sequence[str], *, cut: bool = False
) -> list[tuple[str, int]]:
    """
    Divide *text* among the tokens *ids*, whose single spellings are *pieces*.

    The parts join to *text*. Where the spellings do not, because tokens share a character, complete
    tokens are matched from both ends, and the text between them goes to the last token there. If
    the text was *cut* inside the last token, the rest of the text goes to that token, whose id
    becomes -1.
    """
    if text == "".join(pieces) and len(pieces) == len(ids):
        return list(zip(pieces, ids, strict=True))
    if not ids:
        raise ValueError("text without a token")
    first, last = 0, len(ids) - 1
    at, end = 0, len(text)
    while first < min(last, len(pieces)) and pieces[first] and text.startswith(pieces[first], at):
        at += len(pieces[first])
        first += 1
    if not cut and len(pieces) == len(ids):
        last = _last_shared(text[at:], pieces, first)
        end -= len("".join(pieces[last + 1 :]))
    shared = [
        *[("", number) for number in ids[first:last]],
        (text[at:end], -1 if cut else ids[last]),
    ]
    return [
        *zip(pieces[:first], ids[:first], strict=True),
        *shared,
        *zip(pieces[last + 1 :], ids[last + 1 :], strict=False),
    ]


def _last_shared(text: str, pieces: Sequence[str], first: int) -> int:
    """
    Find the last token, from index *first* on, whose spelling *text* does not contain: it ends in
    those of the others.

    A spelling of "" is half a character. The text of the next spelt token may begin with that
    character's other half.
    """
    last = len(pieces) - 1
    while last > first and not pieces[last]:
        last -= 1
    end = len(text)
    while last > first and pieces[last - 1] and text.endswith(pieces[last], 0, end):
        end -= len(pieces[last])
        last -= 1
    return last


def usage(reply: Reply) -> tuple[int, int, int]:
    """
    Read the numbers of prompt, cached and written tokens; 0 where the server does not report one.

    Some servers report more cached tokens than the prompt has.
    """
    counts = _object(reply.get("usage"))
    prompt = _count(counts.get("prompt_tokens"))
    cached = _count(_object(counts.get("prompt_tokens_details")).get("cached_tokens"))
    return prompt, min(cached, prompt), _count(counts.get("completion_tokens"))


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _count(value: object) -> int:
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0


# Asking


def choice_body(model: str, prompt: Prompts, choices: Sequence[int], *, by_id: bool) -> Body:
    """
    Ask for one token out of the ids *choices*, with the log-probabilities of all of them; for each
    prompt.

    Without *by_id*, ask for the most probable tokens of the vocabulary instead, which every server
    supports.
    """
    logprobs: Body = (
        {"logprobs": 1, "logprob_token_ids": choices} if by_id else {"logprobs": MAX_LOGPROBS}
    )
    allowed = {"allowed_token_ids": choices, "return_tokens_as_token_ids": True}
    return completion_body(model, prompt, GREEDY, 1) | allowed | logprobs


def choice_probabilities(call: Call, reply: Reply, choices: Mapping[str, int]) -> dict[str, float]:
    """
    Read the probability of every one of the *choices* that the reply contains, for the first
    prompt.
    """
    with reading(call, "log-probabilities", reply):
        ending(call, reply["choices"][0])
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        keys = {choice: f"token_id:{number}" for choice, number in choices.items()}
        return {choice: _probability(top[key]) for choice, key in keys.items() if key in top}


def _probability(logprob: float) -> float:
    """
    Return the probability of *logprob*. Raise `ValueError` for what is none, such as NaN or 3.
    """
    probability = exp(logprob)
    if not 0 <= probability <= 1 + ROUNDING:
        raise ValueError(logprob)
    return min(probability, 1.0)


# Scoring


def scoring_body(model: str, prompt: Prompt, top: int) -> Body:
    """
    Ask for the log-probability and rank of every token of *prompt*, and the *top* likeliest of its
    position.
    """
    return completion_body(model, prompt, GREEDY, 1) | {"prompt_logprobs": top}


def suffix_scoring_body(model: str, prompt: Prompt, top: int) -> Body:
    """
    Ask `GENERATE` for what `scoring_body` asks for, but without the part of *prompt* that the
    prefix cache holds.

    Without ``detokenize: false`` this request kills vLLM: it would look up texts for rows that it
    has never filled.
    """
    sampling = {
        "prompt_logprobs": top,
        "skip_reading_prefix_cache": False,
        "detokenize": False,
        "skip_special_tokens": False,
        "max_tokens": 1,
        "temperature": 0.0,
    }
    return {"model": model, "token_ids": prompt, "sampling_params": sampling}


def with_last_rows(body: bytes, count: int) -> bytes:
    """
    Leave all rows but the last *count* out of the *body* of a reply, before it is parsed.

    The rows of a whole chain take a second to parse, and the event loop waits meanwhile. A body
    with other white space than vLLM's is returned as it is.
    """
    head = body.find(ROWS)
    if head < 0 or count < 1:
        return body
    first = head + len(ROWS)
    at = len(body)
    for _ in range(count):
        at = body.rfind(NEXT_ROW, first, at)
        while at >= 0 and not ROW_BEGINS.match(body, at + len(NEXT_ROW)):
            at = body.rfind(NEXT_ROW, first, at)
        if at < 0:
            return body
    return body[:first] + body[at + len(ROW_ENDS) :]


def prompt_rows(call: Call, reply: Reply, count: int) -> Sequence[Row]:
    """
    Take the last *count* rows out of a reply to `scoring_body`. Raise `MalformedReply`.
    """
    with reading(call, PROMPT_ROWS, reply):
        ending(call, reply["choices"][0])
        rows: Sequence[Row] = reply["choices"][0]["prompt_logprobs"]
        return rows[len(rows) - count :]


def computed_rows(reply: Reply, ids: Sequence[int], start: int) -> Sequence[Row] | None:
    """
    Take the rows of the tokens *ids*, which are the prompt's from token *start* on; None if one is
    missing.

    *reply* is one to `suffix_scoring_body`.

    The token after a cached prefix is predicted by the last one of that prefix: its row was not
    computed either. vLLM's V1 runner returns such rows, filled with uninitialised memory, so that a
    reply without the number of cached tokens cannot be trusted; the V2 runner leaves them out,
    which is why rows are counted from the end.
    """
    cached = _object(_object(reply.get("usage")).get("prompt_tokens_details")).get("cached_tokens")
    found = reply.get("prompt_logprobs")
    if not isinstance(cached, int) or cached >= start or not isinstance(found, list):
        return None
    rows = cast("list[Row]", found)
    if len(rows) <= len(ids):  # the first row, of the first token, is always empty
        return None
    last = rows[len(rows) - len(ids) :]
    return (
        last
        if all(str(number) in _object(row) for number, row in zip(ids, last, strict=True))
        else None
    )


def scored_spans(
    call: Call,
    rows: Sequence[Row],
    spans: Sequence[tuple[str, Sequence[int]]],
    top: int,
    pieces: Mapping[int, str] | None = None,
) -> list[tuple[Token, ...]]:
    """
    Read each span's tokens from *rows*, which begin with the first span, with the *top* likeliest
    of each position.

    *pieces* are the texts of the spans' own tokens; None for a reply that contains them. Other
    tokens have no text then: looking it up would take one more request for every step.
    """
    scored, following = list[tuple[Token, ...]](), iter(rows)
    with reading(call, PROMPT_ROWS, rows):
        for text, ids in spans:
            span = list(islice(following, len(ids)))
            own = [row[str(number)] for row, number in zip(span, ids, strict=True)]
            spellings = (
                [entry["decoded_token"] for entry in own]
                if pieces is None
                else [pieces[id] for id in ids]
            )
            tokens = [
                Token(part, finite(entry["logprob"]), entry["rank"], number, _likeliest(row, top))
                for (part, number), entry, row in zip(
                    spell(text, ids, spellings), own, span, strict=True
                )
            ]
            scored.append(tuple(tokens))
    return scored


def _likeliest(row: Row, top: int) -> tuple[Token, ...]:
    best = sorted(
        (entry["rank"], int(key), entry) for key, entry in row.items() if entry["rank"] <= top
    )
    return tuple(
        [
            Token(row.get("decoded_token") or "", finite(row["logprob"]), rank, id)
            for rank, id, row in best
        ]
    )


# Rating


def pooling_body(model: str, prompt: Prompt, *, logits: bool) -> Body:
    """
    Have a reward model rate *prompt*, with *logits* or the values of the server's own activation.
    """
    return {
        "model": model,
        "input": prompt,
        "use_activation": not logits,
        "encoding_format": "float",
    }


def pooled_values(call: Call, reply: Reply) -> list[float]:
    """
    Read the one or two values at the end of the text. Raise `MalformedReply` if they are no reward.
    """
    with reading(call, "reward of one or two values", reply):
        rows: list[Any] = reply["data"][0]["data"]
        last = cast("Sequence[Any]", rows[-1]) if isinstance(rows[-1], list) else rows
        values = [float(value) for value in last]
        if len(values) not in (1, 2):
            raise ValueError(values)
        return values
