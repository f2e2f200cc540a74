"""What a server can do."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import CacheConfig

LONG = 400  # tokens; longer than any block (128 at most, on CPUs) of a model that is no hybrid


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    What one endpoint can do; None where that is unknown.

    *token_ids*: returns the ids that it writes. *chosen_logprobs*: returns the log-probabilities of
    requested tokens; not tried on a server that speculates, because in a batch with drafted tokens
    such a request ends vLLM's V1 engine. *prompt_logprobs*: scores the tokens of a prompt.
    *prefix_cache*: reads a repeated prompt from its cache. *cached_tokens*: reports how many tokens
    it read there. *metrics*: shows ``/metrics``. *speculation*: uses speculative decoding.
    *suffix_scoring*: scores the end of a cached text as it does within the whole text; None if the
    settings forbid it. *shared_batch*: questions by token ids leave the likeliest tokens of other
    requests in the same batch whole, and are answered there; see `VllmEndpoint.apart`.
    *cached_counts*: the usage counts the cached tokens that ``/metrics`` counts; some versions
    report 0 with ``--scheduling-policy priority``. *cache* is the prefix cache as the server
    describes it. *tried* is the length, in tokens, of the longest repeated prompt: the one that was
    read from the cache, if any was.
    """

    version: str | None
    token_ids: bool | None
    chosen_logprobs: bool | None
    prompt_logprobs: bool | None
    prefix_cache: bool | None
    cached_tokens: bool | None
    metrics: bool | None
    speculation: bool | None
    suffix_scoring: bool | None = None
    cache: CacheConfig | None = None
    tried: int = LONG
    shared_batch: bool | None = None
    cached_counts: bool | None = None
