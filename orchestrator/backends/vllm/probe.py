"""What a server can do, found out by trying one capability after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from random import shuffle
from typing import Any, TypeVar

from ...concurrency import at_once
from ...endpoints.capabilities import LONG, Capabilities
from ...endpoints.metrics import CacheConfig, read_cache_config
from ...endpoints.settings import GREEDY
from ...errors import EndpointError, EndpointUnavailable, EndpointUnreachable, MalformedReply
from . import bodies, replies
from .bodies import COMPLETIONS, GENERATE, METRICS, VERSION, Body
from .client import Connection
from .http_errors import Reply
from .tokenizer import VOCABULARY_PROBE, ModelTokenizer

T = TypeVar("T")


DIGITS = "0123456789"

BLOCK_PROMPT_TOKENS = (1000, 2000, 4000)
"""Lengths of prompts if the server does not show its block size: a hybrid's is 528 to 1600."""

REPEATS = 3
"""Requests with one prompt: vLLM keeps some recurrent states only at the second request."""

RETRIES = 1
"""After a request that breaks it, vLLM may reset the connection that the next one is sent on."""

MAX_SCORINGS = 8
"""Uninitialised memory may hold a number that JSON cannot express: see `NOT_JSON_COMPLIANT`."""

MAX_DIFFERENCE = 0.1
"""Nats by which the order of additions may change a score in half precision."""

SHARED_TOKENS = 24
"""Tokens that are written while questions share the batch."""
SHARED_QUESTIONS = 4
RIVALS = 5
"""The likeliest tokens that are requested of each of these positions."""

HITS = "vllm:prefix_cache_hits"
SPECULATION = "vllm:spec_decode_num_drafts"


async def probe(
    connection: Connection, model: str, encoder: ModelTokenizer, *, suffix_scoring: bool = False
) -> Capabilities:
    """
    Try one capability after the other: about 15 short requests, and up to 14 with 400 to 4000
    tokens.

    A rejected request means that the capability is missing. A request that fails for another
    reason, or shows neither, means that it is unknown. Raise `EndpointUnreachable` if the server is
    gone. *suffix_scoring* is tried only if the settings allow it: a server without the right flags
    may crash.
    """
    room = encoder.room - 8
    prompt = await encoder.literally(VOCABULARY_PROBE)
    digits = await encoder.literally(DIGITS)
    probing = _Probe(connection, model, prompt[:room], digits, room)
    capabilities = await probing.run()
    if suffix_scoring:
        return replace(capabilities, suffix_scoring=await probing.suffix_scoring())
    return capabilities


class _Probe:
    """The requests of one probe of *model*, with a *prompt* and with *digits* to choose from."""

    def __init__(
        self,
        connection: Connection,
        model: str,
        prompt: tuple[int, ...],
        digits: tuple[int, ...],
        room: int,
    ) -> None:
        self._connection = connection
        self._model = model
        self._prompt = prompt
        self._digits = list(dict.fromkeys(digits))
        self._room = room  # the longest prompt, in tokens
        self._long: Sequence[int] = ()  # the prompt that was repeated last
        self._counts: bool | None = None  # whether the usage counts cached tokens
        self._call = connection.call("probe")

    async def run(self) -> Capabilities:
        written = await self._choice(4, return_token_ids=True)
        metrics = await self._metrics()
        cache = read_cache_config((metrics or "").encode())
        prefix_cache, cached_tokens = await self._cache(cache)
        speculation = SPECULATION in metrics if metrics else None
        scored = await self._choice(1, prompt_logprobs=0)
        return Capabilities(
            version=await self._version(),
            token_ids=_has(written, "token_ids"),
            chosen_logprobs=False if speculation else await self._chosen_logprobs(),
            prompt_logprobs=_has(scored, "prompt_logprobs"),
            prefix_cache=prefix_cache,
            cached_tokens=cached_tokens,
            metrics=None if metrics is None else bool(metrics),
            speculation=speculation,
            cache=cache,
            tried=len(self._long),
            shared_batch=None if speculation else await self._shared_batch(),
            cached_counts=self._counts,
        )

    async def _chosen_logprobs(self) -> bool | None:
        body = bodies.choice_body(self._model, self._prompt, self._digits, by_id=True)
        reply = await self._post(body)
        if reply is None:
            return None
        digits = {str(number): number for number in self._digits}
        try:
            found = replies.choice_probabilities(self._call, reply, digits)
        except MalformedReply:
            return False
        return len(found) == len(digits)

    async def _shared_batch(self) -> bool | None:
        """
        Write tokens with their likeliest rivals while questions by token ids share the batch.

        vLLM's V1 runner then leaves the rivals out of every other row. Its V2 runner with
        speculation leaves out the asked ids. Neither shows on an idle server.
        """
        body = bodies.completion_body(self._model, self._prompt, GREEDY, SHARED_TOKENS)
        writing = self._post(body | {"logprobs": RIVALS, "min_tokens": SHARED_TOKENS})
        asking = [self._chosen_logprobs() for _ in range(SHARED_QUESTIONS)]
        written, *answers = await at_once([writing, *asking])
        if not isinstance(written, Mapping) or None in answers:
            return None
        try:
            rows: Any = written["choices"][0]["logprobs"]["top_logprobs"]
            rivals = [sum(value > replies.FLOOR for value in row.values()) for row in rows]
        except (LookupError, TypeError, AttributeError):
            return None
        return min(rivals, default=RIVALS) >= RIVALS and all(answers)

    async def _cache(self, cache: CacheConfig | None) -> tuple[bool | None, bool | None]:
        """
        Repeat ever longer prompts until one is read from the cache.

        Return whether one was, and whether the usage reports that.
        """
        hit: bool | None = None
        reported: bool | None = None
        for length in self._lengths(cache):
            self._long = self._fresh(length)
            hit, reported = await self._repeated(self._long)
            if hit or hit is None:
                break
        return hit, reported

    def _lengths(self, cache: CacheConfig | None) -> list[int]:
        """Return the lengths of the prompts to repeat, in tokens, within the model's context."""
        wanted = [LONG]
        if cache is None or cache.block is None:
            wanted += BLOCK_PROMPT_TOKENS
        else:
            wanted.append(max(2 * cache.block, LONG))
        if cache is not None and cache.enabled is False:
            wanted = [LONG]
        return list(dict.fromkeys(min(length, self._room) for length in wanted))

    def _fresh(self, length: int) -> list[int]:
        """Return a prompt in random order, which is in no cache."""
        repeated = self._prompt * (length // len(self._prompt) + 1)
        prompt = list(repeated[:length])
        shuffle(prompt)
        return prompt

    async def _repeated(self, prompt: Sequence[int]) -> tuple[bool | None, bool | None]:
        """
        Send *prompt* several times, and look for cache hits in the usage, or else in the metrics.

        Return whether there was one, and whether the usage reports cached tokens.
        """
        body = bodies.completion_body(self._model, prompt, GREEDY, 1)
        reply = await self._post(body)
        before = await self._hits()
        for _ in range(REPEATS - 1):
            reply = await self._post(body)
            if reply and replies.usage(reply).cached:
                self._counts = True
                return True, True
        if reply is None:
            return None, None
        after = await self._hits()
        usage: dict[str, Any] = reply.get("usage") or {}
        reported = bool(usage.get("prompt_tokens_details"))
        if before is None or after is None:
            return (False if reported else None), reported
        hit = after > before
        self._counts = False if reported and hit else None
        return hit, reported

    async def suffix_scoring(self) -> bool:
        """
        Return whether the last token of the cached long prompt, scored alone, has the score that it
        has within the whole prompt.
        """
        # No whole number of blocks ends before the last token of an even length.
        even = len(self._long) // 2 * 2
        prompt = self._long[:even]
        start = len(prompt) - 1
        for _ in range(MAX_SCORINGS):
            reply = await self._post(bodies.suffix_scoring_body(self._model, prompt, 0), GENERATE)
            rows = replies.computed_rows(reply or {}, prompt[start:], start)
            if rows is not None:
                break
        else:
            return False
        whole = await self._post(bodies.scoring_body(self._model, prompt, 0))
        if not whole:
            return False
        last = str(prompt[-1])
        expected = replies.prompt_rows(self._call, whole, 1)[0][last]["logprob"]
        return bool(abs(expected - rows[0][last]["logprob"]) < MAX_DIFFERENCE)

    async def _hits(self) -> float | None:
        """Return the number of cached tokens that the metrics count. None: they count none."""
        metrics = await self._metrics() or ""
        lines = [line for line in metrics.splitlines() if line.startswith(HITS)]
        if not lines:
            return None
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def _metrics(self) -> str | None:
        """Return the metrics. "": they are not vLLM's. None: the request failed."""
        text = await self._get(METRICS)
        if text is None:
            return None
        return text.decode(errors="replace") if b"vllm:" in text else ""

    async def _version(self) -> str | None:
        return replies.version(await self._get(VERSION) or b"")

    async def _choice(self, limit: int, **fields: Any) -> Mapping[str, Any] | None:
        """Complete the prompt. {}: the server rejects that. None: the request failed."""
        body = bodies.completion_body(self._model, self._prompt, GREEDY, limit) | fields
        reply = await self._post(body)
        if reply is None:
            return None
        choices: Sequence[Mapping[str, Any]] = reply.get("choices") or ({},)
        return choices[0]

    async def _post(self, body: Body, path: str = COMPLETIONS) -> Reply | None:
        return await _tried(self._connection.post(self._call, path, body, retries=RETRIES), {})

    async def _get(self, path: str) -> bytes | None:
        return await _tried(self._connection.fetch(self._call, path, retries=RETRIES), b"")


def _has(choice: Mapping[str, Any] | None, field: str) -> bool | None:
    """Return whether *choice* has a value in *field*. None: there is no choice."""
    return None if choice is None else bool(choice.get(field))


async def _tried(request: Awaitable[T], rejected: T) -> T | None:
    """Return the reply to *request*, or *rejected*. None: it failed for another reason."""
    try:
        return await request
    except EndpointUnreachable:
        raise
    except EndpointUnavailable:
        return None
    except EndpointError:
        return rejected
