"""The replies of vLLM's HTTP protocol, read as values. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from math import exp, isnan
from typing import Any, NamedTuple, TypeAlias, cast

import orjson

from ...chain import Stop, Token
from ...errors import ContextTooLong, EndpointUnavailable, MalformedReply
from ...tokens import LARGEST_ID
from .http_errors import Call, Reply, _object, checked, no_room, parse_object, reading, reply_error
from .prompts import EncodedPrompt

# one position of the prompt: log-probability and rank by token id
Row: TypeAlias = Mapping[str, Mapping[str, Any]]


GIVEN_UP = ("abort", "error")  # finish reasons


_ENDINGS: Mapping[str, Stop] = {"length": "length", "repetition": "repetition"}


MOST_TOKENS = 2**40  # of one request; sums of larger numbers would not fit into JSON


FLOOR = -9999.0  # nats; vLLM sends it for minus infinity, which JSON has no number for


REPLACEMENT = "\ufffd"  # stands for bytes that are no complete character


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


def _count(value: object) -> int:
    return min(value, MOST_TOKENS) if type(value) is int and value > 0 else 0


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
