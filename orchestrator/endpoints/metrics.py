"""
What vLLM's ``/metrics`` tells: queue gauges, counters of token-level speculation, and the prefix cache's configuration.

`poll_queue` and `AcceptanceMonitor` read gauges and counters again and again; `AcceptanceWindows` assigns what the
counters grew by to a run, because a server counts for all of its clients. Any server but vLLM shows none of these.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import gcd, inf
from typing import Protocol, TypeAlias, cast

from ..chain import Party
from ..concurrency import background
from ..events import Answering, Called, Event, Finished, Speculated
from ..stats import Acceptance
from .settings import Endpoint

# The queue

QUEUE_POLL_SECONDS = 1.0
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """How many requests are *running* on a server, and how many are *waiting* there."""

    running: int
    waiting: int


class QueueSource(Protocol):
    """A server or an endpoint that reports its queue; None if it does not."""

    async def queue(self) -> QueueGauges | None: ...


def read_queue(metrics: bytes) -> QueueGauges | None:
    """Add up the gauges of every engine behind a server; None if there are none."""
    gauges: dict[str, int] = {}
    for line in metrics.decode(errors="replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (RUNNING, WAITING):
            with suppress(ValueError, OverflowError):  # NaN, inf
                gauges[name] = gauges.get(name, 0) + max(0, int(float(line.rpartition(" ")[2])))
    return QueueGauges(gauges[RUNNING], gauges[WAITING]) if len(gauges) == 2 else None


@asynccontextmanager
async def poll_queue(
    server: QueueSource,
    report: Callable[[int, int], None],
    every: float = QUEUE_POLL_SECONDS,
    within: float = 5 * QUEUE_POLL_SECONDS,
) -> AsyncGenerator[None]:
    """
    Call *report* with the running and waiting requests, again *every* so many seconds while the block lasts.

    A poll that fails or takes longer than *within* seconds reports nothing.
    """

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    gauges = await server.queue()
                if gauges is not None:
                    report(gauges.running, gauges.waiting)
            await asyncio.sleep(every)

    async with background(poll()):
        yield


# Token-level speculation: the counters

PREFIX = "vllm:spec_decode_num_"
COUNTERS = {f"{PREFIX}drafts": "drafts", f"{PREFIX}draft_tokens": "drafted", f"{PREFIX}accepted_tokens": "accepted"}
WRITTEN = "vllm:generation_tokens"
_NAMES = "|".join([*COUNTERS, WRITTEN])
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
        with suppress(ValueError, OverflowError):
            sums[name.decode()] = sums.get(name.decode(), 0) + int(float(value))
    return sums


def total(parts: Iterable[Acceptance | None]) -> Acceptance | None:
    """Add up the counters of several servers; None if no server has any."""
    known = [part for part in parts if part is not None]
    return sum(known, Acceptance()) if known else None


# Token-level speculation: the poller, and the windows of one run

ACCEPTANCE_POLL_SECONDS = 1.0  # between two readings of one server
MIN_POLL_SECONDS = 0.25  # the same, after `AcceptanceMonitor.poll_soon`
POLL_TIMEOUT = 5 * ACCEPTANCE_POLL_SECONDS  # seconds for one reading; an older one is no base for a run's first window
UNREAD = 32  # tokens that a server may have written for a cancelled request beyond those that arrived


class SpeculatingServer(Protocol):
    """
    A server that may speculate on tokens. `acceptance` reads its counters again.

    *polled_at* is the second of the last attempt on the event loop's clock, *reading* the newest reading; None if the
    server does not speculate.
    """

    polled_at: float
    reading: AcceptanceReading | None

    @property
    def settings(self) -> Endpoint: ...

    async def acceptance(self) -> Acceptance | None: ...


NamedServer: TypeAlias = tuple[str, SpeculatingServer]


class AcceptanceMonitor:
    """
    Polls the counters of all speculating servers, and knows how many users share them.

    *servers* returns every server with the role of its model, or the model's path in a nested pair. A user is a run or
    any other work of this process, such as a shadow check. A run's windows count for that run alone only while it is
    the single user.
    """

    def __init__(self, servers: Callable[[], Iterable[NamedServer]]) -> None:
        self._servers = servers
        self._poll_soon = asyncio.Event()
        self._last: dict[tuple[str, str], AcceptanceReading] = {}  # by name and URL
        self._users = 0
        self._last_left = self._last_shared = -inf  # seconds of the loop's clock
        self.totals: dict[str, Acceptance] = {}  # by name, since the first reading, for all clients
        self.speculating: tuple[NamedServer, ...] = ()

    @asynccontextmanager
    async def polling(self) -> AsyncGenerator[None]:
        """Poll the servers while the block lasts."""
        self._update()
        async with background(self._poll()):
            yield

    def poll_soon(self) -> None:
        """Have the servers polled before the usual interval is over; return at once."""
        if self.speculating:
            self._poll_soon.set()

    @contextmanager
    def user(self) -> Generator[None]:
        """Count the work of the block, which belongs to no run, as one more user of the servers."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> float:
        """Count one more user; return the second at which a user left last."""
        self._users += 1
        return self._last_left

    def leave(self) -> None:
        """Count one user less."""
        if self._users > 1:
            self._last_shared = _now()
        self._users -= 1
        self._last_left = _now()

    @property
    def last_shared(self) -> float:
        """The last second at which several users shared the servers, which may be now."""
        return _now() if self._users > 1 else self._last_shared

    async def _poll(self) -> None:
        interval = ACCEPTANCE_POLL_SECONDS
        while True:
            self._poll_soon.clear()
            await asyncio.gather(*[_read(server) for _, server in self.speculating if _due(server, interval)])
            self._update()
            interval = ACCEPTANCE_POLL_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCEPTANCE_POLL_SECONDS):
                    await self._poll_soon.wait()
                    interval = MIN_POLL_SECONDS

    def _update(self) -> None:
        """Find the speculating servers, and add what their counters grew by to `totals`."""
        self.speculating = tuple((name, server) for name, server in self._servers() if server.reading is not None)
        for name, server in self.speculating:
            if (reading := server.reading) is not None:
                growth = reading.since(self._last.get((name, server.settings.url), reading))
                self.totals[name] = self.totals.get(name, Acceptance()) + (growth or Acceptance())
                self._last[name, server.settings.url] = reading


class AcceptanceWindows:
    """
    The `Speculated` events of one run: windows from one reading of a server's counters to the next.

    *clock* returns the seconds since the run began. A window is marked as shared if the *monitor* counted another user
    meanwhile, or if the server wrote more tokens than the run requested. Windows exist between `begin` and `end`.
    """

    def __init__(self, monitor: AcceptanceMonitor, clock: Callable[[], float]) -> None:
        self._monitor, self._clock = monitor, clock
        self._bases: dict[tuple[str, str], AcceptanceReading] = {}  # where each server's next window begins
        self._open = self._answering = False
        self._left_before = -inf  # the second at which another user left last, before this run
        self._requested, self._served = Counter[str](), Counter[str]()  # tokens by name: for this run, for all clients

    def begin(self) -> None:
        """Count the run as a user; its first windows begin at the newest readings, unless these are too old."""
        began = _now()
        self._zero = began - self._clock()
        self._left_before = self._monitor.enter()
        for name, server in self._monitor.speculating:
            if server.reading is not None and began - server.reading.at <= POLL_TIMEOUT:
                self._bases[name, server.settings.url] = server.reading
        self._open = True

    def end(self) -> None:
        """Count the run as a user no longer; may be called twice."""
        if self._open:
            self._open = False
            self._monitor.leave()

    def complete(self, event: Event) -> Iterator[Event]:
        """Yield the windows that are complete when *event* happens, then *event* itself."""
        if self._open and self._monitor.speculating:
            if isinstance(event, Called):
                self._requested[event.path or event.role] += event.written + (0 if event.fate == "done" else UNREAD)
            elif isinstance(event, Answering) and not self._answering:
                self._answering = True  # The run may be over before the next regular poll.
                self._monitor.poll_soon()
            last = isinstance(event, Finished)
            for name, server in self._monitor.speculating:
                yield from self._window(name, server, last=last)
        yield event

    def _window(self, name: str, server: SpeculatingServer, *, last: bool) -> Iterator[Speculated]:
        if (reading := server.reading) is None:
            return
        key = name, server.settings.url
        base = self._bases.setdefault(key, reading)
        if (growth := reading.since(base)) is None:
            self._bases[key] = reading
            return
        if not last and not growth.drafted:
            return
        self._bases[key] = reading
        self._served[name] += reading.written - base.written
        shared = max(self._left_before, self._monitor.last_shared) >= base.at
        # Clients outside this process are seen only by what the server wrote beyond this run's requests.
        foreign = last and self._served[name] > self._requested[name] + UNREAD
        if reading.at > base.at or foreign:
            since, until = max(0.0, base.at - self._zero), max(0.0, reading.at - self._zero)
            role, _, inner = name.partition(".")
            path = name if inner else ""
            yield Speculated(cast("Party", role), growth, since, until, shared or foreign, server.settings.url, path)


def _due(server: SpeculatingServer, interval: float) -> bool:
    """Whether the last poll is *interval* seconds ago; never where requests are limited, as a poll is a request too."""
    return server.settings.requests_per_second is None and _now() - server.polled_at >= interval


async def _read(server: SpeculatingServer) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL_TIMEOUT):
            await server.acceptance()


def _now() -> float:
    return asyncio.get_running_loop().time()


# The prefix cache

CACHE_CONFIG = b"vllm:cache_config_info{"
UNIT = 16  # tokens: divides the blocks of hybrids, which are multiples of 16 on GPUs and of 128 on CPUs
FINE = 128  # tokens; no block of a model without recurrent layers is larger
MATCH_UNIT, MODE, RETENTION = "prefix_match_unit", "mamba_cache_mode", "prefix_cache_retention_interval"
CHECKPOINTS = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")  # newest name first

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
    def hybrid(self) -> bool:
        """Whether the model has recurrent states that are cached with the prefix."""
        return self.mode is not None

    @property
    def checkpoints(self) -> bool:
        """Whether the server saves a state where a prompt ends, so that a prompt sent only for that state pays."""
        return self.hybrid and self.enabled is not False and self.unit is not None and self.unit < (self.block or 0)

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


def _number(labels: Mapping[str, str], name: str) -> int | None:
    value = labels.get(name, "")
    return int(value) if value.isdigit() else None
