"""What a server can do, found out by trying one capability after the other."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from random import choices
from typing import TypeVar

from ...endpoints.capabilities import LONG_PROMPT_TOKENS, Capabilities
from ...endpoints.metrics import CacheConfig, read_cache_config
from ...endpoints.settings import GREEDY
from ...errors import EndpointError, EndpointUnavailable, EndpointUnreachable, MalformedReply
from ...http.http_errors import Reply
from ...http.paths import COMPLETIONS, GENERATE, METRICS, VERSION, Body
from . import bodies, replies
from .server import VllmServer
from .tokenizer import VOCABULARY_PROBE

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

ROOM_TOKENS = 8
"""Tokens of the context that no prompt takes."""

HITS = re.compile(rb"^vllm:prefix_cache_hits.* (\S+)$", re.MULTILINE)
SPECULATION = b"vllm:spec_decode_num_drafts"


async def probe(server: VllmServer) -> Capabilities:
    """
    Try one capability after the other: about 10 short requests, and up to 14 with 400 to 4000
    tokens.

    A rejected request means that the capability is missing. A request that fails for another
    reason, or shows neither, means that it is unknown. Raise `EndpointUnreachable` if the server is
    gone. *suffix_scoring* is tried only if the settings allow it: a server without the right flags
    may crash.
    """
    encode = server.tokenizer.encode_special
    probing = _Probe(server, await encode(VOCABULARY_PROBE), await encode(DIGITS))
    capabilities = await probing.run()
    if server.settings.suffix_scoring:
        return replace(capabilities, suffix_scoring=await probing.suffix_scoring())
    return capabilities


class _Probe:
    """The requests of one probe, with a *prompt* and with *digits* to choose from."""

    def __init__(
        self,
        server: VllmServer,
        prompt: Sequence[int],
        digits: Sequence[int],
    ) -> None:
        self._connection = server.connection
        self._model = server.name
        self._room = server.tokenizer.context_length - ROOM_TOKENS  # the longest prompt, in tokens
        self._prompt = prompt[: self._room]
        self._digits = {str(number): number for number in digits}
        self._long: Sequence[int] = ()  # the prompt that was repeated last
        self._counts: bool | None = None  # whether the usage counts cached tokens
        self._call = self._connection.call("probe")

    async def run(self) -> Capabilities:
        token_ids = await self._returns("token_ids", 4, return_token_ids=True)
        metrics = await self._metrics()
        cache = read_cache_config(metrics or b"")
        prefix_cache, cached_tokens = await self._cache(cache)
        speculation = SPECULATION in metrics if metrics else None
        scores = await self._returns("prompt_logprobs", 1, prompt_logprobs=0)
        return Capabilities(
            version=await self._version(),
            token_ids=token_ids,
            chosen_logprobs=False if speculation else await self._chosen_logprobs(),
            prompt_logprobs=scores,
            prefix_cache=prefix_cache,
            cached_tokens=cached_tokens,
            metrics=None if metrics is None else bool(metrics),
            speculation=speculation,
            cache=cache,
            tried=len(self._long),
            cached_counts=self._counts,
        )

    async def _chosen_logprobs(self) -> bool | None:
        ids = [*self._digits.values()]
        body = bodies.choice_body(self._model, self._prompt, ids, by_id=True)
        reply = await self._post(body)
        if reply is None:
            return None
        try:
            found = replies.choice_probabilities(self._call, reply, self._digits)
        except MalformedReply:
            return False
        return len(found) == len(ids)

    async def _cache(self, cache: CacheConfig | None) -> tuple[bool | None, bool | None]:
        """
        Repeat ever longer prompts until one is read from the cache.

        Return whether one was, and whether the usage reports that.
        """
        hit: bool | None = None
        reported: bool | None = None
        for length in self._lengths(cache):
            self._long = choices(self._prompt, k=length)  # A random text is in no cache.
            hit, reported = await self._repeated(self._long)
            if hit or hit is None:
                break
        return hit, reported

    def _lengths(self, cache: CacheConfig | None) -> list[int]:
        """Return the lengths of the prompts to repeat, in tokens, within the model's context."""
        longer: Sequence[int] = BLOCK_PROMPT_TOKENS
        if cache and cache.enabled is False:
            longer = ()
        elif cache and cache.block is not None:
            longer = (2 * cache.block,)
        return sorted(
            {
                min(max(length, LONG_PROMPT_TOKENS), self._room)
                for length in (LONG_PROMPT_TOKENS, *longer)
            }
        )

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
        reported = bool(replies.prompt_details(reply))
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
        prompt = self._long[: len(self._long) // 2 * 2]
        start = len(prompt) - 1
        for _ in range(MAX_SCORINGS):
            reply = await self._post(
                bodies.suffix_scoring_body(self._model, prompt, 0),
                GENERATE,
            )
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
        counts = HITS.findall(await self._metrics() or b"")
        return sum(map(float, counts)) if counts else None

    async def _metrics(self) -> bytes | None:
        """Return the metrics. b"": they are not vLLM's. None: the request failed."""
        metrics = await self._get(METRICS)
        return b"" if metrics and b"vllm:" not in metrics else metrics

    async def _version(self) -> str | None:
        return replies.version(await self._get(VERSION) or b"")

    async def _returns(self, field: str, limit: int, **fields: object) -> bool | None:
        """Return whether a completion with *fields* has a value in *field*. None: it failed."""
        body = bodies.completion_body(self._model, self._prompt, GREEDY, limit) | fields
        reply = await self._post(body)
        if reply is None:
            return None
        completions: Sequence[Reply] = reply.get("choices") or ({},)
        return bool(completions[0].get(field))

    async def _post(self, body: Body, path: str = COMPLETIONS) -> Reply | None:
        return await _tried(
            self._connection.post(
                self._call,
                path,
                body,
                retries=RETRIES,
            ),
            {},
        )

    async def _get(self, path: str) -> bytes | None:
        return await _tried(
            self._connection.fetch(self._call, path, retries=RETRIES),
            b"",
        )


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
