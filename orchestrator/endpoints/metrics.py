"""
What vLLM's ``/metrics`` tells: the queue, which `poll_queue` watches, token-level speculation, and
the prefix cache.

Any other server shows none of these.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import gcd

from ..concurrency import background

POLL_SECONDS = 1.0  # between two readings of one server
POLL_TIMEOUT = 5 * POLL_SECONDS  # seconds for one reading

# The queue

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


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


@asynccontextmanager
async def poll_queue(
    read: Callable[[], Awaitable[QueueGauges | None]],
    report: Callable[[int, int, int | None], None],
) -> AsyncGenerator[None]:
    """
    Call *report* every second with the running and waiting requests and the tokens of the cache, as
    *read* has them.

    A poll that fails or takes longer than `POLL_TIMEOUT` seconds reports nothing.
    """

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_TIMEOUT):
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

    *drafts* counts the passes that verified drafted tokens, *drafted* the tokens in them, and
    *accepted* the tokens that the model would have written itself. The difference of two readings
    is what happened between them.
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float | None:
        """The share of the drafted tokens that was accepted; None if none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """
        The mean number of tokens per pass with a draft, including the model's own; None if there
        was none.
        """
        return 1 + self.accepted / self.drafts if self.drafts else None

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts + other.drafts, self.drafted + other.drafted, self.accepted + other.accepted
        )

    def __sub__(self, old: Acceptance) -> Acceptance:
        return Acceptance(
            self.drafts - old.drafts, self.drafted - old.drafted, self.accepted - old.accepted
        )

    def __str__(self) -> str:
        return (
            "nothing drafted" if self.rate is None else f"{self.rate:.0%}, {self.length:.2f} a pass"
        )


PREFIX = "vllm:spec_decode_num_"
COUNTERS = {
    f"{PREFIX}drafts": "drafts",
    f"{PREFIX}draft_tokens": "drafted",
    f"{PREFIX}accepted_tokens": "accepted",
}
_NAMES = "|".join([*COUNTERS, RUNNING, WAITING])
# a comment has no number there
_LINE = re.compile(rf"^({_NAMES})(?:_total)?(?:{{.*}})? (.*)$".encode(), re.MULTILINE)


def read_acceptance(metrics: bytes) -> Acceptance | None:
    """
    Add up the counters of every engine behind a server; None if there are none: the server does not
    speculate.
    """
    counts = {COUNTERS[name]: value for name, value in _sums(metrics).items() if name in COUNTERS}
    return Acceptance(**counts) if len(counts) == len(COUNTERS) else None


def read_start(metrics: bytes) -> bytes:
    """Return when the server's process was started, in its own words; b"" if it does not say."""
    found = re.search(rb"^process_start_time_seconds (\S+)", metrics, re.MULTILINE)
    return found[1] if found else b""


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

# tokens: divides the blocks of hybrids, which are multiples of 16 on GPUs and of 128 on CPUs
UNIT = 16
FINE = 128  # tokens; no block of a model without recurrent layers is larger
MATCH_UNIT = "prefix_match_unit"

_CACHE_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """
    The prefix cache as the server describes it; None for what it does not describe.

    *enabled*: prefixes are cached. *block* is the allocation unit in tokens; *unit* is where a
    cached prefix may end, in tokens, if that is finer. *known* are the names of all settings, which
    show the flags of this version of vLLM.
    """

    enabled: bool | None = None
    block: int | None = None
    unit: int | None = None
    known: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> bool:
        """
        Whether the server saves a state where a prompt ends, so that a prompt sent only for that
        state pays.

        It does for a hybrid whose match unit is set.
        """
        return self.enabled is not False and self.unit is not None and self.unit < (self.block or 0)

    @property
    def finest(self) -> int:
        """
        The match unit to start this server with, in tokens: vLLM requires a divisor of the block.
        """
        return gcd(self.block or UNIT, 2 * UNIT)


def read_cache_config(metrics: bytes) -> CacheConfig | None:
    """Read the configuration of the first engine behind a server; None if there is none."""
    for labels in cache_labels(metrics):
        enabled = labels.get("enable_prefix_caching")
        return CacheConfig(
            enabled=None if enabled is None else enabled == "True",
            block=_number(labels, "block_size"),
            unit=_number(labels, MATCH_UNIT),
            known=tuple(sorted(labels)),
        )
    return None


def read_cache_tokens(metrics: bytes) -> int | None:
    """
    Add up how many tokens the KV caches of all engines behind a server hold; None if they are not
    shown.
    """
    sizes = [
        (_number(each, "num_gpu_blocks"), _number(each, "block_size"))
        for each in cache_labels(metrics)
    ]
    return sum((blocks or 0) * (size or 0) for blocks, size in sizes) or None


def cache_labels(metrics: bytes) -> Iterator[Mapping[str, str]]:
    """The labels with which each engine describes its cache."""
    lines = (line for line in metrics.splitlines() if line.startswith(b"vllm:cache_config_info{"))
    return (dict(_CACHE_LABEL.findall(line.decode(errors="replace"))) for line in lines)


def _number(labels: Mapping[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdigit() else None
