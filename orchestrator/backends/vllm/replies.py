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
"""The values of ``finish_reason`` for a request that the server gave up."""

STOPS_BY_FINISH_REASON: Mapping[str, Stop] = {"length": "length", "repetition": "repetition"}

MAX_COUNTED_TOKENS = 2**40
"""The most tokens that one request counts. Sums of larger numbers would not fit into JSON."""

NOT_JSON_COMPLIANT = "not JSON compliant"
"""
A part of vLLM's error message if a log-probability is NaN or infinite. The cause is that vLLM has
read uninitialised memory.
"""

MIN_LOGPROB = -9999.0
"""vLLM sends this log-probability in place of minus infinity, because JSON has no infinity."""

REPLACEMENT = "\ufffd"
"""The character that stands for bytes of an incomplete character."""

MAX_ROUNDING = 1e-3
"""A probability may exceed 1 by this much. Servers add up float32 and bfloat16 with rounding."""

TOKENS_KEY = b'"tokens":['
"""Stands before the token ids in a reply of ``/tokenize``."""

ID_CHARACTERS = b"0123456789,"
"""The characters of a JSON list of token ids without white space."""

PROMPT_ROWS = "log-probabilities of the prompt"
"""The name of the rows in error messages. A row describes one position of the prompt."""

ROWS_KEY = b'"prompt_logprobs":['
"""Stands before the rows of a prompt."""

ROW_END = re.compile(rb'\}\},(?=\{"\d+":\{)')
"""
Matches only between two rows. It matches nothing in the text of a token, where quotes are escaped.
"""


def version(body: bytes) -> str | None:
    """Read vLLM's version. None: the server does not report a version."""
    found = object_in(body).get("version")
    return None if found is None else str(found)


def tokenized(call: Call, reply: Reply, *, must_fit: bool = False) -> tuple[list[int], int]:
    """
    Return the token ids in a reply of ``/tokenize``, and the model's context length in tokens.

    With *must_fit*, raise `ContextTooLong` if there are too many ids. The ids are then not checked.
    Raise `MalformedReply` if the reply is of another form.
    """
    with reading(call, "token ids", reply):
        count = len(reply["tokens"])
        context_length = int(reply["max_model_len"])
        if not must_fit or count <= context_length:
            return _ids(reply["tokens"]), context_length
    del reply  # The error keeps this frame alive, and a million ids take 40 MB.
    raise call.error(ContextTooLong, no_room(count, context_length))


def tokenized_prompt(call: Call, body: bytes) -> EncodedPrompt:
    """
    Return the prompt in the *body* of a reply of ``/tokenize``. Its ids stay JSON.

    Parsing a million ids would block the event loop for too long. If the white space in the body is
    not as vLLM writes it, the ids are parsed nevertheless. Raise `MalformedReply`, `ContextTooLong`
    if the ids do not fit into the context, or the error that the server reported.
    """
    head, key, rest = body.partition(TOKENS_KEY)
    ids, end, tail = rest.partition(b"]")
    other_characters = ids.translate(None, ID_CHARACTERS)
    ids_are_compact = bool(ids and end and not other_characters)
    if ids_are_compact:
        # The ids are cut out. The parser sees an empty list.
        body = head + key + end + tail
    # The reply has no name here, because an error keeps all local variables alive.
    parsed_ids, context_length = tokenized(
        call,
        checked(call, parse_object(call, body)),
        must_fit=True,
    )
    if not ids_are_compact:
        return EncodedPrompt.of(parsed_ids)
    prompt = EncodedPrompt(ids.count(b",") + 1, (ids,))
    if prompt.count > context_length:
        raise call.error(ContextTooLong, no_room(prompt.count, context_length))
    return prompt


def _ids(value: Any) -> list[int]:
    """Return *value* if it is a list of token ids. Raise `ValueError` for any other value."""
    ids = cast("list[int]", value)
    all_int = isinstance(value, list) and set(map(type, ids)) <= {int}
    if all_int and min(ids, default=0) >= 0 and max(ids, default=0) <= LARGEST_ID:
        return ids
    raise ValueError(str(ids)[:80])


def detokenized(call: Call, reply: Reply) -> str:
    """Return the text in a reply of ``/detokenize``. Raise `MalformedReply` if there is none."""
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
    """Tokens of the prompt that came from the cache. 0: none, or the event has no usage."""


def parse_chunk(
    call: Call,
    event: bytes,
    logprobs: int | None,
    closing: Sequence[int] = (),
) -> Chunk:
    """
    Read one event of a stream. Raise `MalformedReply`, or the error that the server reported.

    *closing* are the ids of the stop tokens of the request. A stop token belongs to the step. Any
    other token that ends the turn is left out.
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
        raise call.error(
            MalformedReply,
            f"not a piece of a stream as vLLM sends it: {event[:200]!r}",
        ) from exc


def _chunk(
    call: Call,
    reply: Reply,
    logprobs: int | None,
    closing: Sequence[int],
) -> Chunk:
    """Read *reply*, the object in one event of a stream, with the arguments of `parse_chunk`."""
    if not reply["choices"]:
        return Chunk(cached=usage(reply).cached)
    choice = reply["choices"][0]
    ended = ending(call, choice)
    if choice.get("token_ids") is None:
        raise call.error(
            MalformedReply,
            "no token ids, which the field return_token_ids requests: does a proxy leave out what"
            " it does not know?",
        )
    ids = _ids(choice["token_ids"])
    received = len(ids)
    turn_ended = ended == "end" and choice.get("stop_reason") not in closing
    # The last id is the id of the token that ended the turn. Without log-probabilities, the text
    # lacks this token: drop its id now. With log-probabilities, the text has the token: drop the
    # token after the text was divided.
    if turn_ended and logprobs is None:
        del ids[-1:]
    if turn_ended and not ids:
        return Chunk((), received, ended)
    cut = ended == "delimiter"
    tokens = _tokens(choice, ids, logprobs, cut=cut)
    if turn_ended and logprobs is not None:
        tokens = tokens[:-1]
    return Chunk(tokens, received, ended)


def ending(call: Call, choice: Reply) -> Stop | None:
    """
    Return why the text of *choice* ended. None: the text goes on.

    Raise `EndpointUnavailable` if the server gave up the request.
    """
    finish = choice.get("finish_reason")
    if not finish:
        return None
    if finish in ABORTED:
        raise call.error(
            EndpointUnavailable,
            f"the server gave the request up (finish_reason {finish!r}): see its log",
        )
    if finish != "stop":
        return STOPS_BY_FINISH_REASON[finish]
    return "delimiter" if isinstance(choice.get("stop_reason"), str) else "end"


def _tokens(
    choice: Reply,
    ids: Sequence[int],
    logprobs: int | None,
    *,
    cut: bool,
) -> tuple[Token, ...]:
    """Return the tokens of *choice*. *cut*: the server has cut the text at a stop string."""
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(text)
    reported = choice.get("logprobs")
    if logprobs is None or not reported:
        # The text of a single token is its spelling, unless the text was cut.
        pieces = (text,) if len(ids) == 1 and not cut else ()
        parts = divide_text(text, ids, pieces, cut=cut)
        return tuple([Token(part, id=number) for part, number in parts])
    parts = divide_text(text, ids, reported["tokens"], cut=cut)
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

    *top* may have one token more: the written token, if it is not among the likeliest.
    """
    best = nlargest(requested, (top or {}).items(), key=itemgetter(1))
    return tuple([Token(text, finite(value), rank) for rank, (text, value) in enumerate(best, 1)])


def finite(logprob: float | None) -> float:
    """
    Return *logprob*, but at least `MIN_LOGPROB`, because JSON has no infinity.

    None stands for a token that vLLM lost. It becomes `MIN_LOGPROB`. Raise `ValueError` for NaN.
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
    Divide *text* among the tokens *ids*.

    *pieces* are the spellings of the single tokens. They are empty if no spelling is known. The
    returned parts always join to *text*. Sometimes the pieces do not join to *text*, because
    several tokens share a character. Then pieces are matched with the text from the front and from
    the back. The tokens between, without a match, are the gap. The last token of the gap gets the
    text of the gap. The other tokens of the gap get "".

    An example: the tokens are 1, 2, 3 and 4, and the tokens 2 and 3 share a character. The text
    "a🙂b" is divided into ("a", 1), ("", 2), ("🙂", 3), ("b", 4).

    If the text was *cut* inside the last token, this token gets the rest of the text, and its id
    becomes -1. Raise `ValueError` for text without tokens.
    """
    has_all_pieces = len(pieces) == len(ids)
    if has_all_pieces and text == "".join(pieces):
        return list(zip(pieces, ids, strict=True))
    if not ids:
        raise ValueError("text without a token")
    last_gap = len(ids) - 1  # the index of the last token of the gap
    first_gap = _first_unmatched(text, pieces[:last_gap])
    gap_start = len("".join(pieces[:first_gap]))
    gap_end = len(text)
    if has_all_pieces and not cut:
        last_gap = _last_unmatched(text[gap_start:], pieces, first_gap)
        gap_end -= len("".join(pieces[last_gap + 1 :]))
    return [
        *zip(pieces[:first_gap], ids[:first_gap], strict=True),
        *[("", number) for number in ids[first_gap:last_gap]],
        (text[gap_start:gap_end], -1 if cut else ids[last_gap]),
        *zip(pieces[last_gap + 1 :], ids[last_gap + 1 :], strict=False),
    ]


def _first_unmatched(text: str, pieces: Sequence[str]) -> int:
    """Match *pieces* from the front of *text*. Return the index of the first piece that fails."""
    start = 0
    for index, piece in enumerate(pieces):
        if not piece or not text.startswith(piece, start):
            return index
        start += len(piece)
    return len(pieces)


def _last_unmatched(text: str, pieces: Sequence[str], first: int) -> int:
    """
    Match *pieces* from the back of *text*, down to index *first*.

    Return the index of the last piece that fails.
    """
    last = len(pieces) - 1
    while last > first and not pieces[last]:
        last -= 1
    end = len(text)
    # A token with the spelling "" has only the first bytes of a character. The spelling of the next
    # token lacks these bytes, so the next token fails.
    while last > first and pieces[last - 1] != "" and text.endswith(pieces[last], 0, end):
        end -= len(pieces[last])
        last -= 1
    return last


class Usage(NamedTuple):
    """The tokens of one request. A number is 0 if the server does not report it."""

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
    """Return the details about the prompt's tokens in the usage of *reply*, or {}."""
    return as_object(as_object(reply.get("usage")).get("prompt_tokens_details"))


def _count(value: object) -> int:
    """Return *value*, at most `MAX_COUNTED_TOKENS`. Return 0 if it is no number of tokens."""
    return min(value, MAX_COUNTED_TOKENS) if type(value) is int and value > 0 else 0


def choice_probabilities(call: Call, reply: Reply, choices: Mapping[str, int]) -> dict[str, float]:
    """
    Return the probability of each of *choices* as the next token after the prompt.

    *choices* maps texts to token ids. The reply may lack some choices, and the result then lacks
    them, too. If the request had several prompts, the result is about the first prompt. Raise
    `MalformedReply`.
    """
    with reading(call, "log-probabilities", reply):
        ending(call, reply["choices"][0])  # raises an error if the server gave up
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        keys = {choice: f"token_id:{number}" for choice, number in choices.items()}
        return {choice: _probability(top[key]) for choice, key in keys.items() if key in top}


def _probability(logprob: float) -> float:
    """
    Return the probability that has this *logprob*.

    Raise `ValueError` if the result is not a probability. Examples: a *logprob* that is NaN, or 3.
    """
    probability = exp(logprob)
    if not 0 <= probability <= 1 + MAX_ROUNDING:
        raise ValueError(logprob)
    return min(probability, 1.0)


def with_last_rows(body: bytes, count: int) -> bytes:
    """
    Return the *body* of a reply with only the last *count* rows of the prompt.

    Parsing the rows of a whole chain would block the event loop for a second. If the white space in
    the body is not as vLLM writes it, the body is returned unchanged.
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
    Return the rows of *ids*, the tokens of the prompt from position *start* to its end.

    *reply* answers a `suffix_scoring_body`. None: a row is missing, or perhaps vLLM did not compute
    a row.

    vLLM computes the row of a token from the token before. So the tokens in the cache have no row,
    and neither has the first token after them. vLLM's V1 runner fills these rows with uninitialised
    memory. So a reply without the number of cached tokens is not trusted. The V2 runner leaves
    these rows out. So the rows of *ids* are counted from the end.
    """
    cached = prompt_details(reply).get("cached_tokens")
    found = reply.get("prompt_logprobs")
    if not isinstance(cached, int) or not isinstance(found, list):
        return None
    rows = cast("list[Row]", found)
    first_computed = cached + 1  # the position of the first token with a computed row
    # There is also an empty row for the first token of the prompt. So there are more rows than ids.
    if start < first_computed or len(rows) <= len(ids):
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
    Return the tokens of each span, with the *top* likeliest tokens of their positions.

    *spans* are pairs of a text and its ids. *rows* has the rows of all spans, one after the other.
    *pieces* maps these ids to their spellings. None: the rows have the spellings. If *pieces* is
    given, the likeliest tokens have no text, because a request for their spellings would be needed
    for every step. Raise `MalformedReply`.
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
    """Return the tokens of one span. The arguments are those of `scored_spans`."""
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
    Return the one or two values that a reward model gives at the end of the text.

    Raise `MalformedReply` if the reply has no such values.
    """
    with reading(call, "reward of one or two values", reply):
        rows: list[Any] = reply["data"][0]["data"]
        last = cast("Sequence[Any]", rows[-1]) if isinstance(rows[-1], list) else rows
        values = [float(value) for value in last]
        if len(values) not in (1, 2):
            raise ValueError(values)
        return values
