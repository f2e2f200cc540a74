"""What a server can do."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import CacheConfig

LONG_PROMPT_TOKENS = 400
"""Tokens. No block of a model that is no hybrid is longer: on CPUs it has at most 128."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one endpoint can do. None: that is not known."""

    version: str | None
    """The version of vLLM."""
    token_ids: bool | None
    """Returns the ids that it writes."""
    chosen_logprobs: bool | None
    """
    Returns the log-probabilities of requested tokens. This is not tried on a server that
    speculates: in a batch with drafted tokens such a request ends vLLM's V1 engine.
    """
    prompt_logprobs: bool | None
    """Scores the tokens of a prompt."""
    prefix_cache: bool | None
    """Reads a repeated prompt from its cache."""
    cached_tokens: bool | None
    """Reports how many tokens it read from its cache."""
    metrics: bool | None
    """Shows ``/metrics``."""
    speculation: bool | None
    """Uses speculative decoding."""
    suffix_scoring: bool | None = None
    """
    Scores the end of a cached text as it does within the whole text. None: the settings forbid it.
    """
    cache: CacheConfig | None = None
    """The prefix cache as the server describes it."""
    tried: int = LONG_PROMPT_TOKENS
    """Tokens of the longest repeated prompt, which was read from the cache if any was."""
    cached_counts: bool | None = None
    """
    Counts in the usage the cached tokens that ``/metrics`` counts. Some versions report 0 with
    ``--scheduling-policy priority``.
    """
