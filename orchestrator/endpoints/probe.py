"""
What a server can do, found out by what it does: vLLM accepts fields that it does not know, and answers 200.

Every question is a request of a few tokens. What cannot be found out is None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson

from ..errors import EndpointError, MalformedReply
from . import scoring, wire
from .client import Connection
from .encoder import PROBE, Encoder

LONG = 400  # tokens; more than the largest block by which vLLM caches a prefix (128, on CPUs)
RETRIES = 1  # After a request that breaks it, vLLM may reset the connection that the next one is sent on.
TRIES = 8  # Memory that nobody has written to may hold what JSON has no words for; see scoring.UNSPEAKABLE.
NEAR = 0.1  # nats; what the order of additions may change in half precision
HITS = "vllm:prefix_cache_hits"
SPECULATION = "vllm:spec_decode_num_drafts"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    What one endpoint can do; None where it does not tell.

    *token_ids*: returns the ids that it writes. *stop_included*: leaves the stop string in the text. *forced*: keeps to
    ``allowed_token_ids``. *chosen_logprobs*: tells the probability of any token asked for; not tried on a server that
    speculates, for in a batch with drafted tokens the question ends vLLM's V1 engine. *prompt_logprobs*: scores a given
    text. *prefix_cache*: reads a repeated prompt from its cache. *cached_tokens*: says how much of a prompt that
    was. *metrics*: shows ``/metrics``. *speculation*: lets a method draft tokens for the model (speculative decoding).
    *suffix_scoring*: scores the end of a cached text as it scores it within the whole; None where that is not allowed.
    """

    version: str | None
    token_ids: bool | None
    stop_included: bool | None
    forced: bool | None
    chosen_logprobs: bool | None
    prompt_logprobs: bool | None
    prefix_cache: bool | None
    cached_tokens: bool | None
    metrics: bool
    speculation: bool | None
    suffix_scoring: bool | None = None


async def probe(connection: Connection, model: str, encoder: Encoder, *, suffix_scoring: bool = False) -> Capabilities:
    """
    Try one capability after the other. A refused request shows that there is none; nothing is raised.

    *suffix_scoring* is tried only where the settings allow it: a server that was not made for it may not survive it.
    """
    prompt = (await encoder.literally(PROBE))[: encoder.room - 8]
    digits = await encoder.literally("0123456789")
    probing = _Probe(connection, model, prompt, digits, min(LONG, encoder.room - 8))
    found = await probing.run()
    return replace(found, suffix_scoring=await probing.suffix_scoring()) if suffix_scoring else found


class _Probe:
    def __init__(
        self, connection: Connection, model: str, prompt: tuple[int, ...], digits: tuple[int, ...], long: int
    ) -> None:
        self._connection, self._model = connection, model
        self._prompt, self._digits = prompt, list(dict.fromkeys(digits))
        self._long = (prompt * (long // len(prompt) + 1))[:long]
        self._call = connection.call("probe")

    async def run(self) -> Capabilities:
        written = await self._choice(4, return_token_ids=True)
        prefix_cache, cached_tokens = await self._cache()
        metrics = await self._metrics()
        speculation = SPECULATION in metrics if metrics else None
        return Capabilities(
            version=await self._version(),
            token_ids=bool(written.get("token_ids")) if written else None,
            stop_included=await self._stop_included(written.get("text", "")),
            forced=await self._forced(written.get("token_ids") or []),
            chosen_logprobs=not speculation and await self._chosen_logprobs(),
            prompt_logprobs=bool((await self._choice(1, prompt_logprobs=0)).get("prompt_logprobs")),
            prefix_cache=prefix_cache,
            cached_tokens=cached_tokens,
            metrics=bool(metrics),
            speculation=speculation,
        )

    async def _stop_included(self, text: str) -> bool | None:
        """Write the same again, and stop at something in it."""
        stop = text.strip()[-1:]
        if not stop:
            return None
        return str((await self._choice(4, stop=[stop], include_stop_str_in_output=True)).get("text")).endswith(stop)

    async def _forced(self, written: list[int]) -> bool | None:
        """Allow a single token, one that the model would not write."""
        others = [number for number in self._prompt if number not in written]
        if not written or not others:
            return None
        choice = await self._choice(1, allowed_token_ids=others[:1], return_token_ids=True)
        return choice.get("token_ids") == others[:1]

    async def _chosen_logprobs(self) -> bool:
        reply = await self._post(wire.asking(self._model, self._prompt, self._digits, by_id=True))
        try:
            return len(wire.chances(self._call, reply, {str(at): at for at in self._digits})) == len(self._digits)
        except MalformedReply:
            return False

    async def _cache(self) -> tuple[bool | None, bool | None]:
        """Send a long prompt twice; look for the second one's hits in its usage, or else in the metrics."""
        body = wire.completion(self._model, self._long, wire.GREEDY, 1)
        await self._post(body)
        before = await self._hits()
        reply = await self._post(body)
        if wire.usage(reply)[1]:
            return True, True
        after = await self._hits()
        return (after > before if before is not None and after is not None else None), False

    async def suffix_scoring(self) -> bool:
        """Score the last token of the long prompt, which is cached by now, alone and within the whole prompt."""
        prompt = self._long[
            : len(self._long) // 2 * 2
        ]  # Even: a whole number of blocks never ends before the last one.
        start, last = len(prompt) - 1, str(prompt[-1])
        for _ in range(TRIES):
            reply = await self._post(scoring.suffix(self._model, prompt, 0), scoring.GENERATE)
            rows = scoring.computed_rows(reply, prompt, start)
            if rows is not None:
                whole = await self._post(scoring.whole(self._model, prompt, 0))
                difference = scoring.rows(self._call, whole, start)[0][last]["logprob"] - rows[0][last]["logprob"]
                return bool(abs(difference) < NEAR)
        return False

    async def _hits(self) -> float | None:
        lines = [line for line in (await self._metrics()).splitlines() if line.startswith(HITS)]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    async def _metrics(self) -> str:
        text = await self._get("/metrics")
        return text.decode(errors="replace") if b"vllm:" in text else ""

    async def _version(self) -> str | None:
        try:
            return str(orjson.loads(await self._get("/version"))["version"])
        except (orjson.JSONDecodeError, LookupError, TypeError):
            return None

    async def _choice(self, limit: int, **fields: Any) -> dict[str, Any]:
        reply = await self._post(wire.completion(self._model, self._prompt, wire.GREEDY, limit) | fields)
        choices: list[dict[str, Any]] = reply.get("choices") or [{}]
        return choices[0]

    async def _post(self, body: wire.Body, path: str = "/v1/completions") -> wire.Reply:
        try:
            return await self._connection.post(self._call, path, body, retries=RETRIES)
        except EndpointError:
            return {}

    async def _get(self, path: str) -> bytes:
        try:
            return await self._connection.get(self._call, path, retries=RETRIES)
        except EndpointError:
            return b""
