"""
What a server can do, found out by trying: `probe` tries each capability, `ordering` whether it orders by ``priority``.

vLLM accepts a priority in any case, so `ordering` observes the effect. A crowd of prompts, in one request, fills the
queue; then follow a request of the lowest priority and one of the highest. If only the latter overtakes the crowd, the
server orders requests by priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import choices, shuffle
from typing import Any, Literal, TypeAlias

from ..concurrency import at_once, background
from ..errors import EndpointError, EndpointRejected, EndpointUnavailable, EndpointUnreachable, MalformedReply
from . import vllm_protocol
from .client import Connection
from .metrics import CacheConfig, read_cache_config
from .tokenizer import PROBE, ModelTokenizer
from .vllm_protocol import COMPLETIONS, GENERATE, METRICS, VERSION, Body, Reply

Ordering: TypeAlias = Literal["kept", "not seen", "refused"]

CROWDS = (8, 32, 128, 512, 128)  # prompts; a crowd has to keep the server busy for longer than a request takes
PATIENCE = 15.0  # seconds; no race is begun that is expected to end later
LENGTH = 400  # tokens of each prompt, at random, so that no prompt is in the prefix cache
WRITTEN = 8  # tokens after each prompt: with fewer, a very small model finishes a prompt before the next is accepted
AHEAD = 8  # prompts, and a quarter of the crowd: less may be chance
FIRST, CROWD, LAST = 1, 2, 3


async def ordering(connection: Connection, model: str, tokens: Sequence[int], room: int) -> Ordering | None:
    """
    Send crowds of prompts made of *tokens*, for `PATIENCE` seconds at most, and compare the order of the answers.

    *room* is the context length in tokens. "kept": the server orders requests by priority. "not seen": it serves them
    in the order of arrival, or is too fast for a queue to form. "refused": it rejects a priority. None: a request
    failed for another reason. Raise `EndpointUnreachable` if the server is gone.

    One race that shows no order proves nothing: a busy machine may delay the two requests until the crowd is over.
    """
    loop = asyncio.get_running_loop()
    started, pace = loop.time(), 0.0
    length = min(LENGTH, room - WRITTEN)
    try:
        for crowd in CROWDS:
            began = loop.time()
            if began - started + crowd * pace > PATIENCE:
                break
            if await _Race(connection, model, tokens, length).overtakes(crowd):
                return "kept"
            pace = (loop.time() - began) / crowd
    except EndpointRejected as exc:
        return "refused" if "priority" in exc.cause.lower() else None
    except EndpointUnreachable:
        raise
    except EndpointError:
        return None
    return "not seen"


class _Race:
    def __init__(self, connection: Connection, model: str, tokens: Sequence[int], length: int) -> None:
        self._connection, self._call = connection, connection.call("probe")
        self._model, self._tokens, self._length = model, tokens, length
        self._arrived, self._begun = 0, asyncio.Event()

    async def overtakes(self, crowd: int) -> bool:
        """
        Return whether the request of the highest priority overtook much more of the crowd than that of the lowest.

        Without an order by priority both are answered one right after the other. With it, the last of the crowd and the
        request of the lowest priority may be in the same batch, so that either may be answered first.
        """
        async with background(self._crowd(crowd), self._begun.wait()) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            last, first = await at_once([self._single(LAST), self._single(FIRST)])
            await tasks[0]
        return last - first >= max(crowd // 4, AHEAD)

    async def _crowd(self, crowd: int) -> None:
        prompts = [self._prompt() for _ in range(crowd)]
        async with self._connection.stream(self._call, self._body(prompts, WRITTEN, CROWD)) as events:
            while (event := await events.next()) is not None:
                chunk = vllm_protocol.parse_chunk(self._call, event, vllm_protocol.GREEDY.logprobs)
                self._arrived += chunk.ended is not None
                self._begun.set()

    async def _single(self, priority: int) -> int:
        """Return how many of the crowd's answers had arrived when this request was over."""
        async with self._connection.stream(self._call, self._body(self._prompt()[:8], 2, priority)) as events:
            while await events.next() is not None:
                pass
            return self._arrived

    def _prompt(self) -> list[int]:
        return choices(self._tokens, k=self._length)

    def _body(self, prompt: Sequence[int] | Sequence[Sequence[int]], limit: int, priority: int) -> Body:
        body = vllm_protocol.stream_body(self._model, prompt, vllm_protocol.GREEDY, seed=0, limit=limit, stop=())
        return body | {"priority": priority, "min_tokens": limit}


LONG = 400  # tokens; longer than any block (128 at most, on CPUs) of a model that is no hybrid
LONGER = (1000, 2000, 4000)  # tokens, if the server does not show its block size: a hybrid's is 528 to 1600
REPEATS = 3  # of one prompt: vLLM keeps some recurrent states only when the same beginning comes again
RETRIES = 1  # After a request that breaks it, vLLM may reset the connection that the next one is sent on.
TRIES = 8  # Uninitialised memory may hold a number that JSON cannot express; see `NOT_JSON_COMPLIANT`.
NEAR = 0.1  # nats; the order of additions may change this much in half precision
HITS = "vllm:prefix_cache_hits"
SPECULATION = "vllm:spec_decode_num_drafts"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    What one endpoint can do; None where that is unknown.

    *token_ids*: returns the ids that it writes. *stop_included*: leaves the stop string in the text. *forced*: obeys
    ``allowed_token_ids``. *chosen_logprobs*: returns the log-probabilities of requested tokens; not tried on a server
    that speculates, because in a batch with drafted tokens such a request ends vLLM's V1 engine. *prompt_logprobs*:
    scores the tokens of a prompt. *prefix_cache*: reads a repeated prompt from its cache. *cached_tokens*: reports how
    many tokens it read there. *metrics*: shows ``/metrics``. *speculation*: uses speculative decoding.
    *suffix_scoring*: scores the end of a cached text as it does within the whole text; None if the settings forbid it.
    *cache* is the prefix cache as the server describes it. *tried* is the length, in tokens, of the longest repeated
    prompt: the one that was read from the cache, if any was.
    """

    version: str | None
    token_ids: bool | None
    stop_included: bool | None
    forced: bool | None
    chosen_logprobs: bool | None
    prompt_logprobs: bool | None
    prefix_cache: bool | None
    cached_tokens: bool | None
    metrics: bool | None
    speculation: bool | None
    suffix_scoring: bool | None = None
    cache: CacheConfig | None = None
    tried: int = LONG


async def probe(
    connection: Connection, model: str, encoder: ModelTokenizer, *, suffix_scoring: bool = False
) -> Capabilities:
    """
    Try one capability after the other. A rejected request means that it is missing, one that fails for another reason
    that it is unknown. Raise `EndpointUnreachable` if the server is gone.

    *suffix_scoring* is tried only if the settings allow it: a server without the right flags may crash.
    """
    prompt = (await encoder.literally(PROBE))[: encoder.room - 8]
    digits = await encoder.literally("0123456789")
    probing = _Probe(connection, model, prompt, digits, encoder.room - 8)
    capabilities = await probing.run()
    return replace(capabilities, suffix_scoring=await probing.suffix_scoring()) if suffix_scoring else capabilities


class _Probe:
    def __init__(
        self, connection: Connection, model: str, prompt: tuple[int, ...], digits: tuple[int, ...], room: int
    ) -> None:
        self._connection, self._model = connection, model
        self._prompt, self._digits = prompt, list(dict.fromkeys(digits))
        self._room = room
        self._long: Sequence[int] = ()
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
            stop_included=await self._stop_included((written or {}).get("text", "")),
            forced=await self._forced((written or {}).get("token_ids") or []),
            chosen_logprobs=False if speculation else await self._chosen_logprobs(),
            prompt_logprobs=None if scored is None else bool(scored.get("prompt_logprobs")),
            prefix_cache=prefix_cache,
            cached_tokens=cached_tokens,
            metrics=None if metrics is None else bool(metrics),
            speculation=speculation,
            cache=cache,
            tried=len(self._long),
        )

    async def _stop_included(self, text: str) -> bool | None:
        """Write *text* again, with its last character as the stop string."""
        stop = text.strip()[-1:]
        if not stop:
            return None
        choice = await self._choice(4, stop=[stop], include_stop_str_in_output=True)
        return None if choice is None else str(choice.get("text")).endswith(stop)

    async def _forced(self, written: list[int]) -> bool | None:
        """Allow only one token, which the model would not write."""
        others = [number for number in self._prompt if number not in written]
        if not written or not others:
            return None
        choice = await self._choice(1, allowed_token_ids=others[:1], return_token_ids=True)
        return None if choice is None else choice.get("token_ids") == others[:1]

    async def _chosen_logprobs(self) -> bool | None:
        reply = await self._post(vllm_protocol.choice_body(self._model, self._prompt, self._digits, by_id=True))
        if reply is None:
            return None
        try:
            digits = {str(number): number for number in self._digits}
            return len(vllm_protocol.choice_probabilities(self._call, reply, digits)) == len(digits)
        except MalformedReply:
            return False

    async def _cache(self, cache: CacheConfig | None) -> tuple[bool | None, bool | None]:
        """Repeat ever longer prompts; return whether one was read from the cache, and whether the usage reports it."""
        hit: bool | None = None
        reported: bool | None = None
        for length in self._lengths(cache):
            self._long = self._fresh(length)
            hit, reported = await self._repeated(self._long)
            if hit or hit is None:
                break
        return hit, reported

    def _lengths(self, cache: CacheConfig | None) -> list[int]:
        """Return the lengths of the prompts to repeat, in tokens, within the context of the model."""
        longer: tuple[int, ...] = LONGER if cache is None or cache.block is None else (2 * cache.block,)
        if cache is not None and cache.enabled is False:
            longer = ()
        wanted = (LONG, *(length for length in longer if length > LONG))
        return list(dict.fromkeys(min(length, self._room) for length in wanted))

    def _fresh(self, length: int) -> list[int]:
        """Return a prompt in random order, which is in no cache."""
        prompt = [*(self._prompt * (length // len(self._prompt) + 1))[:length]]
        shuffle(prompt)
        return prompt

    async def _repeated(self, prompt: Sequence[int]) -> tuple[bool | None, bool | None]:
        """Send *prompt* several times; look for cache hits in the usage, or else in the metrics."""
        body = vllm_protocol.completion_body(self._model, prompt, vllm_protocol.GREEDY, 1)
        reply = await self._post(body)
        before = await self._hits()
        for _ in range(REPEATS - 1):
            reply = await self._post(body)
            if reply and vllm_protocol.usage(reply)[1]:
                return True, True
        if reply is None:
            return None, None
        after = await self._hits()
        usage: dict[str, Any] = reply.get("usage") or {}
        reported = bool(usage.get("prompt_tokens_details"))
        if before is None or after is None:
            return (False if reported else None), reported
        return after > before, reported

    async def suffix_scoring(self) -> bool:
        """Compare the scores of the last token of the cached long prompt, scored alone and within the whole prompt."""
        even = len(self._long) // 2 * 2  # No whole number of blocks ends before the last token of an even length.
        prompt = self._long[:even]
        start, last = len(prompt) - 1, str(prompt[-1])
        for _ in range(TRIES):
            reply = await self._post(vllm_protocol.suffix_scoring_body(self._model, prompt, 0), GENERATE)
            rows = vllm_protocol.computed_rows(reply or {}, prompt[start:], start)
            if rows is not None:
                whole = await self._post(vllm_protocol.scoring_body(self._model, prompt, 0))
                if not whole:
                    return False
                expected = vllm_protocol.prompt_rows(self._call, whole, start)
                return bool(abs(expected[0][last]["logprob"] - rows[0][last]["logprob"]) < NEAR)
        return False

    async def _hits(self) -> float | None:
        lines = [line for line in (await self._metrics() or "").splitlines() if line.startswith(HITS)]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    async def _metrics(self) -> str | None:
        text = await self._get(METRICS)
        return None if text is None else text.decode(errors="replace") if b"vllm:" in text else ""

    async def _version(self) -> str | None:
        return vllm_protocol.version(await self._get(VERSION) or b"")

    async def _choice(self, limit: int, **fields: Any) -> dict[str, Any] | None:
        """Complete the prompt. Return {} if the server rejects that, None if the request fails for another reason."""
        reply = await self._post(
            vllm_protocol.completion_body(self._model, self._prompt, vllm_protocol.GREEDY, limit) | fields
        )
        if reply is None:
            return None
        choices: list[dict[str, Any]] = reply.get("choices") or [{}]
        return choices[0]

    async def _post(self, body: Body, path: str = COMPLETIONS) -> Reply | None:
        try:
            return await self._connection.post(self._call, path, body, retries=RETRIES)
        except EndpointUnreachable:
            raise
        except EndpointUnavailable:
            return None
        except EndpointError:
            return {}

    async def _get(self, path: str) -> bytes | None:
        try:
            return await self._connection.get(self._call, path, retries=RETRIES)
        except EndpointUnreachable:
            raise
        except EndpointUnavailable:
            return None
        except EndpointError:
            return b""
