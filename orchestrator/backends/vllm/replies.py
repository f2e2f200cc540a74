"""The replies of vLLM's HTTP protocol, read as values. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import islice
from math import exp, isnan
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

from ...chain import Stop, Token
from ...errors import ContextTooLong, EndpointUnavailable, MalformedReply
from ...http.http_errors import (
    Call,
    Reply,
    as_object,
    checked,
    no_room,
    object_in,
    parse_object,
    reading,
    reply_error,
)
from ...http.prompts import EncodedPrompt
from ...tokens import LARGEST_ID

Row: TypeAlias = Mapping[str, Mapping[str, Any]]
"""One position of a prompt. Each token id has ``logprob``, ``rank`` and ``decoded_token``."""

ABORTED = ("abort", "error")
"""The values of ``finish_reason`` of a request that the server gave up."""

STOPS_BY_FINISH_REASON: Mapping[str, Stop] = {"length": "length", "repetition": "repetition"}

MAX_COUNTED_TOKENS = 2**40
"""Tokens of one request. Sums of larger numbers would not fit into JSON."""

NOT_JSON_COMPLIANT = "not JSON compliant"
"""
Part of vLLM's error if a log-probability is NaN or infinite: vLLM has read uninitialised memory.
"""

MIN_LOGPROB = -9999.0
"""The log-probability that vLLM sends in place of minus infinity, which JSON cannot express."""

REPLACEMENT = "\ufffd"
"""The character that stands for bytes of an incomplete character."""

MAX_ROUNDING = 1e-3
"""How far a probability may exceed 1, because servers add up float32 and bfloat16."""

TOKENS_KEY = b'"tokens":['
"""Stands before the token ids in a reply of ``/tokenize``."""

ID_CHARACTERS = b"0123456789,"
"""The characters of a JSON list of token ids without white space."""

PROMPT_ROWS = "log-probabilities of the prompt"

ROWS_KEY = b'"prompt_logprobs":['
"""Stands before the rows of a prompt."""

ROW_END = re.compile(rb'\}\},(?=\{"\d+":\{)')
"""
Matches only between two rows. In the text of a token the quotes are escaped, so it matches nothing.
"""


def version(body: bytes) -> str | None:
    """Read vLLM's version; None if the server does not report one."""
    found = object_in(body).get("version")
    return None if found is None else str(found)


def tokenized(call: Call, reply: Reply, *, fitting: bool = False) -> tuple[list[int], int]:
    """
    Return the token ids in a reply of ``/tokenize``, and the model's context length in tokens.

    *fitting*: raise `ContextTooLong` if the ids do not fit into the context, before they are read.
    Raise `MalformedReply` for any other reply.
    """
    with reading(call, "token ids", reply):
        count = len(reply["tokens"])
        room = int(reply["max_model_len"])
        if not fitting or count <= room:
            return _ids(reply["tokens"]), room
    del reply  # The error keeps this frame alive, and a million ids take 40 MB.
    raise call.error(ContextTooLong, no_room(count, room))


def tokenized_prompt(call: Call, body: bytes) -> EncodedPrompt:
    """
    Return the prompt in the *body* of a reply of ``/tokenize``. Its ids stay JSON.

    To parse a million ids takes longer than the event loop may wait. If the body has other white
    space than vLLM writes, the ids are parsed nevertheless. Raise the error that the reply carries,
    `MalformedReply`, or `ContextTooLong` if the ids do not fit into the context.
    """
    head, key, rest = body.partition(TOKENS_KEY)
    ids, end, tail = rest.partition(b"]")
    ids_are_compact = bool(ids and end) and not ids.translate(None, ID_CHARACTERS)
    if ids_are_compact:
        # The parser sees an empty list. The ids were cut out.
        body = head + key + end + tail
    parsed_ids, room = tokenized(
        call,
        checked(call, parse_object(call, body)),
        fitting=True,
    )
    if not ids_are_compact:
        return EncodedPrompt.of(parsed_ids)
    prompt = EncodedPrompt(ids.count(b",") + 1, (ids,))
    if prompt.count > room:
        raise call.error(ContextTooLong, no_room(prompt.count, room))
    return prompt


def _ids(value: Any) -> list[int]:
    """
    Return *value* if it is a list of token ids, perhaps a million. Raise `ValueError` if not.
    """
    ids = cast("list[int]", value)
    all_int = isinstance(value, list) and set(map(type, ids)) <= {int}
    if all_int and min(ids, default=0) >= 0 and max(ids, default=0) <= LARGEST_ID:
        return ids
    raise ValueError(str(ids)[:80])


def detokenized(call: Call, reply: Reply) -> str:
    """Read a reply of ``/detokenize``. Raise `MalformedReply`."""
    with reading(call, "text of tokens", reply):
        return str(reply["prompt"])


class Chunk(NamedTuple):
    """One event of a stream."""

    tokens: tuple[Token, ...] = ()
    """The tokens of the event, without a token that ended the turn."""
    received: int = 0
    """The number of tokens that arrived, including a token that ended the turn."""
    ended: Stop | None = None
    """How the text ended. None: the text goes on."""
    cached: int = 0
    """Tokens of the prompt that came from the cache. 0: none, or the usage has not arrived."""


def parse_chunk(
    call: Call,
    event: bytes,
    logprobs: int | None,
    closing: Sequence[int] = (),
) -> Chunk:
    """
    Read one event of a stream. Raise the error that the event carries, or `MalformedReply`.

    *closing*: the ids of the stop tokens of the request. They belong to the step. Any other token
    that ends the turn is left out.
    """
    try:
        reply = orjson.loads(event)
        if "choices" in reply and not reply.get("error"):
            return _chunk(call, reply, logprobs, closing)
        error = reply_error(call, reply)
        if error:
            raise error
        raise LookupError("choices")  # becomes `MalformedReply` below
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        message = f"not a piece of a stream as vLLM sends it: {event[:200]!r}"
        raise call.error(MalformedReply, message) from exc


def _chunk(
    call: Call,
    reply: Reply,
    logprobs: int | None,
    closing: Sequence[int],
) -> Chunk:
    """Read the object of an event, as `parse_chunk` does."""
    if not reply["choices"]:
        return Chunk(cached=usage(reply).cached)
    choice = reply["choices"][0]
    ended = ending(call, choice)
    if choice.get("token_ids") is None:
        cause = (
            "no token ids, which the field return_token_ids requests: does a proxy leave out what"
            " it does not know?"
        )
        raise call.error(MalformedReply, cause)
    ids = _ids(choice["token_ids"])
    received = len(ids)
    turn_ended = ended == "end" and choice.get("stop_reason") not in closing
    # The last id is of the token that ended the turn. Only if log-probabilities were requested, the
    # text and the log-probabilities have that token, too: then it is left out after they were read.
    if turn_ended and logprobs is None:
        del ids[-1:]
    if turn_ended and not ids:
        return Chunk((), received, ended)
    tokens = _tokens(choice, ids, logprobs, matched=ended == "delimiter")
    if turn_ended and logprobs is not None:
        tokens = tokens[:-1]
    return Chunk(tokens, received, ended)


def ending(call: Call, choice: Reply) -> Stop | None:
    """
    Return why a text ended. None: it has not. Raise `EndpointUnavailable` if the server gave up.
    """
    finish = choice.get("finish_reason")
    if not finish:
        return None
    if finish in ABORTED:
        message = f"the server gave the request up (finish_reason {finish!r}): see its log"
        raise call.error(EndpointUnavailable, message)
    if finish != "stop":
        return STOPS_BY_FINISH_REASON[finish]
    return "delimiter" if isinstance(choice.get("stop_reason"), str) else "end"


def _tokens(
    choice: Reply,
    ids: Sequence[int],
    logprobs: int | None,
    *,
    matched: bool,
) -> tuple[Token, ...]:
    """Return the tokens of *choice*. *matched*: the server ended the text at a stop string."""
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(text)
    reported = choice.get("logprobs")
    if logprobs is None or not reported:
        # The text of a single token is its spelling, unless a stop string has cut it.
        pieces = (text,) if len(ids) == 1 and not matched else ()
        parts = divide_text(text, ids, pieces, cut=matched)
        return tuple([Token(part, id=number) for part, number in parts])
    parts = divide_text(text, ids, reported["tokens"], cut=matched)
    rows = zip(parts, reported["token_logprobs"], reported["top_logprobs"], strict=True)
    return tuple(
        [
            Token(
                part,
                logprob=finite(value),
                rank=_rank(value, top, logprobs),
                id=number,
                top=_top(top, logprobs),
            )
            for (part, number), value, top in rows
        ]
    )


def _rank(value: float | None, top: Mapping[str, float] | None, requested: int) -> int:
    """Return the token's rank among the *requested* likeliest tokens. 0: not among them."""
    if value is None or not top:
        return 0
    above = sum(other > value for other in top.values())
    return above + 1 if above < requested else 0


def _top(top: Mapping[str, float] | None, requested: int) -> tuple[Token, ...]:
    """
    Return the *requested* number of likeliest tokens, best first.

    If the written token is not among them, *top* has it, too.
    """
    best = nlargest(requested, (top or {}).items(), key=itemgetter(1))
    return tuple(
        [
            Token(
                text,
                finite(value),
                rank,
            )
            for rank, (text, value) in enumerate(best, 1)
        ]
    )


def finite(logprob: float | None) -> float:
    """
    Return *logprob*, at least `MIN_LOGPROB`, because JSON has no infinity.

    None stands for a token that vLLM lost. Raise `ValueError` for NaN.
    """
    if logprob is None:
        return MIN_LOGPROB
    if isnan(logprob):
        raise ValueError(logprob)
    return max(logprob, MIN_LOGPROB)


def divide_text(
    text: str,
    ids: Sequence[int],
    pieces: Sequence[str],
    *,
    cut: bool = False,
) -> list[tuple[str, int]]:
    """
    Divide *text* among the tokens *ids*. *pieces* are the spellings of the single tokens.

    The parts always join to *text*. The pieces may not, because several tokens may share a
    character. Then tokens are matched from the front and from the back. The rest of the text goes
    to the last token that did not match, and the others that did not match get "". If the text was
    *cut* inside the last token, this token gets the rest of the text, and its id becomes -1.
    Raise `ValueError` for text without tokens.
    """
    if text == "".join(pieces) and len(pieces) == len(ids):
        return list(zip(pieces, ids, strict=True))
    if not ids:
        raise ValueError("text without a token")
    last = len(ids) - 1  # the index of the last token that did not match
    first = _first_unmatched(text, pieces[:last])
    start = len("".join(pieces[:first]))
    end = len(text)
    if not cut and len(pieces) == len(ids):
        last = _last_unmatched(text[start:], pieces, first)
        end -= len("".join(pieces[last + 1 :]))
    return [
        *zip(pieces[:first], ids[:first], strict=True),
        *[("", number) for number in ids[first:last]],
        (text[start:end], -1 if cut else ids[last]),
        *zip(pieces[last + 1 :], ids[last + 1 :], strict=False),
    ]


def _first_unmatched(text: str, pieces: Sequence[str]) -> int:
    """Match *pieces* from the front of *text*. Return the index of the first without a match."""
    start = 0
    for index, piece in enumerate(pieces):
        if not piece or not text.startswith(piece, start):
            return index
        start += len(piece)
    return len(pieces)


def _last_unmatched(text: str, pieces: Sequence[str], first: int) -> int:
    """
    Match *pieces* from the back of *text*, down to index *first*.

    Return the index of the last without a match. A token whose spelling is "" has the first bytes
    of a character. The token after it is not matched, because its spelling lacks these bytes.
    """
    last = len(pieces) - 1
    while last > first and not pieces[last]:
        last -= 1
    end = len(text)
    while last > first and pieces[last - 1] and text.endswith(pieces[last], 0, end):
        end -= len(pieces[last])
        last -= 1
    return last


class Usage(NamedTuple):
    """The tokens of one request. 0: none, or the server does not report the number."""

    prompt: int
    """Tokens of the prompt."""
    cached: int
    """Tokens of the prompt that came from the cache."""
    written: int
    """Tokens that were written."""


def usage(reply: Reply) -> Usage:
    """Return the usage in *reply*."""
    counts = as_object(reply.get("usage"))
    prompt = _count(counts.get("prompt_tokens"))
    cached = _count(prompt_details(reply).get("cached_tokens"))
    # Some servers report more cached tokens than the prompt has.
    return Usage(prompt, min(cached, prompt), _count(counts.get("completion_tokens")))


def prompt_details(reply: Reply) -> Reply:
    """Return the details about the prompt's tokens in the usage of *reply*. {}: there are none."""
    return as_object(as_object(reply.get("usage")).get("prompt_tokens_details"))


def _count(value: object) -> int:
    """Return *value* if it is a number of tokens, otherwise 0."""
    return min(value, MAX_COUNTED_TOKENS) if type(value) is int and value > 0 else 0


def choice_probabilities(call: Call, reply: Reply, choices: Mapping[str, int]) -> dict[str, float]:
    """
    Return the probabilities of *choices* after the first prompt. The reply may not have all.

    *choices* maps texts to token ids. Raise `MalformedReply`.
    """
    with reading(call, "log-probabilities", reply):
        ending(call, reply["choices"][0])  # raises an error if the server gave up
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        keys = {choice: f"token_id:{number}" for choice, number in choices.items()}
        return {choice: _probability(top[key]) for choice, key in keys.items() if key in top}


def _probability(logprob: float) -> float:
    """
    Return the probability of *logprob*. Raise `ValueError` if this is none, as for NaN or 3.
    """
    probability = exp(logprob)
    if not 0 <= probability <= 1 + MAX_ROUNDING:
        raise ValueError(logprob)
    return min(probability, 1.0)


def with_last_rows(body: bytes, count: int) -> bytes:
    """
    Return the *body* of a reply with only the last *count* rows of the prompt.

    To parse the rows of a whole chain would block the event loop for a second. A body with other
    white space than vLLM writes is returned as it is.
    """
    head, key, rows = body.partition(ROWS_KEY)
    row_starts = [row_end.end() for row_end in ROW_END.finditer(rows)]
    if not 0 < count <= len(row_starts):
        return body
    return head + key + rows[row_starts[-count] :]


def prompt_rows(call: Call, reply: Reply, count: int) -> Sequence[Row]:
    """Return the last *count* rows of a reply to `scoring_body`. Raise `MalformedReply`."""
    with reading(call, PROMPT_ROWS, reply):
        ending(call, reply["choices"][0])  # raises an error if the server gave up
        rows: Sequence[Row] = reply["choices"][0]["prompt_logprobs"]
        return rows[len(rows) - count :]


def computed_rows(reply: Reply, ids: Sequence[int], start: int) -> Sequence[Row] | None:
    """
    Return the rows of *ids*, which are the end of the prompt, from position *start* on.

    *reply* answers a `suffix_scoring_body`. None: a row is missing, or may not have been computed.

    vLLM computes the row of a token from the token before. Without a row are therefore the tokens
    in the cache, and the first token after them. vLLM's V1 runner fills these rows with
    uninitialised memory: a reply without the number of cached tokens is not trusted. The V2 runner
    leaves these rows out: the others are counted from the end.
    """
    cached = prompt_details(reply).get("cached_tokens")
    found = reply.get("prompt_logprobs")
    if not isinstance(cached, int) or cached >= start or not isinstance(found, list):
        return None
    rows = cast("list[Row]", found)
    if len(rows) <= len(ids):  # the row of the first token is always empty
        return None
    last = rows[len(rows) - len(ids) :]
    complete = all(
        str(number) in as_object(row)
        for number, row in zip(
            ids,
            last,
            strict=True,
        )
    )
    return last if complete else None


def scored_spans(
    call: Call,
    rows: Sequence[Row],
    spans: Sequence[tuple[str, Sequence[int]]],
    top: int,
    pieces: Mapping[int, str] | None = None,
) -> list[tuple[Token, ...]]:
    """
    Return the tokens of each span, with the *top* likeliest tokens of their positions.

    *spans* are pairs of a text and its ids. *rows* has the rows of all spans in their order.
    *pieces* maps these ids to their spellings. None: the rows have spellings. With *pieces* the
    likeliest tokens have no text: their spellings would take one more request for every step.
    Raise `MalformedReply`.
    """
    scored: list[tuple[Token, ...]] = []
    following = iter(rows)
    with reading(call, PROMPT_ROWS, rows):
        for text, ids in spans:
            span = list(islice(following, len(ids)))
            scored.append(_scored(text, ids, span, top, pieces))
    return scored


def _scored(
    text: str,
    ids: Sequence[int],
    rows: Sequence[Row],
    top: int,
    pieces: Mapping[int, str] | None,
) -> tuple[Token, ...]:
    """Return the tokens of one span of `scored_spans`."""
    own = [row[str(number)] for row, number in zip(rows, ids, strict=True)]
    spellings = (
        [pieces[number] for number in ids] if pieces else [row["decoded_token"] for row in own]
    )
    parts = divide_text(text, ids, spellings)
    return tuple(
        [
            Token(
                part,
                finite(entry["logprob"]),
                entry["rank"],
                number,
                _likeliest(row, top),
            )
            for (part, number), entry, row in zip(parts, own, rows, strict=True)
        ]
    )


def _likeliest(row: Row, top: int) -> tuple[Token, ...]:
    """Return the *top* likeliest tokens of *row*, best first."""
    best = sorted(
        (entry["rank"], int(number), entry) for number, entry in row.items() if entry["rank"] <= top
    )
    return tuple(
        [
            Token(
                entry.get("decoded_token") or "",
                finite(entry["logprob"]),
                rank,
                number,
            )
            for rank, number, entry in best
        ]
    )


def pooled_values(call: Call, reply: Reply) -> list[float]:
    """
    Return the one or two values that a reward model has for the end of the text.

    Raise `MalformedReply` if the reply has no such values.
    """
    with reading(call, "reward of one or two values", reply):
        rows: list[Any] = reply["data"][0]["data"]
        last = cast("Sequence[Any]", rows[-1]) if isinstance(rows[-1], list) else rows
        values = [float(value) for value in last]
        if len(values) not in (1, 2):
            raise ValueError(values)
        return values
