"""The paths of a server of models, and what its requests hold."""

from __future__ import annotations

from typing import Any, TypeAlias

Body: TypeAlias = dict[str, Any]
"""The JSON object of a request."""

MODELS = "/v1/models"
COMPLETIONS = "/v1/completions"
POOLING = "/pooling"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
METRICS = "/metrics"
VERSION = "/version"
HEALTH = "/health"
GENERATE = "/inference/v1/generate"
"""vLLM's own route, which takes token ids and all sampling parameters."""

PRIORITISED = frozenset({COMPLETIONS, POOLING, GENERATE})
"""The paths whose requests take a ``priority``."""

WITHOUT_ENGINE = frozenset({HEALTH, METRICS, TOKENIZE, DETOKENIZE})
"""The paths whose requests wait for no slot."""
