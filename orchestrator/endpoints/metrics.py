"""
What vLLM's ``/metrics`` shows: the queue, token-level speculation, and the prefix cache.

Any other server shows none of these.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass
from math import gcd
from operator import add, sub
from typing import TypeVar

from ..concurrency import background

POLL_SECONDS = 1.0
"""Between two readings of one server."""
POLL_TIMEOUT_SECONDS = 5 * POLL_SECONDS
"""For one reading."""

NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d{1,2})?"
"""A number in the metrics. Neither NaN nor inf is one."""

# The queue

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """The requests at a server, and its room for them."""

    running: int
    """Requests that are running."""
    waiting: int
    """Requests that wait for the engine."""
    cache: int | None = None
    """Tokens that the KV cache holds. None: the server does not show that."""

    def __add__(self, other: QueueGauges) -> QueueGauges:
        cache: int | None = None
        if self.cache is not None and other.cache is not None:
            cache = self.cache + other.cache
        return QueueGauges(self.running + other.running, self.waiting + other.waiting, cache)


def read_queue(metrics: bytes) -> QueueGauges | None:
    """Add up the gauges of every engine behind a server. None: there are none."""
    sums = _sums(metrics, RUNNING, WAITING)
    if sums is None:
        return None
    running, waiting = sums
    return QueueGauges(running, waiting, read_cache_tokens(metrics))


@asynccontextmanager
async def poll_queue(
    read: Callable[[], Awaitable[QueueGauges | None]],
    report: Callable[[int, int, int | None], None],
) -> AsyncGenerator[None]:
    """
    Call *report* every second with what *read* returns: requests that run, requests that wait, and
    the tokens of the cache.

    A poll that fails or takes longer than `POLL_TIMEOUT_SECONDS` reports nothing.
    """

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_TIMEOUT_SECONDS):
                    gauges = await read()
                if gauges is not None:
                    report(gauges.running, gauges.waiting, gauges.cache)
            await asyncio.sleep(POLL_SECONDS)

    async with background(poll()):
        yield


# Token-level speculation


@dataclass(frozen=True, slots=True)
class Acceptance:
    """
    The token-level speculation within one model's server, since the server was started.

    The difference of two readings is what happened between them.
    """

    drafts: int = 0
    """Passes that verified drafted tokens."""
    drafted: int = 0
    """Tokens that were drafted."""
    accepted: int = 0
    """Drafted tokens that the model would have written itself."""

    @property
    def rate(self) -> float | None:
        """The share of the drafted tokens that was accepted. None: none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """
        The mean number of tokens of a pass with a draft, the model's own included. None: there was
        none.
        """
        return 1 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(*map(add, astuple(self), astuple(other)))

    def __sub__(self, old: Acceptance) -> Acceptance:
        return Acceptance(*map(sub, astuple(self), astuple(old)))

    def __str__(self) -> str:
        if self.rate is None:
            return "nothing drafted"
        return f"{self.rate:.0%}, {self.length:.2f} a pass"


M = TypeVar("M", QueueGauges, Acceptance)
COUNTERS = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)


def read_acceptance(metrics: bytes) -> Acceptance | None:
    """Add up the counters of every engine behind a server. None: it does not speculate."""
    sums = _sums(metrics, *COUNTERS)
    return Acceptance(*sums) if sums else None


def read_start(metrics: bytes) -> bytes:
    """Return when the server's process was started, in its own words. b"": it does not say."""
    found = re.search(rb"^process_start_time_seconds (\S+)", metrics, re.MULTILINE)
    return found[1] if found else b""


def _sums(metrics: bytes, *names: str) -> list[int] | None:
    """Add up each metric of *names* over all engines. None: one has no number."""
    sums: list[int] = []
    for name in names:
        line = rf"^{name}(?:_total)?(?:{{.*}})? ({NUMBER})$"
        values = re.findall(line.encode(), metrics, re.MULTILINE)
        if not values:
            return None
        sums.append(sum(int(float(value)) for value in values))
    return sums


def total(parts: Iterable[M | None]) -> M | None:
    """Add up what several servers report. None: no server reports anything."""
    whole: M | None = None
    for part in parts:
        if part is not None:
            whole = part if whole is None else whole + part
    return whole


# The prefix cache

MATCH_UNIT_TOKENS = 16
"""Tokens. It divides the blocks of hybrids: multiples of 16 on GPUs and of 128 on CPUs."""
FINE_BLOCK_TOKENS = 128
"""Tokens. No block of a model without recurrent layers is larger."""
MATCH_UNIT = "prefix_match_unit"

SWITCHES = {"True": True, "False": False}
_CACHE_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The prefix cache as the server describes it. None: the server does not describe that."""

    enabled: bool | None = None
    """Whether prefixes are cached."""
    block: int | None = None
    """The allocation unit, in tokens."""
    unit: int | None = None
    """Where a cached prefix may end, in tokens, if that is finer than a block."""
    known: tuple[str, ...] = ()
    """The names of all settings, which show the flags of this version of vLLM."""

    @property
    def checkpoints(self) -> bool:
        """
        Whether a prompt that is sent only to have its state saved pays.

        It does for a hybrid whose match unit is set: such a server saves a state where a prompt
        ends.
        """
        if self.enabled is False or self.unit is None:
            return False
        return self.unit < (self.block or 0)

    @property
    def finest(self) -> int:
        """The match unit to start this server with, in tokens: a divisor of the block."""
        return gcd(self.block or MATCH_UNIT_TOKENS, 2 * MATCH_UNIT_TOKENS)


def read_cache_config(metrics: bytes) -> CacheConfig | None:
    """Read the configuration of the first engine behind a server. None: there is none."""
    labels = next(cache_labels(metrics), None)
    if labels is None:
        return None
    return CacheConfig(
        enabled=SWITCHES.get(labels.get("enable_prefix_caching", "")),
        block=_number(labels, "block_size"),
        unit=_number(labels, MATCH_UNIT),
        known=tuple(sorted(labels)),
    )


def read_cache_tokens(metrics: bytes) -> int | None:
    """
    Return the tokens that the KV caches of all engines behind a server hold. None: not shown.
    """
    tokens = 0
    for labels in cache_labels(metrics):
        blocks = _number(labels, "num_gpu_blocks") or 0
        tokens += blocks * (_number(labels, "block_size") or 0)
    return tokens or None


def cache_labels(metrics: bytes) -> Iterator[Mapping[str, str]]:
    """Yield the labels with which each engine describes its cache."""
    lines = (line for line in metrics.splitlines() if line.startswith(b"vllm:cache_config_info{"))
    return (dict(_CACHE_LABEL.findall(line.decode(errors="replace"))) for line in lines)


def _number(labels: Mapping[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdigit() else None
