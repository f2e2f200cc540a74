"""How likely a model finds a given text: what goes over the wire and what comes back. Pure, as `wire` is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..chain import Token
from ..errors import MalformedReply
from .failures import Call
from .wire import GREEDY, Body, Reply, completion, floored, spell

GENERATE = "/inference/v1/generate"
UNSPEAKABLE = "not JSON compliant"  # vLLM's complaint if memory that it has not written to holds no number
Row: TypeAlias = Mapping[str, Mapping[str, Any]]  # what is known of one token of the prompt and of its rivals, by id


def whole(model: str, prompt: Sequence[int], top: int) -> Body:
    """Ask for the log-probability and the rank of every token of *prompt*, and for the *top* likeliest of its place."""
    return completion(model, prompt, GREEDY, 1) | {"prompt_logprobs": top}


def suffix(model: str, prompt: Sequence[int], top: int) -> Body:
    """
    Ask `GENERATE` for the same, but let the server leave out what its prefix cache holds.

    Without ``detokenize: false`` this request kills vLLM: it would look up texts for rows that it has never filled.
    """
    sampling = {
        "prompt_logprobs": top,
        "skip_reading_prefix_cache": False,
        "detokenize": False,
        "max_tokens": 1,
        "temperature": 0.0,
    }
    return {"model": model, "token_ids": prompt, "sampling_params": sampling}


def rows(call: Call, reply: Reply, start: int) -> Sequence[Row]:
    """Take what a reply to `whole` says of the prompt from token *start* on. Raise `MalformedReply`."""
    try:
        found: Sequence[Row] = reply["choices"][0]["prompt_logprobs"][start:]
        return found
    except (LookupError, TypeError) as exc:
        raise _malformed(call) from exc


def computed_rows(reply: Reply, prompt: Sequence[int], start: int) -> Sequence[Row] | None:
    """
    Take what a reply to `suffix` says of *prompt* from token *start* on; None if not all of that was computed.

    The token after a cached prefix is predicted by the last one of that prefix: its row was not computed either. vLLM's
    V1 runner returns such rows, full of whatever was in memory, so that a server that does not tell how much it had
    cached cannot be believed; the V2 runner leaves them out, which is why rows are counted from the end.
    """
    counts: Reply = reply.get("usage") or {}
    details: Reply = counts.get("prompt_tokens_details") or {}
    cached: int | None = details.get("cached_tokens")
    found: Sequence[Row] = reply.get("prompt_logprobs") or ()
    wanted = len(prompt) - start
    if cached is None or cached >= start or len(found) <= wanted:  # the first row, of the first token, is always empty
        return None
    last = found[len(found) - wanted :]
    return last if all(str(number) in row for number, row in zip(prompt[start:], last, strict=True)) else None


def scores(
    call: Call,
    rows: Sequence[Row],
    spans: Sequence[tuple[str, Sequence[int]]],
    top: int,
    pieces: Mapping[int, str] | None = None,
) -> list[tuple[Token, ...]]:
    """
    Read from *rows*, which begin with the first span, each span's tokens with the *top* likeliest of their place.

    *pieces* are the texts of the spans' own tokens, for a reply that has none. The others are not looked up, which
    would be one more request for every step: they have no text then.
    """
    try:
        read: list[tuple[Token, ...]] = []
        start = 0
        for text, ids in spans:
            found = rows[start : start + len(ids)]
            own = [row[str(number)] for row, number in zip(found, ids, strict=True)]
            told = [known["decoded_token"] for known in own] if pieces is None else [pieces[number] for number in ids]
            spelt = spell(text, ids, told)
            read.append(
                tuple(
                    [
                        Token(part, floored(known["logprob"]), known["rank"], number, _top(row, top))
                        for (part, number), known, row in zip(spelt, own, found, strict=True)
                    ]
                )
            )
            start += len(ids)
        return read
    except (LookupError, TypeError, ValueError) as exc:
        raise _malformed(call) from exc


def _top(row: Row, top: int) -> tuple[Token, ...]:
    best = sorted((known["rank"], int(key), known) for key, known in row.items() if known["rank"] <= top)
    return tuple(
        [Token(known.get("decoded_token") or "", floored(known["logprob"]), rank, id) for rank, id, known in best]
    )


def _malformed(call: Call) -> MalformedReply:
    return call.error(MalformedReply, "the prompt's log-probabilities are missing or are not vLLM's")
