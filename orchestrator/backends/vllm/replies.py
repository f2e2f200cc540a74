"""The replies of vLLM's HTTP protocol, read as values. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import nlargest
from itertools import islice
from math import exp
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

import orjson
from pydantic import Field, TypeAdapter

from ...chain import Stop, Token
from ...errors import EndpointUnavailable, MalformedReply
from ...http.http_errors import (
    Call,
    Reply,
    as_object,
    checked,
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

TOKEN_IDS = TypeAdapter(list[Annotated[int, Field(strict=True, ge=0, le=LARGEST_ID)]])
"""A list of token ids."""

POOLED_VALUES = TypeAdapter(Annotated[list[float], Field(min_length=1, max_length=2)])
"""The values of a reward model: one, or those of wrong and right."""

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


def tokenized(call: Call, body: bytes) -> tuple[EncodedPrompt, int]:
    """
    Return the prompt in the *body* of a reply of ``/tokenize``, and the model's context length.

    Raise `MalformedReply`, or the error that the server reported.
    """
    reply = checked(call, parse_object(call, body))
    with reading(call, "token ids", reply):
        ids = TOKEN_IDS.validate_python(reply["tokens"])
        return EncodedPrompt.of(ids), int(reply["max_model_len"])


def detokenized(call: Call, reply: Reply) -> str:
    """Return the text in a reply of ``/detokenize``. Raise `MalformedReply` if there is none."""
    with reading(call, "text of tokens", reply):
        return str(reply["prompt"])


class Chunk(NamedTuple):
    """One event of a stream."""

    tokens: Sequence[Token] = ()
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

    This function is called for every token: the context manager `reading` would take a microsecond.
    *closing* are the ids of the stop tokens of the request. A stop token belongs to the step. Any
    other token that ends the turn is left out.
    """
    try:
        reply = orjson.loads(event)
        if "choices" not in reply or reply.get("error"):
            raise reply_error(call, reply) or LookupError("choices")
        if not reply["choices"]:
            return Chunk(cached=usage(reply).cached)
        choice = reply["choices"][0]
        ended = ending(call, choice)
        if choice.get("token_ids") is None:
            raise call.error(
                MalformedReply,
                "no token ids, which the field return_token_ids requests: does a proxy leave out"
                " what it does not know?",
            )
        ids = TOKEN_IDS.validate_python(choice["token_ids"])
        received = len(ids)
        turn_ended = ended == "end" and choice.get("stop_reason") not in closing
        # The last id is the id of the token that ended the turn. Without log-probabilities, the
        # text lacks this token: drop its id now. With log-probabilities, the text has the token:
        # drop the token after the text was divided.
        if turn_ended and logprobs is None:
            del ids[-1:]
        if turn_ended and not ids:
            return Chunk((), received, ended)
        tokens = _tokens(choice, ids, logprobs, cut=ended == "delimiter")
        if turn_ended and logprobs is not None:
            del tokens[-1:]
        return Chunk(tokens, received, ended)
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise call.error(
            MalformedReply,
            f"not a piece of a stream as vLLM sends it: {event[:200]!r}",
        ) from exc


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
    # The reason is the stop string that was found, or the id of a token.
    return "delimiter" if isinstance(choice.get("stop_reason"), str) else "end"


def _tokens(
    choice: Reply,
    ids: Sequence[int],
    logprobs: int | None,
    *,
    cut: bool,
) -> list[Token]:
    """Return the tokens of *choice*. *cut*: the server has cut the text at a stop string."""
    text = choice["text"]
    if not isinstance(text, str):
        raise TypeError(text)
    reported = choice.get("logprobs")
    if logprobs is None or not reported:
        # The text of a single token is its spelling, unless the text was cut.
        pieces = (text,) if len(ids) == 1 and not cut else ()
        return [Token(part, id=number) for part, number in divide_text(text, ids, pieces, cut=cut)]
    parts = divide_text(text, ids, reported["tokens"], cut=cut)
    rows = zip(parts, reported["token_logprobs"], reported["top_logprobs"], strict=True)
    tokens: list[Token] = []
    for (part, number), value, top in rows:
        # There may be one token more than requested: the written token, if it is not among the
        # likeliest.
        likeliest: Mapping[str, float] = top or {}
        best = nlargest(logprobs, likeliest.items(), key=itemgetter(1))
        rivals = [Token(rival, finite(other), rank) for rank, (rival, other) in enumerate(best, 1)]
        logprob = finite(value)
        rank = next((rival.rank for rival in rivals if rival.logprob == logprob), 0)
        tokens.append(Token(part, logprob, rank, number, tuple(rivals)))
    return tokens


def finite(logprob: float | None) -> float:
    """
    Return *logprob*, but at least `MIN_LOGPROB`, because JSON has no infinity.

    None stands for a token that vLLM lost. It becomes `MIN_LOGPROB`.
    """
    return MIN_LOGPROB if logprob is None else max(logprob, MIN_LOGPROB)


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

    If the text was *cut* inside the last token, the back cannot be matched. Then the last token
    gets the rest of the text, and its id becomes -1. Raise `ValueError` for text without tokens.
    """
    has_all_pieces = len(pieces) == len(ids)
    if has_all_pieces and text == "".join(pieces):
        return list(zip(pieces, ids, strict=True))
    if not ids:
        raise ValueError("text without a token")
    first = 0  # the index of the first token of the gap
    last = len(ids) - 1  # the index of the last token of the gap
    start = 0
    end = len(text)
    for piece in pieces[:last]:
        if not piece or not text.startswith(piece, start):
            break
        start += len(piece)
        first += 1
    if has_all_pieces and not cut:
        while last > first and text.endswith(pieces[last], start, end):
            # A token with the spelling "" has only the first bytes of a character. The spelling of
            # the next token lacks these bytes, so the next token does not match.
            shares_character = pieces[last] != "" and pieces[last - 1] == ""
            if shares_character:
                break
            end -= len(pieces[last])
            last -= 1
    parts = [*pieces[:first], *[""] * (last - first), text[start:end], *pieces[last + 1 : len(ids)]]
    numbers = [*ids[:-1], -1] if cut else ids
    return list(zip(parts, numbers, strict=True))


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
        return {
            choice: _probability(top[key])
            for choice, number in choices.items()
            if (key := f"token_id:{number}") in top
        }


def _probability(logprob: float) -> float:
    """
    Return the probability that has this *logprob*.

    Raise `ValueError` if the result is not a probability. Examples: a *logprob* that is NaN, or 3.
    """
    probability = exp(logprob)
    if not probability <= 1 + MAX_ROUNDING:
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
    """
    Return the last *count* rows of a reply to `bodies.scoring_body`.

    Raise `MalformedReply`.
    """
    with reading(call, PROMPT_ROWS, reply):
        ending(call, reply["choices"][0])  # raises an error if the server gave up
        rows: Sequence[Row] = reply["choices"][0]["prompt_logprobs"]
        return rows[len(rows) - count :]


def computed_rows(reply: Reply, ids: Sequence[int], start: int) -> Sequence[Row] | None:
    """
    Return the rows of *ids*, the tokens of the prompt from position *start* to its end.

    *reply* answers a `bodies.suffix_scoring_body`. None: a row is missing, or perhaps vLLM did not
    compute a row.

    The row of a token is known only if vLLM computed the token before it in this request. Cached
    tokens are not computed. So neither they nor the first token after them have a known row. vLLM's
    V1 runner fills these rows with uninitialised memory, so the reply is trusted only if it has the
    number of cached tokens. The V2 runner leaves these rows out, so the rows of *ids* are counted
    from the end.
    """
    cached = prompt_details(reply).get("cached_tokens")
    found = reply.get("prompt_logprobs")
    if not isinstance(cached, int) or not isinstance(found, list):
        return None
    rows = cast("list[Row]", found)
    is_computed = start > cached
    # The first token of the prompt has an empty row, so a whole reply has more rows than *ids*.
    has_all_rows = len(rows) > len(ids)
    if not (is_computed and has_all_rows):
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
    known = pieces or {}
    following = iter(rows)
    scored: list[tuple[Token, ...]] = []
    with reading(call, PROMPT_ROWS, rows):
        for text, ids in spans:
            own_rows = list(islice(following, len(ids)))
            entries = [row[str(number)] for row, number in zip(own_rows, ids, strict=True)]
            spellings: list[Any] = [
                known.get(number, entry.get("decoded_token"))
                for number, entry in zip(ids, entries, strict=True)
            ]
            parts = divide_text(text, ids, spellings)
            tokens = [
                Token(part, finite(entry["logprob"]), entry["rank"], number, _likeliest(row, top))
                for (part, number), entry, row in zip(parts, entries, own_rows, strict=True)
            ]
            scored.append(tuple(tokens))
    return scored


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
        # The model has values for the whole text, or a row of values for each token or step.
        rows: list[Any] = reply["data"][0]["data"]
        return POOLED_VALUES.validate_python(rows[-1] if isinstance(rows[-1], list) else rows)
