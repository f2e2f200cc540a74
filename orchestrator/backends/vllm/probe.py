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

FEW_TOKENS = 4
"""Tokens that a completion writes in which a field is looked for."""

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
    room = server.tokenizer.context_length - ROOM_TOKENS  # the longest prompt, in tokens
    prompt = (await server.tokenizer.encode_special(VOCABULARY_PROBE))[:room]
    digits = await server.tokenizer.encode_special(DIGITS)
    probing = _Probe(server, prompt)
    metrics = await probing.metrics()
    cache = read_cache_config(metrics or b"")
    speculation = SPECULATION in metrics if metrics else None
    can = Capabilities(
        version=replies.version(await probing.get(VERSION) or b""),
        token_ids=await probing.returns("token_ids", return_token_ids=True),
        chosen_logprobs=False if speculation else await probing.chosen_logprobs(digits),
        prompt_logprobs=await probing.returns("prompt_logprobs", prompt_logprobs=0),
        prefix_cache=None,
        cached_tokens=None,
        metrics=None if metrics is None else bool(metrics),
        speculation=speculation,
        cache=cache,
    )
    long_prompt: Sequence[int] = ()
    for length in _lengths(cache, room):
        long_prompt = choices(prompt, k=length)  # A random text is in no cache.
        can = await probing.repeat(can, long_prompt)
        if can.prefix_cache is not False:
            break
    if not server.settings.suffix_scoring:
        return can
    return replace(can, suffix_scoring=await probing.suffix_scoring(long_prompt))


def _lengths(cache: CacheConfig | None, room: int) -> list[int]:
    """Return the lengths of the prompts to repeat, in tokens. At most *room* fit."""
    lengths = {LONG_PROMPT_TOKENS, *BLOCK_PROMPT_TOKENS}
    if cache and cache.enabled is False:
        lengths = {LONG_PROMPT_TOKENS}
    elif cache and cache.block is not None:
        lengths = {LONG_PROMPT_TOKENS, max(2 * cache.block, LONG_PROMPT_TOKENS)}
    return sorted({min(length, room) for length in lengths})


class _Probe:
    """The requests of one probe, most of them with a *prompt*."""

    def __init__(self, server: VllmServer, prompt: Sequence[int]) -> None:
        self._connection = server.connection
        self._call = server.connection.call("probe")
        self._model = server.name
        self._prompt = prompt

    async def chosen_logprobs(self, digits: Sequence[int]) -> bool | None:
        body = bodies.choice_body(self._model, self._prompt, digits, by_id=True)
        reply = await self._post(body)
        if reply is None:
            return None
        try:
            choices = {str(number): number for number in digits}
            found = replies.choice_probabilities(self._call, reply, choices)
        except MalformedReply:
            return False
        return len(found) == len(choices)

    async def repeat(self, can: Capabilities, prompt: Sequence[int]) -> Capabilities:
        """
        Send *prompt* several times. Look for hits in the usage, or else in the metrics.

        Return *can* with what was found out about the cache.
        """
        body = bodies.completion_body(self._model, prompt, GREEDY, 1)
        reply = await self._post(body)
        before = await self._hits()
        can = replace(can, prefix_cache=None, cached_tokens=None, tried=len(prompt))
        for _ in range(REPEATS - 1):
            reply = await self._post(body)
            if reply and replies.usage(reply).cached:
                return replace(can, prefix_cache=True, cached_tokens=True, cached_counts=True)
        if reply is None:
            return can
        reported = bool(replies.prompt_details(reply))
        can = replace(can, cached_tokens=reported)
        after = await self._hits()
        if not before or not after:
            return replace(can, prefix_cache=False if reported else None)
        hit = sum(after) > sum(before)
        return replace(can, prefix_cache=hit, cached_counts=False if reported and hit else None)

    async def suffix_scoring(self, cached: Sequence[int]) -> bool:
        """
        Return whether the last token of the *cached* prompt, scored alone, has the score that it
        has within the whole prompt.
        """
        # No whole number of blocks ends before the last token of an even length.
        prompt = cached[: len(cached) // 2 * 2]
        start = len(prompt) - 1
        body = bodies.suffix_scoring_body(self._model, prompt, 0)
        rows: Sequence[replies.Row] | None = None
        for _ in range(MAX_SCORINGS):
            if rows is None:
                reply = await self._post(body, GENERATE)
                rows = replies.computed_rows(reply or {}, prompt[start:], start)
        whole = await self._post(bodies.scoring_body(self._model, prompt, 0))
        if rows is None or not whole:
            return False
        last = str(prompt[-1])
        expected = replies.prompt_rows(self._call, whole, 1)[0][last]["logprob"]
        return bool(abs(expected - rows[0][last]["logprob"]) < MAX_DIFFERENCE)

    async def _hits(self) -> list[float]:
        """Return the numbers of cached tokens that the metrics count."""
        return [float(count) for count in HITS.findall(await self.metrics() or b"")]

    async def metrics(self) -> bytes | None:
        """Return the metrics. b"": they are not vLLM's. None: the request failed."""
        metrics = await self.get(METRICS)
        return b"" if metrics and b"vllm:" not in metrics else metrics

    async def returns(self, field: str, **fields: object) -> bool | None:
        """Return whether a completion with *fields* has a value in *field*. None: it failed."""
        body = bodies.completion_body(self._model, self._prompt, GREEDY, FEW_TOKENS) | fields
        reply = await self._post(body)
        if reply is None:
            return None
        completions: Sequence[Reply] = reply.get("choices") or ({},)
        return bool(completions[0].get(field))

    async def _post(self, body: Body, path: str = COMPLETIONS) -> Reply | None:
        post = self._connection.post(self._call, path, body, retries=RETRIES)
        return await _tried(post, {})

    async def get(self, path: str) -> bytes | None:
        return await _tried(self._connection.fetch(self._call, path, retries=RETRIES), b"")


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
