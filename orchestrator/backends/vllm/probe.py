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
from .tokenizer import PROBE, ModelTokenizer

T = TypeVar("T")


DIGITS = "0123456789"


# tokens, if the server does not show its block size: a hybrid's is 528 to 1600
LONGER = (1000, 2000, 4000)


# of one prompt: vLLM keeps some recurrent states only when the same beginning comes again
REPEATS = 3


# After a request that breaks it, vLLM may reset the connection that the next one is sent on.
RETRIES = 1


# Uninitialised memory may hold a number that JSON cannot express; see `NOT_JSON_COMPLIANT`.
TRIES = 8


NEAR = 0.1  # nats; the order of additions may change this much in half precision


# a request of some length, and questions beside it
SHARED_TOKENS = 24
SHARED_QUESTIONS = 4
RIVALS = 5


HITS = "vllm:prefix_cache_hits"


SPECULATION = "vllm:spec_decode_num_drafts"


async def probe(
    connection: Connection, model: str, encoder: ModelTokenizer, *, suffix_scoring: bool = False
) -> Capabilities:
    """
    Try one capability after the other: about 15 short requests, and up to 14 with 400 to 4000
    tokens.

    A rejected request means that the capability is missing, one that fails for another reason, or
    shows neither, that it is unknown. Raise `EndpointUnreachable` if the server is gone.

    *suffix_scoring* is tried only if the settings allow it: a server without the right flags may
    crash.
    """
    prompt = (await encoder.literally(PROBE))[: encoder.room - 8]
    probing = _Probe(connection, model, prompt, await encoder.literally(DIGITS), encoder.room - 8)
    capabilities = await probing.run()
    return (
        replace(capabilities, suffix_scoring=await probing.suffix_scoring())
        if suffix_scoring
        else capabilities
    )


class _Probe:
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
        self._room = room
        self._long: Sequence[int] = ()
        self._counts: bool | None = None
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
            token_ids=None if written is None else bool(written.get("token_ids")),
            chosen_logprobs=False if speculation else await self._chosen_logprobs(),
            prompt_logprobs=None if scored is None else bool(scored.get("prompt_logprobs")),
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
        reply = await self._post(
            bodies.choice_body(self._model, self._prompt, self._digits, by_id=True)
        )
        if reply is None:
            return None
        digits = {str(number): number for number in self._digits}
        try:
            return len(replies.choice_probabilities(self._call, reply, digits)) == len(digits)
        except MalformedReply:
            return False

    async def _shared_batch(self) -> bool | None:
        """
        Write tokens with their likeliest rivals while questions by token ids share the batch.

        vLLM's V1 runner leaves the rivals out of every other row then, and its V2 runner with
        speculation the asked ids. Neither shows on an idle server.
        """
        body = bodies.completion_body(self._model, self._prompt, GREEDY, SHARED_TOKENS)
        writing = self._post(body | {"logprobs": RIVALS, "min_tokens": SHARED_TOKENS})
        asking = [self._chosen_logprobs() for _ in range(SHARED_QUESTIONS)]
        written, *answers = await at_once([writing, *asking])
        if not isinstance(written, Mapping) or None in answers:
            return None
        try:
            rows: Any = written["choices"][0]["logprobs"]["top_logprobs"]
            whole = all(
                sum(value > replies.FLOOR for value in row.values()) >= RIVALS for row in rows
            )
        except (LookupError, TypeError, AttributeError):
            return None
        return whole and all(answers)

    async def _cache(self, cache: CacheConfig | None) -> tuple[bool | None, bool | None]:
        """
        Repeat ever longer prompts; return whether one was read from the cache, and whether the
        usage reports it.
        """
        hit = reported = None
        for length in self._lengths(cache):
            self._long = self._fresh(length)
            hit, reported = await self._repeated(self._long)
            if hit or hit is None:
                break
        return hit, reported

    def _lengths(self, cache: CacheConfig | None) -> list[int]:
        """
        Return the lengths of the prompts to repeat, in tokens, within the context of the model.
        """
        longer = LONGER if cache is None or cache.block is None else (2 * cache.block,)
        wanted = [LONG, *longer] if cache is None or cache.enabled is not False else [LONG]
        return list(dict.fromkeys(min(max(length, LONG), self._room) for length in wanted))

    def _fresh(self, length: int) -> list[int]:
        """Return a prompt in random order, which is in no cache."""
        prompt = [*(self._prompt * (length // len(self._prompt) + 1))[:length]]
        shuffle(prompt)
        return prompt

    async def _repeated(self, prompt: Sequence[int]) -> tuple[bool | None, bool | None]:
        """Send *prompt* several times; look for cache hits in the usage, or else in the metrics."""
        body = bodies.completion_body(self._model, prompt, GREEDY, 1)
        reply = await self._post(body)
        before = await self._hits()
        for _ in range(REPEATS - 1):
            reply = await self._post(body)
            if reply and replies.usage(reply)[1]:
                self._counts = True
                return True, True
        if reply is None:
            return None, None
        after = await self._hits()
        usage: dict[str, Any] = reply.get("usage") or {}
        reported = bool(usage.get("prompt_tokens_details"))
        if before is None or after is None:
            return (False if reported else None), reported
        self._counts = False if reported and after > before else None
        return after > before, reported

    async def suffix_scoring(self) -> bool:
        """
        Compare the scores of the last token of the cached long prompt, scored alone and within the
        whole prompt.
        """
        # No whole number of blocks ends before the last token of an even length.
        even = len(self._long) // 2 * 2
        prompt = self._long[:even]
        start = len(prompt) - 1
        last = str(prompt[-1])
        for _ in range(TRIES):
            reply = await self._post(bodies.suffix_scoring_body(self._model, prompt, 0), GENERATE)
            rows = replies.computed_rows(reply or {}, prompt[start:], start)
            if rows is not None:
                whole = await self._post(bodies.scoring_body(self._model, prompt, 0))
                if not whole:
                    return False
                expected = replies.prompt_rows(self._call, whole, 1)
                return bool(abs(expected[0][last]["logprob"] - rows[0][last]["logprob"]) < NEAR)
        return False

    async def _hits(self) -> float | None:
        lines = [
            line for line in (await self._metrics() or "").splitlines() if line.startswith(HITS)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    async def _metrics(self) -> str | None:
        text = await self._get(METRICS)
        return None if text is None else text.decode(errors="replace") if b"vllm:" in text else ""

    async def _version(self) -> str | None:
        return replies.version(await self._get(VERSION) or b"")

    async def _choice(self, limit: int, **fields: Any) -> dict[str, Any] | None:
        """
        Complete the prompt; {} if the server rejects that, None if the request fails for another
        reason.
        """
        body = bodies.completion_body(self._model, self._prompt, GREEDY, limit) | fields
        reply = await self._post(body)
        choices: list[dict[str, Any]] = (reply or {}).get("choices") or [{}]
        return None if reply is None else choices[0]

    async def _post(self, body: Body, path: str = COMPLETIONS) -> Reply | None:
        return await _tried(self._connection.post(self._call, path, body, retries=RETRIES), {})

    async def _get(self, path: str) -> bytes | None:
        return await _tried(self._connection.get(self._call, path, retries=RETRIES), b"")


async def _tried(request: Awaitable[T], rejected: T) -> T | None:
    """
    Return the reply to *request*, *rejected* if the server rejects it, and None if it fails for
    another reason.
    """
    try:
        return await request
    except EndpointUnreachable:
        raise
    except EndpointUnavailable:
        return None
    except EndpointError:
        return rejected
