"""
What vLLM's ``/metrics`` tells: the queue, the counters of token-level speculation, and the prefix cache. Pure.

Any server but vLLM shows none of these. `polling` reads them again and again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import gcd

from ..stats import Acceptance

# The queue

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """
    How many requests are *running* on a server, and how many are *waiting* there.

    *cache* is how many tokens its KV cache holds; None if the server does not show it.
    """

    running: int
    waiting: int
    cache: int | None = None

    @classmethod
    def sum(cls, servers: Iterable[QueueGauges | None]) -> QueueGauges | None:
        """Add up what several servers report; None if no server reports anything."""
        known = [each for each in servers if each is not None]
        if not known:
            return None
        caches = [each.cache for each in known if each.cache is not None]
        cache = sum(caches) if len(caches) == len(known) else None
        return cls(sum(each.running for each in known), sum(each.waiting for each in known), cache)


def read_queue(metrics: bytes) -> QueueGauges | None:
    """Add up the gauges of every engine behind a server; None if there are none."""
    gauges = _sums(metrics)
    if not gauges.keys() >= {RUNNING, WAITING}:
        return None
    return QueueGauges(gauges[RUNNING], gauges[WAITING], read_cache_tokens(metrics))


# Token-level speculation: the counters

PREFIX = "vllm:spec_decode_num_"
COUNTERS = {f"{PREFIX}drafts": "drafts", f"{PREFIX}draft_tokens": "drafted", f"{PREFIX}accepted_tokens": "accepted"}
WRITTEN = "vllm:generation_tokens"
_NAMES = "|".join([*COUNTERS, WRITTEN, RUNNING, WAITING])
_LINE = re.compile(rf"^({_NAMES})(?:_total)?(?:{{.*}})? (.*)$".encode(), re.MULTILINE)  # a comment has no number there


@dataclass(frozen=True, slots=True)
class AcceptanceReading:
    """
    The counters of a speculating server, since its start, as read at second *at* of the event loop's clock.

    *written* counts the tokens written for all clients, 0 if the server does not show it.
    """

    at: float
    counted: Acceptance
    written: int = 0

    def since(self, earlier: AcceptanceReading) -> Acceptance | None:
        """Return how far the counters grew since an *earlier* reading; None if the server restarted in between."""
        growth = self.counted - earlier.counted
        restarted = min(growth.drafts, growth.drafted, growth.accepted, self.written - earlier.written) < 0
        return None if restarted else growth


def read_counters(metrics: bytes, at: float) -> AcceptanceReading | None:
    """Read the counters at second *at*; None if there are none."""
    sums = _sums(metrics)
    counted = _acceptance(sums)
    return AcceptanceReading(at, counted, sums.get(WRITTEN, 0)) if counted is not None else None


def read_acceptance(metrics: bytes) -> Acceptance | None:
    """Add up the counters of every engine behind a server; None if there are none: the server does not speculate."""
    return _acceptance(_sums(metrics))


def _acceptance(sums: Mapping[str, int]) -> Acceptance | None:
    counts = {COUNTERS[name]: value for name, value in sums.items() if name in COUNTERS}
    return Acceptance(**counts) if len(counts) == len(COUNTERS) else None


def _sums(metrics: bytes) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, value in _LINE.findall(metrics):
        with suppress(ValueError, OverflowError):  # NaN, inf
            sums[name.decode()] = sums.get(name.decode(), 0) + max(0, int(float(value)))
    return sums


def total(parts: Iterable[Acceptance | None]) -> Acceptance | None:
    """Add up the counters of several servers; None if no server has any."""
    known = [part for part in parts if part is not None]
    return sum(known, Acceptance()) if known else None


# The prefix cache

CACHE_CONFIG = b"vllm:cache_config_info{"
UNIT = 16  # tokens: divides the blocks of hybrids, which are multiples of 16 on GPUs and of 128 on CPUs
FINE = 128  # tokens; no block of a model without recurrent layers is larger
MATCH_UNIT, MODE = "prefix_match_unit", "mamba_cache_mode"

_CACHE_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """
    The prefix cache as the server describes it; None for what it does not describe.

    *enabled*: prefixes are cached. *block* is the allocation unit in tokens; *unit* is where a cached prefix may end,
    in tokens, if that is finer. *mode* is how recurrent states are cached, None for a model without any. *known* are
    the names of all settings, which show the flags that this version of vLLM has.
    """

    enabled: bool | None = None
    block: int | None = None
    unit: int | None = None
    mode: str | None = None
    known: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> bool:
        """
        Whether the server saves a state where a prompt ends, so that a prompt sent only for that state pays.

        It does for a hybrid whose match unit is set; vLLM 0.33 does not need the *mode* for it.
        """
        return self.enabled is not False and self.unit is not None and self.unit < (self.block or 0)

    @property
    def finest(self) -> int:
        """The match unit to start this server with, in tokens: vLLM requires a divisor of the block."""
        return gcd(self.block or UNIT, 2 * UNIT)


def read_cache_config(metrics: bytes) -> CacheConfig | None:
    """Read the configuration of the first engine behind a server; None if there is none."""
    line = next((line for line in metrics.splitlines() if line.startswith(CACHE_CONFIG)), None)
    if line is None:
        return None
    labels = dict(_CACHE_LABEL.findall(line.decode(errors="replace")))
    enabled = labels.get("enable_prefix_caching")
    mode = labels.get(MODE)
    return CacheConfig(
        enabled=None if enabled is None else enabled == "True",
        block=_number(labels, "block_size"),
        unit=_number(labels, MATCH_UNIT),
        mode=None if mode in (None, "None", "none") else mode,
        known=tuple(sorted(labels)),
    )


def read_cache_tokens(metrics: bytes) -> int | None:
    """Add up how many tokens the KV caches of all engines behind a server hold; None if they are not shown."""
    total = 0
    for line in metrics.splitlines():
        if line.startswith(CACHE_CONFIG):
            labels = dict(_CACHE_LABEL.findall(line.decode(errors="replace")))
            blocks, block = _number(labels, "num_gpu_blocks"), _number(labels, "block_size")
            total += (blocks or 0) * (block or 0)
    return total or None


def _number(labels: Mapping[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdigit() else None
