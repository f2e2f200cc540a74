"""What goes over the wire and what comes back. Pure: values in, values out; no I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, Literal, TypeAlias

import orjson

from ..chain import THINK_END, Stop, Token
from ..errors import MalformedReply
from .client import Body, Call, Reply, failed_stream
from .settings import Sampling

Format: TypeAlias = Literal["json"] | Mapping[str, Any]  # any JSON object, or what a JSON schema describes

MOST_STOPS = 4  # vLLM refuses more stop strings (VLLM_MAX_STOP_STRINGS); the reader matches the rest.
MOST_LOGPROBS = 20  # the most that vLLM returns unless started with --max-logprobs
FLOOR = -9999.0  # what vLLM sends for minus infinity, which JSON has no number for
GREEDY = Sampling(temperature=0.0, top_p=1.0)
REPLACEMENT = "\ufffd"  # what is shown of bytes that are no character


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    One piece of a stream: the tokens that arrived and, with the last of them, how the text ended.

    *received* also counts the token that ended the turn, which is not among *tokens*. *prompt* and *cached* are numbers
    of tokens, known once the server has sent its usage. *place* is that of the prompt, where there are several.
    """

    tokens: tuple[Token, ...] = ()
    received: int = 0
    ended: Stop | None = None
    prompt: int = 0
    cached: int = 0
    place: int = 0


def writing(
    model: str,
    prompt: Sequence[int] | Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    seed: int | None,
    limit: int,
    stop: Iterable[str],
    format: Format | None = None,
) -> Body:
    """
    Ask for a stream of at most *limit* tokens that ends after a *stop* string, in a *format* if one is given.

    Without a *seed* the server draws by its own. Equal seeds of several prompts would be equal draws in vLLM.

    Several prompts are answered in one stream, each piece with the place of its prompt.
    """
    body = completion(model, prompt, sampling, limit) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": list(stop)[:MOST_STOPS],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": False,
    }
    if sampling.temperature and seed is not None:
        body["seed"] = seed
    if sampling.logprobs is not None:
        body["logprobs"] = sampling.logprobs
    if format is not None:
        body["structured_outputs"] = {"json_object": True} if format == "json" else {"json": format}
    return body


def asking(model: str, prompt: Sequence[int] | Sequence[Sequence[int]], choices: Sequence[int], *, by_id: bool) -> Body:
    """
    Ask for one token out of *choices*, with the log-probabilities of all of them; of several prompts, for one each.

    Without *by_id*, ask for the most probable tokens of the vocabulary instead, which every server understands.
    """
    wanted: Body = {"logprobs": 1, "logprob_token_ids": choices} if by_id else {"logprobs": MOST_LOGPROBS}
    forced = {"allowed_token_ids": choices, "return_tokens_as_token_ids": True}
    return completion(model, prompt, GREEDY, 1) | forced | wanted


def completion(model: str, prompt: Sequence[int] | Sequence[Sequence[int]], sampling: Sampling, limit: int) -> Body:
    """Ask for *limit* tokens, with every sampling parameter said, so that the server's own defaults do not count."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
    }


def chunk(call: Call, event: bytes, logprobs: int | None) -> Chunk:
    """Read one event of a stream. Raise the error that it carries, or `MalformedReply`."""
    try:
        reply = orjson.loads(event)
        if "error" in reply:
            raise failed_stream(call, reply)
        return _chunk(reply, logprobs)
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise call.error(MalformedReply, f"not a piece of a stream as vLLM sends it: {event[:200]!r}") from exc


def _chunk(reply: Reply, logprobs: int | None) -> Chunk:
    prompt, cached, _ = usage(reply)
    if not reply["choices"]:
        return Chunk(prompt=prompt, cached=cached)
    choice = reply["choices"][0]
    finish, reason = choice.get("finish_reason"), choice.get("stop_reason")
    matched = isinstance(reason, str)
    tokens = _tokens(choice, logprobs, matched=matched)
    ended = _ending(finish, reason) if finish else None
    place = choice.get("index", 0)
    if ended == "end" and not matched:  # The token that ended the turn is no part of the text, though vLLM spells it.
        return Chunk(tokens[:-1], len(tokens), ended, prompt, place=place)
    return Chunk(tokens, len(tokens), ended, prompt, place=place)


def _ending(finish: str, reason: str | int | None) -> Stop:
    if finish == "length":
        return "length"
    if finish != "stop":
        raise LookupError(finish)
    return "delimiter" if isinstance(reason, str) and reason != THINK_END else "end"


def _tokens(choice: Reply, logprobs: int | None, *, matched: bool) -> tuple[Token, ...]:
    ids, text = choice["token_ids"], choice["text"]
    known = choice.get("logprobs")
    if logprobs is None or not known:
        pieces = [text] if len(ids) == 1 and not matched else []
        return tuple([Token(part, id=number) for part, number in spell(text, ids, pieces, cut=matched)])
    values, tops = known["token_logprobs"], known["top_logprobs"]
    spelt = spell(text, ids, known["tokens"], cut=matched)
    return tuple(
        [
            Token(part, floored(value), _rank(value, top, logprobs), number, _top(top, logprobs))
            for (part, number), value, top in zip(spelt, values, tops, strict=True)
        ]
    )


def _rank(value: float | None, top: Mapping[str, float] | None, known: int) -> int:
    """Count up to the token among the *known* most probable ones; 0 if it comes after all of them."""
    if value is None or not top:
        return 0
    above = sum(other > value for other in top.values()) if known else 0
    return above + 1 if above < known else 0


def _top(top: Mapping[str, float] | None, known: int) -> tuple[Token, ...]:
    """Sort the *known* most probable ones; vLLM adds the token that was written if it is not among them."""
    if not top or not known:
        return ()
    best = sorted(top.items(), key=lambda item: item[1], reverse=True)[:known]
    return tuple([Token(text, floored(value), rank) for rank, (text, value) in enumerate(best, 1)])


def floored(logprob: float | None) -> float:
    """Replace what is no finite number, which a trace could not hold either; None is a token that vLLM lost."""
    return FLOOR if logprob is None else max(logprob, FLOOR)


def spell(text: str, ids: Sequence[int], pieces: Sequence[str], *, cut: bool = False) -> list[tuple[str, int]]:
    """
    Divide *text* among the tokens *ids*, of which *pieces* are the spellings, one by one.

    The parts join to *text*. Where the spellings do not, as where tokens share a character, whole tokens are matched
    from both ends, and the text between stands on the last token there. If the text was *cut* inside the last token,
    all that is left stands on that one, whose id becomes -1.
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
    shared = [*[("", number) for number in ids[first:last]], (text[at:end], -1 if cut else ids[last])]
    return [
        *zip(pieces[:first], ids[:first], strict=True),
        *shared,
        *zip(pieces[last + 1 :], ids[last + 1 :], strict=False),
    ]


def _last_shared(text: str, pieces: Sequence[str], first: int) -> int:
    """
    Find the last token, from number *first* on, whose spelling *text* does not show: all behind it are in its end.

    A spelling of "" is half a character. The next token that has one may show what came of it, besides its own.
    """
    last = len(pieces) - 1
    while last > first and not pieces[last]:
        last -= 1
    end = len(text)
    while last > first and pieces[last - 1] and text.endswith(pieces[last], 0, end):
        end -= len(pieces[last])
        last -= 1
    return last


def chances(call: Call, reply: Reply, choices: Mapping[str, int], place: int = 0) -> dict[str, float]:
    """Read the probability of every one of the *choices* that the server names, given the prompt at *place*."""
    try:
        top = reply["choices"][place]["logprobs"]["top_logprobs"][0]
        keys = {choice: f"token_id:{number}" for choice, number in choices.items()}
        return {choice: exp(top[key]) for choice, key in keys.items() if key in top}
    except (LookupError, TypeError) as exc:
        raise call.error(MalformedReply, "the answer's log-probabilities are missing or are not vLLM's") from exc


def usage(reply: Reply) -> tuple[int, int, int]:
    """Read the numbers of prompt, cached and written tokens; 0 where the server does not say."""
    counts: Reply = reply.get("usage") or {}
    details: Reply = counts.get("prompt_tokens_details") or {}
    return counts.get("prompt_tokens") or 0, details.get("cached_tokens") or 0, counts.get("completion_tokens") or 0


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
                        Token(part, floored(known["logprob"]), known["rank"], number, _likeliest(row, top))
                        for (part, number), known, row in zip(spelt, own, found, strict=True)
                    ]
                )
            )
            start += len(ids)
        return read
    except (LookupError, TypeError, ValueError) as exc:
        raise _malformed(call) from exc


def _likeliest(row: Row, top: int) -> tuple[Token, ...]:
    best = sorted((known["rank"], int(key), known) for key, known in row.items() if known["rank"] <= top)
    return tuple(
        [Token(known.get("decoded_token") or "", floored(known["logprob"]), rank, id) for rank, id, known in best]
    )


def _malformed(call: Call) -> MalformedReply:
    return call.error(MalformedReply, "the prompt's log-probabilities are missing or are not vLLM's")
