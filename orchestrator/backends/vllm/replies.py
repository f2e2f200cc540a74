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
"""One position of a prompt: by token id the fields ``logprob``, ``rank`` and ``decoded_token``."""

ABORTED = ("abort", "error")
"""The values of ``finish_reason`` of a request that the server gave up."""

STOPS_BY_FINISH_REASON: Mapping[str, Stop] = {"length": "length", "repetition": "repetition"}

MAX_COUNTED_TOKENS = 2**40
"""Tokens of one request. Sums of larger numbers would not fit into JSON."""

NOT_JSON_COMPLIANT = "not JSON compliant"
"""vLLM's complaint if uninitialised memory holds no finite number."""

MIN_LOGPROB = -9999.0
"""Nats that vLLM sends for minus infinity, which JSON has no number for."""

REPLACEMENT = "\ufffd"
"""Stands for bytes that are no complete character."""

MAX_ROUNDING = 1e-3
"""Nats by which a log-probability may exceed 0: servers add up float32 and bfloat16."""

TOKENS_KEY = b'"tokens":['

ID_SIGNS = b"0123456789,"
"""The signs of a list in JSON that has only whole numbers from 0 on, without white space."""

PROMPT_ROWS = "log-probabilities of the prompt"

ROWS_KEY = b'"prompt_logprobs":['
ROW_END = re.compile(rb'\}\},(?=\{"\d+":\{)')
"""Stands between two rows, and in no text: the quotes of a text would be escaped."""


def version(body: bytes) -> str | None:
    """Read vLLM's version; None if the server does not report one."""
    found = object_in(body).get("version")
    return None if found is None else str(found)


def tokenized(call: Call, reply: Reply, *, fitting: bool = False) -> tuple[list[int], int]:
    """
    Return the token ids in a reply of ``/tokenize``, and the model's context length in tokens.

    *fitting*: raise `ContextTooLong`, before the ids are read, if they do not fit into the context.
    Raise `MalformedReply` for anything else than such a reply.
    """
    with reading(call, "token ids", reply):
        count = len(reply["tokens"])
        room = int(reply["max_model_len"])
        if not fitting or count <= room:
            return _ids(reply["tokens"]), room
    del reply  # The error holds this frame, and a million ids take 40 MB.
    raise call.error(ContextTooLong, no_room(count, room))


def tokenized_prompt(call: Call, body: bytes) -> EncodedPrompt:
    """
    Return the prompt in the *body* of a reply of ``/tokenize``, with its ids left as JSON.

    To parse a million ids takes longer than the event loop may wait. A body with other white space
    than vLLM's is parsed all the same. Raise the error that the reply carries, `MalformedReply`,
    and `ContextTooLong` if the ids do not fit into the context.
    """
    head, key, rest = body.partition(TOKENS_KEY)
    ids, end, tail = rest.partition(b"]")
    is_json = bool(ids and end) and not ids.translate(None, ID_SIGNS)
    if is_json:
        body = head + key + end + tail
    others, room = tokenized(call, checked(call, parse_object(call, body)), fitting=True)
    if not is_json:
        return EncodedPrompt.of(others)
    prompt = EncodedPrompt(ids.count(b",") + 1, (ids,))
    if prompt.count > room:
        raise call.error(ContextTooLong, no_room(prompt.count, room))
    return prompt


def _ids(value: Any) -> list[int]:
    """
    Return *value*, a list of token ids, perhaps a million. Raise `ValueError` for anything else.
    """
    ids = cast("list[int]", value)
    is_list = isinstance(value, list) and not {*map(type, ids)} - {int}
    if is_list and 0 <= min(ids, default=0) <= max(ids, default=0) <= LARGEST_ID:
        return ids
    raise ValueError(str(ids)[:80])


def detokenized(call: Call, reply: Reply) -> str:
    """Read a reply of ``/detokenize``. Raise `MalformedReply`."""
    with reading(call, "text of tokens", reply):
        return str(reply["prompt"])


class Chunk(NamedTuple):
    """One event of a stream."""

    tokens: tuple[Token, ...] = ()
    """Its tokens, without one that ended the turn."""
    received: int = 0
    """The number of tokens that arrived, with the one that ended the turn."""
    ended: Stop | None = None
    """How the text ended. None: the text goes on."""
    cached: int = 0
    """Tokens of the prompt that the cache had. 0: none, or the usage has not arrived."""


def parse_chunk(
    call: Call,
    event: bytes,
    logprobs: int | None,
    closing: Sequence[int] = (),
) -> Chunk:
    """
    Read one event of a stream. Raise the error that it carries, or `MalformedReply`.

    *closing* are the tokens at which the server was asked to stop. They are text, unlike others
    that end the turn.
    """
    try:
        reply = orjson.loads(event)
        if "choices" in reply and not reply.get("error"):
            return _chunk(call, reply, logprobs, closing)
        raise reply_error(call, reply) or LookupError("choices")
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        message = f"not a piece of a stream as vLLM sends it: {event[:200]!r}"
        raise call.error(MalformedReply, message) from exc


def _chunk(call: Call, reply: Reply, logprobs: int | None, closing: Sequence[int]) -> Chunk:
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
    # The text has the token that ended the turn only among spelt tokens.
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
    Return why a text ended; None if it goes on. Raise `EndpointUnavailable` if the server gave up.
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
    """Return the tokens of *choice*. *matched*: its text ends at a stop string."""
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(text)
    known = choice.get("logprobs")
    if logprobs is None or not known:
        pieces = (text,) if len(ids) == 1 and not matched else ()
        parts = divide_text(text, ids, pieces, cut=matched)
        return tuple([Token(part, id=number) for part, number in parts])
    spelt = divide_text(text, ids, known["tokens"], cut=matched)
    rows = zip(spelt, known["token_logprobs"], known["top_logprobs"], strict=True)
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


def _rank(value: float | None, top: Mapping[str, float] | None, known: int) -> int:
    """Return the token's rank among the *known* most probable ones; 0 if it is none of them."""
    if value is None or not top:
        return 0
    above = sum(other > value for other in top.values())
    return above + 1 if above < known else 0


def _top(top: Mapping[str, float] | None, known: int) -> tuple[Token, ...]:
    """Sort the *known* most probable tokens; vLLM adds the written token if it is none of them."""
    best = nlargest(known, (top or {}).items(), key=itemgetter(1))
    return tuple([Token(text, finite(value), rank) for rank, (text, value) in enumerate(best, 1)])


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
    Divide *text* among the tokens *ids*, whose single spellings are *pieces*.

    The parts join to *text*. If the spellings do not, because tokens share a character, complete
    tokens are matched from both ends, and the last token between them gets the text between them.
    If the text was *cut* inside the last token, that token gets the rest of the text, and its id
    becomes -1. Raise `ValueError` for text without tokens.
    """
    if text == "".join(pieces) and len(pieces) == len(ids):
        return list(zip(pieces, ids, strict=True))
    if not ids:
        raise ValueError("text without a token")
    first = 0  # index of the first token that is not matched
    last = len(ids) - 1  # index of the last token that is not matched
    start = 0
    end = len(text)
    while (
        first < min(last, len(pieces)) and pieces[first] and text.startswith(pieces[first], start)
    ):
        start += len(pieces[first])
        first += 1
    if not cut and len(pieces) == len(ids):
        last = _last_shared(text[start:], pieces, first)
        end -= len("".join(pieces[last + 1 :]))
    return [
        *zip(pieces[:first], ids[:first], strict=True),
        *[("", number) for number in ids[first:last]],
        (text[start:end], -1 if cut else ids[last]),
        *zip(pieces[last + 1 :], ids[last + 1 :], strict=False),
    ]


def _last_shared(text: str, pieces: Sequence[str], first: int) -> int:
    """
    Return the index of the last token, from *first* on, whose spelling *text* does not contain.

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


class Usage(NamedTuple):
    """The tokens of one request. 0: none, or the server does not report the number."""

    prompt: int
    """Tokens of the prompt."""
    cached: int
    """Tokens of the prompt that the cache had. Some servers report more than the prompt has."""
    written: int
    """Tokens that were written."""


def usage(reply: Reply) -> Usage:
    """Return the usage in *reply*."""
    counts = as_object(reply.get("usage"))
    prompt = _count(counts.get("prompt_tokens"))
    cached = _count(prompt_details(reply).get("cached_tokens"))
    return Usage(prompt, min(cached, prompt), _count(counts.get("completion_tokens")))


def prompt_details(reply: Reply) -> Reply:
    """Return what the usage in *reply* says of the prompt's tokens. {}: nothing."""
    return as_object(as_object(reply.get("usage")).get("prompt_tokens_details"))


def _count(value: object) -> int:
    return min(value, MAX_COUNTED_TOKENS) if type(value) is int and value > 0 else 0


def choice_probabilities(call: Call, reply: Reply, choices: Mapping[str, int]) -> dict[str, float]:
    """
    Return the probability of each of *choices* that the reply has, for the first prompt.

    *choices* are token ids by text. Raise `MalformedReply`.
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
    if not 0 <= probability <= 1 + MAX_ROUNDING:
        raise ValueError(logprob)
    return min(probability, 1.0)


def with_last_rows(body: bytes, count: int) -> bytes:
    """
    Return the *body* of a reply with the last *count* rows of the prompt only.

    To parse the rows of a whole chain takes a second, during which the event loop waits. A body
    with other white space than vLLM's is returned as it is.
    """
    head, key, rows = body.partition(ROWS_KEY)
    begins = [between.end() for between in ROW_END.finditer(rows)]
    if not 0 < count <= len(begins):
        return body
    return head + key + rows[begins[-count] :]


def prompt_rows(call: Call, reply: Reply, count: int) -> Sequence[Row]:
    """Return the last *count* rows of a reply to `scoring_body`. Raise `MalformedReply`."""
    with reading(call, PROMPT_ROWS, reply):
        ending(call, reply["choices"][0])
        rows: Sequence[Row] = reply["choices"][0]["prompt_logprobs"]
        return rows[len(rows) - count :]


def computed_rows(reply: Reply, ids: Sequence[int], start: int) -> Sequence[Row] | None:
    """
    Return the rows of the tokens *ids*, which are the prompt's from token *start* on.

    *reply* is one to `suffix_scoring_body`. None: a row is missing, or may not have been computed.

    The last token of a cached prefix predicts the token after it: that row was not computed either.
    vLLM's V1 runner fills such rows with uninitialised memory, so that a reply without the number
    of cached tokens is not trusted. The V2 runner leaves them out: rows are counted from the end.
    """
    cached = prompt_details(reply).get("cached_tokens")
    found = reply.get("prompt_logprobs")
    if not isinstance(cached, int) or cached >= start or not isinstance(found, list):
        return None
    rows = cast("list[Row]", found)
    if len(rows) <= len(ids):  # the first row, of the first token, is always empty
        return None
    last = rows[len(rows) - len(ids) :]
    complete = all(str(number) in as_object(row) for number, row in zip(ids, last, strict=True))
    return last if complete else None


def scored_spans(
    call: Call,
    rows: Sequence[Row],
    spans: Sequence[tuple[str, Sequence[int]]],
    top: int,
    pieces: Mapping[int, str] | None = None,
) -> list[tuple[Token, ...]]:
    """
    Return the tokens of each of *spans*, texts and ids, whose *rows* follow one another.

    Each token has the *top* likeliest tokens of its position. *pieces* are the spellings of the
    spans' own tokens; None for a reply that has them. Other tokens have no text in a reply without
    spellings: to ask for it would take one more request for every step. Raise `MalformedReply`.
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
    own = [row[str(number)] for row, number in zip(rows, ids, strict=True)]
    spellings = (
        [pieces[number] for number in ids] if pieces else [row["decoded_token"] for row in own]
    )
    spelt = divide_text(text, ids, spellings)
    return tuple(
        [
            Token(part, finite(entry["logprob"]), entry["rank"], number, _likeliest(row, top))
            for (part, number), entry, row in zip(spelt, own, rows, strict=True)
        ]
    )


def _likeliest(row: Row, top: int) -> tuple[Token, ...]:
    """Return the *top* likeliest tokens of *row*, best first."""
    best = sorted(
        (entry["rank"], int(number), entry) for number, entry in row.items() if entry["rank"] <= top
    )
    return tuple(
        [
            Token(entry.get("decoded_token") or "", finite(entry["logprob"]), rank, number)
            for rank, number, entry in best
        ]
    )


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
