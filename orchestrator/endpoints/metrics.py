"""The server's own gauges of its load, where ``/metrics`` can be reached."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import gcd, inf
from typing import Protocol, cast

from ..chain import Party
from ..events import Answering, Called, Event, Finished, Speculated
from ..stats import Acceptance
from .settings import Endpoint

QUEUE_POLL_SECONDS = 1.0  # seconds
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """How many requests a server works on, and how many wait until it can."""

    running: int
    waiting: int


class Gauged(Protocol):
    """Whatever can be asked for its queue; None where that cannot be known."""

    async def queue(self) -> QueueGauges | None: ...


def read_queue(metrics: bytes) -> QueueGauges | None:
    """Add up the gauges of every engine behind a server; None if they are not there, as on any server but vLLM."""
    counted: dict[str, float] = {}
    for line in metrics.decode(errors="replace").splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (RUNNING, WAITING):
            with suppress(ValueError):
                counted[name] = counted.get(name, 0.0) + float(line.rpartition(" ")[2])
    return QueueGauges(int(counted[RUNNING]), int(counted[WAITING])) if len(counted) == 2 else None


@asynccontextmanager
async def polled(
    server: Gauged,
    tell: Callable[[int, int], None],
    every: float = QUEUE_POLL_SECONDS,
    within: float = 5 * QUEUE_POLL_SECONDS,
) -> AsyncGenerator[None]:
    """Tell *running* and *waiting* *every* so many seconds while the block lasts; a look that fails tells nothing."""

    async def poll() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    found = await server.queue()
                if found is not None:
                    tell(found.running, found.waiting)
            await asyncio.sleep(every)

    polling = asyncio.create_task(poll())
    try:
        yield
    finally:
        polling.cancel()
        await asyncio.wait([polling])


__all__ = ["Acceptance", "AcceptanceReading", "look", "read_acceptance", "total"]

PREFIX = "vllm:spec_decode_num_"
COUNTERS = {f"{PREFIX}drafts": "drafts", f"{PREFIX}draft_tokens": "drafted", f"{PREFIX}accepted_tokens": "accepted"}
WRITTEN = "vllm:generation_tokens"
_NAMES = "|".join([*COUNTERS, WRITTEN])
_LINE = re.compile(rf"({_NAMES})(?:_total)?(?:{{.*}})? (.*)$".encode(), re.MULTILINE)  # comments have no number there


@dataclass(frozen=True, slots=True)
class AcceptanceReading:
    """
    What a server that speculates had *counted* by second *at* of the event loop's clock, since it was started.

    *written* are all tokens that it wrote for anybody, 0 if it does not tell.
    """

    at: float
    counted: Acceptance
    written: int = 0

    def since(self, earlier: AcceptanceReading) -> Acceptance | None:
        """What was counted since an *earlier* look; None if the server was started anew in between."""
        grown = self.counted - earlier.counted
        anew = min(grown.drafts, grown.drafted, grown.accepted, self.written - earlier.written) < 0
        return None if anew else grown


def look(metrics: bytes, at: float) -> AcceptanceReading | None:
    """Take a look at the counters; None if they are not there."""
    sums = _sums(metrics)
    counted = _counted(sums)
    return AcceptanceReading(at, counted, sums.get(WRITTEN, 0)) if counted is not None else None


def read_acceptance(metrics: bytes) -> Acceptance | None:
    """Add up the counters of every engine behind a server; None if they are not there: it does not speculate."""
    return _counted(_sums(metrics))


def _counted(sums: Mapping[str, int]) -> Acceptance | None:
    counted = {COUNTERS[name]: value for name, value in sums.items() if name in COUNTERS}
    return Acceptance(**counted) if len(counted) == len(COUNTERS) else None


def _sums(metrics: bytes) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, value in _LINE.findall(metrics):
        with suppress(ValueError):
            sums[name.decode()] = sums.get(name.decode(), 0) + int(float(value))
    return sums


def total(found: Iterable[Acceptance | None]) -> Acceptance | None:
    """Add up what several servers tell; None if none does."""
    told = [one for one in found if one is not None]
    return sum(told, Acceptance()) if told else None


ACCEPTANCE_POLL_SECONDS = 1.0  # seconds between two looks
LEAST = 0.25  # the same, if somebody would like one now
WITHIN = 5 * ACCEPTANCE_POLL_SECONDS  # seconds for one look; an older one tells nothing about a run that begins
UNREAD = 32  # tokens that a request may have been written beyond those that arrived, if it did not come to its end


class SpeculatingServer(Protocol):
    """A server that may speculate: when it was *asked* last, and what was *seen* then, if it does."""

    asked: float
    seen: AcceptanceReading | None

    @property
    def settings(self) -> Endpoint: ...

    async def acceptance(self) -> Acceptance | None: ...


Named = tuple[str, SpeculatingServer]


class AcceptanceMonitor:
    """Looks at those of the *servers*, each with the role or the path of its model, that speculate."""

    def __init__(self, servers: Callable[[], Iterable[Named]]) -> None:
        self._servers = servers
        self._wanted = asyncio.Event()
        self._last: dict[tuple[str, str], AcceptanceReading] = {}
        self._present = 0
        self._gone = self._crowded = -inf  # when anybody left, and when several were there, for the last time
        self.totals: dict[str, Acceptance] = {}  # since the first look, whoever it was done for
        self.speculating: tuple[Named, ...] = ()

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Look now and then while the block lasts."""
        self._note()
        looking = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])

    def want(self) -> None:
        """Ask for a look soon; return at once."""
        if self.speculating:
            self._wanted.set()

    @contextmanager
    def company(self) -> Generator[None]:
        """Count somebody in who has the servers work while the block lasts: it is no run's own."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> float:
        """Count somebody in; return when anybody left for the last time."""
        self._present += 1
        return self._gone

    def leave(self) -> None:
        """Count somebody out."""
        if self._present > 1:
            self._crowded = _now()
        self._present -= 1
        self._gone = _now()

    @property
    def crowded(self) -> float:
        """When several were there at the same time, for the last time."""
        return _now() if self._present > 1 else self._crowded

    async def _watch(self) -> None:
        patience = ACCEPTANCE_POLL_SECONDS
        while True:
            self._wanted.clear()
            await asyncio.gather(*[_look(server) for _, server in self.speculating if _due(server, patience)])
            self._note()
            patience = ACCEPTANCE_POLL_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(ACCEPTANCE_POLL_SECONDS):
                    await self._wanted.wait()
                    patience = LEAST

    def _note(self) -> None:
        self.speculating = tuple(one for one in self._servers() if one[1].seen is not None)
        for name, server in self.speculating:
            if (seen := server.seen) is not None:
                grown = seen.since(self._last.get((name, server.settings.url), seen))
                self.totals[name] = self.totals.get(name, Acceptance()) + (grown or Acceptance())
                self._last[name, server.settings.url] = seen


class AcceptanceWindows:
    """
    What one run tells of the servers *underneath*, window by window, each from one look to the next.

    *clock* returns the seconds since the run began. It tells nothing but between `begin` and `end`.
    """

    def __init__(self, underneath: AcceptanceMonitor, clock: Callable[[], float]) -> None:
        self._underneath, self._clock = underneath, clock
        self._bases: dict[tuple[str, str], AcceptanceReading] = {}
        self._open = self._answers = False
        self._preceded = -inf  # when anybody left before, for the last time
        self._own, self._served = Counter[str](), Counter[str]()  # tokens that the run and the servers tell of

    def begin(self) -> None:
        """Count the run in, and begin with the looks that are there."""
        began = _now()
        self._zero = began - self._clock()
        self._preceded = self._underneath.enter()
        for name, server in self._underneath.speculating:
            if server.seen is not None and began - server.seen.at <= WITHIN:
                self._bases[name, server.settings.url] = server.seen
        self._open = True

    def end(self) -> None:
        """Count the run out."""
        if self._open:
            self._open = False
            self._underneath.leave()

    def before(self, event: Event) -> Iterator[Event]:
        """What is to be told before *event*, and then *event* itself."""
        if self._open and self._underneath.speculating:
            if isinstance(event, Called):
                self._own[event.path or event.role] += event.written + (0 if event.fate == "done" else UNREAD)
            elif isinstance(event, Answering) and not self._answers:
                self._answers = True  # It no longer waits for its server, and may be over soon.
                self._underneath.want()
            over = isinstance(event, Finished)
            for name, server in self._underneath.speculating:
                yield from self._grown(name, server, over=over)
        yield event

    def _grown(self, name: str, server: SpeculatingServer, *, over: bool) -> Iterator[Speculated]:
        if (seen := server.seen) is None:
            return
        place = name, server.settings.url
        base = self._bases.setdefault(place, seen)
        if (grown := seen.since(base)) is None:
            self._bases[place] = seen
            return
        if not over and not grown.drafted:
            return
        self._bases[place] = seen
        self._served[name] += seen.written - base.written
        crowded = max(self._preceded, self._underneath.crowded) >= base.at
        # More than the run has ever asked for: then somebody was there whom nobody here knows of.
        foreign = over and self._served[name] > self._own[name] + UNREAD
        if seen.at > base.at or foreign:
            yield self._told(name, server, grown, base.at, seen.at, shared=crowded or foreign)

    def _told(
        self, name: str, server: SpeculatingServer, grown: Acceptance, since: float, until: float, *, shared: bool
    ) -> Speculated:
        role, _, within = name.partition(".")
        return Speculated(
            cast("Party", role),
            grown,
            since - self._zero,
            until - self._zero,
            shared,
            server.settings.url,
            name if within else "",
        )


def _due(server: SpeculatingServer, patience: float) -> bool:
    """Whether to look now; not where requests are rationed, for it would be one of them."""
    return server.settings.requests_per_second is None and _now() - server.asked >= patience


async def _look(server: SpeculatingServer) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN):
            await server.acceptance()


def _now() -> float:
    return asyncio.get_running_loop().time()


CACHE_CONFIG = b"vllm:cache_config_info{"
UNIT = 16  # tokens: divides the blocks of hybrids, which are multiples of 16 on GPUs and of 128 on CPUs
FINE = 128  # tokens; no block of a model without recurrent layers is larger
MATCH_UNIT, MODE, RETENTION = "prefix_match_unit", "mamba_cache_mode", "prefix_cache_retention_interval"
CHECKPOINTS = ("enable_mamba_shared_prefix_checkpoint", "enable_mamba_fine_grained_prefix_cache")  # newest name first

_CACHE_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """
    The prefix cache as the server describes it; None for what it does not say.

    *enabled*: prefixes are cached. *block* and *unit* are in tokens: what is allocated at a time, and where a cached
    prefix may end if that is finer. *mode* is how recurrent states are cached, None for a model without any. *known*
    are the names of all settings, which tell the flags that this version of vLLM has.
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
        """Whether a state is saved where a prompt ends, so that a prompt sent for that purpose alone is worth it."""
        return self.hybrid and self.enabled is not False and self.unit is not None and self.unit < (self.block or 0)

    @property
    def finest(self) -> int:
        """The match unit to start this server with, in tokens: vLLM wants one that divides the block."""
        return gcd(self.block or UNIT, 2 * UNIT)


def read_cache_config(metrics: bytes) -> CacheConfig | None:
    """Read the configuration of the first engine behind a server; None if it shows none."""
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
    said = labels.get(name, "")
    return int(said) if said.isdigit() else None
