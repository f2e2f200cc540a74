"""
Measure a pair of servers within a hard limit of time: paces, verdicts, drafts after beginnings of
chains, then loads.

Each part has a share of the time. A part that is through sooner leaves its time to the others; what
is under way at its end is cancelled, and what was seen until then counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, cycle, islice
from typing import TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Step
from stepspec.orchestrator.concurrency import at_once, background
from stepspec.orchestrator.endpoints import (
    GREEDY,
    Endpoint,
    ModelEndpoint,
    ReplicatedModel,
    Sampling,
)
from stepspec.orchestrator.endpoints.client import separate_cache
from stepspec.orchestrator.endpoints.probe import Capabilities
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnreachable, StepspecError
from stepspec.orchestrator.events import Committed, Event
from stepspec.orchestrator.interfaces import Model
from stepspec.orchestrator.trace import Stopwatch
from stepspec.settings import Settings

from ..plain import solve_plain
from ..sample import Arm, derive_seed
from .drafts import Beginning, repairs_whole_steps, try_draft
from .measurements import AHEAD, DraftTrial, Measurements, ServerMeasurement
from .prediction import predict

Arrival: TypeAlias = tuple[float, int]  # of tokens: the second, and how many there were by then
# a beginning, and the tokens of the step that follows, if it is known
Place: TypeAlias = tuple[Chain, int | None]
OnPart: TypeAlias = Callable[[str, int], Callable[[], object]]

REPEATS, CONTENDED = 4, 2  # of the measurement of a pace, alone and while the other server reads
TOKENS = 48  # that a stream writes to measure the time between them
ONE_PIECE = 0.0005  # seconds: tokens that arrive closer together came in one piece
# seconds that a stream lasts at least if it shows how many were written at the same time
SHORTEST = 0.05
ALONE = 3  # drafts of each method with nothing beside them
MOST_TOKENS = 512  # of the beginning of a chain
PLACES = 16  # of one chain where drafts begin
LOADED = 2  # methods, the best ones, that are measured under load
AT_ONCE = 8  # chains or drafts at the same time, of which only what was written counts
SHARES = {
    "ready": 0.15,
    "large": 0.24,
    "small": 0.3,
    "beginning": 0.36,
    "verdicts": 0.42,
    "chains": 0.52,
    "drafts": 0.65,
    "loads": 1.0,
}
UNLIMITED = {"max_concurrency": 4096}  # of an endpoint: the queue is to be the server's
# methods that let the large model score text
SCORING = frozenset({"bild", "reading", "reflective"})

NO_SCORES = "the large model's server does not score text (prompt_logprobs): it needs vLLM"


@dataclass
class Clock:
    """The limit of a measurement that begins now, in *minutes*, on the loop's own clock."""

    minutes: float
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began

    def over(self, part: str) -> bool:
        return self.seconds >= SHARES[part] * self.minutes * 60

    @asynccontextmanager
    async def limit(self, part: str, share: float = 1.0) -> AsyncGenerator[None]:
        """Leave the block after this *share* of the time that is left to *part*."""
        left = SHARES[part] * self.minutes * 60 - self.seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(share * left):
                yield


@asynccontextmanager
async def opened(endpoint: ModelEndpoint, sampling: Sampling = GREEDY) -> AsyncGenerator[Model]:
    """Yield a model of *endpoint*, at one of its replicas."""
    model = endpoint.model(sampling)
    try:
        yield model
    finally:
        if isinstance(model, ReplicatedModel):
            model.leave()


class Streams:
    """
    Streams of a model that begins to reason about several *problems* at the same time, as far as
    they are written.

    The text is the model's own, so that token-level speculation under it accepts as many tokens as
    in a run.
    """

    def __init__(
        self, endpoint: ModelEndpoint, problems: Sequence[str], over: Callable[[], bool]
    ) -> None:
        self._endpoint, self._problems, self._over = endpoint, problems, over
        self._arrived: list[list[Arrival]] = [[] for _ in problems]
        self._began = 0.0

    async def write(self) -> None:
        """Write every stream to its end, or until the time is over and it has two tokens."""
        clock = asyncio.get_running_loop().time
        self._began = clock()

        async def stream(problem: str, arrived: list[Arrival]) -> None:
            def until(step: Step) -> bool:
                arrived.append((clock(), len(step.tokens)))
                return len(arrived) > 1 and self._over()

            async with opened(self._endpoint) as model:
                await model.write(Chain.of(problem), stop=(), limit=TOKENS, until=until)

        await at_once(map(stream, self._problems, self._arrived))

    @property
    def pace(self) -> tuple[float, int] | None:
        return pace([times for times in self._arrived if len(times) > 1])

    @property
    def first(self) -> float:
        """Seconds until the first token."""
        return min(times[0][0] for times in self._arrived if times) - self._began


@dataclass
class RunPace:
    """
    Observes one run after the other: the *seconds* and the *tokens* after the first step of each.
    """

    seconds: float = 0.0
    tokens: int = 0
    mark: float | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.tokens += len(event.step.tokens) if self.mark is not None else 0
            self.stop()
            self.mark = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """
        Count the seconds since the last step, also those of a step that is cut: slow steps are cut
        most often.
        """
        self.seconds += (
            asyncio.get_running_loop().time() - self.mark if self.mark is not None else 0.0
        )
        self.mark = None


def pace(streams: Sequence[Sequence[Arrival]]) -> tuple[float, int] | None:
    """
    The seconds between two tokens of a stream, and how many *streams* were written at the same time
    at most.

    Where all streams overlap, the tokens of that time count. Where they do not, the server was
    full, and each stream counts from its first token to its last; streams that are over at once say
    nothing about that. None without streams.
    """
    if not streams:
        return None
    starts, ends = (
        sorted(times[0][0] for times in streams),
        sorted(times[-1][0] for times in streams),
    )
    most = max(
        sum(start <= at for start in starts) - sum(end < at for end in ends) for at in starts
    )
    if any(times[-1][0] - times[0][0] < SHORTEST for times in streams):
        most = len(streams)
    windows = [
        [arrival for arrival in times if starts[-1] <= arrival[0] <= ends[0]] for times in streams
    ]
    if most < len(streams) or any(len(window) < 2 for window in windows):
        windows = [list(times) for times in streams]
    begun = [_first_piece(window) for window in windows]
    seconds = sum(window[-1][0] - at for window, (at, _) in zip(windows, begun, strict=True))
    written = sum(
        window[-1][1] - tokens for window, (_, tokens) in zip(windows, begun, strict=True)
    )
    return (seconds / written, most) if written and seconds > 0 else None


def _first_piece(window: Sequence[Arrival]) -> Arrival:
    """
    When the first token of *window* arrived, and how many there were by then: several may come in
    one piece.
    """
    first, _ = window[0]
    together = [tokens for at, tokens in window if at - first < ONE_PIECE]
    return window[0] if len(together) == len(window) else (first, together[-1])


@dataclass
class Measuring:
    """
    Measures the pair of *solver* with *methods* on *problems*; *on_part* shows the progress of each
    part.
    """

    solver: Solver
    methods: Sequence[Arm]
    problems: Sequence[str]
    clock: Clock
    seed: int
    on_part: OnPart
    capabilities: dict[str, Capabilities] = field(default_factory=dict[str, Capabilities])
    plain: list[float] = field(default_factory=list[float])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    runs: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    trials: dict[str, list[DraftTrial]] = field(default_factory=dict[str, list[DraftTrial]])
    beginnings: dict[int, Beginning] = field(default_factory=dict[int, Beginning])

    async def ready(self) -> None:
        """
        Learn what the servers can do, and let them do once what they do only once, such as
        compiling.
        """
        async with self.clock.limit("ready"):
            for end in (self.solver.small, self.solver.large):
                self.capabilities[end.role] = await end.capabilities()
            await self.solver.warm_up()

    async def paces(self, endpoint: ModelEndpoint, step: Callable[[], object]) -> ServerMeasurement:
        """
        Measure streams that have the server of *endpoint* to themselves, and for the large model
        ordinary requests.

        Only the first stream may take longer than its part. Raise `StepspecError` if it is not even
        two tokens long.
        """
        between, first = list[float](), list[float]()
        over = partial(self.clock.over, endpoint.role)
        for repeat in range(REPEATS):
            problem = self.problems[repeat % len(self.problems)]
            streams = Streams(endpoint, [problem], over)
            async with self.clock.limit(endpoint.role if between else "chains"):
                await streams.write()
            if streams.pace is not None:
                between.append(streams.pace[0])
                first.append(streams.first)
            if endpoint is self.solver.large:
                async with self.clock.limit(endpoint.role):
                    await self._plain(problem)
            step()
            if over():
                break
        if not between:
            raise StepspecError(
                f"the {endpoint.role} model at {endpoint.settings.url} wrote no two tokens about a"
                " problem: does `stepspec solve` get an answer from it?"
            )
        can = self.capabilities.get(endpoint.role)
        return ServerMeasurement(
            endpoint.role, endpoint.settings.url, endpoint.name, {1: tuple(between)}, tuple(first),
            prefix_cache=can.prefix_cache if can else None, suffix_scoring=bool(can and can.suffix_scoring),
        )  # fmt: skip

    async def _plain(self, problem: str) -> None:
        sampling = self.solver.settings.run.sampling.with_seed(self.seed)
        with suppress(StepspecError):  # a server without chats is measured by its streams alone
            _, paces = await solve_plain(
                self.solver, problem, sampling, Budget(TOKENS, answer=1), Stopwatch()
            )
            self.plain += [paces["large"]] if "large" in paces else []

    async def chain(self, number: int, limit: int, part: str) -> None:
        """Let the large model write the beginning of its chain about a problem."""
        self.beginnings[number] = beginning = await Beginning.of(self.solver, self.problems[number])
        sampling = self.solver.settings.run.sampling.with_seed(derive_seed(self.seed, number, 0))
        async with opened(self.solver.large, sampling) as model:
            await beginning.write(model, limit, lambda: self.clock.over(part))

    async def attempt(
        self, arm: Arm, chain: Chain, own: int | None, *, alone: bool = False
    ) -> None:
        """Try one draft of *arm*; a method whose requests fail is skipped, with the reason."""
        if arm.name in self.skipped:
            return
        try:
            policy = self.solver.policy(arm.policy, arm.options)
            repair = own if repairs_whole_steps(arm) else None
            self.trials[arm.name].append(await try_draft(policy, chain, own, repair, alone=alone))
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            self.skipped[arm.name] = str(exc)

    async def verdicts(self) -> None:
        """
        Try drafts of each method with nothing beside them, after the beginning of the first chain.
        """
        step = self.on_part("verdicts", ALONE * len(self.methods) + 1)
        async with self.clock.limit("verdicts"):
            await self.chain(0, 4 * TOKENS, "beginning")
            step()
        beginning = self.beginnings.get(0)
        async with self.clock.limit("verdicts"):
            for chain, own in islice(cycle(beginning.places if beginning else []), ALONE):
                for arm in self.methods:
                    await self.attempt(arm, chain, own, alone=True)
                    step()

    async def contended(self) -> tuple[float, ...]:
        """
        Measure the time between tokens of the small model while the large one reads one prompt
        after the other.
        """
        found = list[float]()

        async def read() -> None:
            for number in count():
                with separate_cache(f"contended {number}"):
                    async with opened(self.solver.large) as model:
                        await model.write(
                            Chain.of(self.problems[number % len(self.problems)]), stop=(), limit=1
                        )

        for _ in range(CONTENDED):
            streams = Streams(
                self.solver.small, self.problems[:1], partial(self.clock.over, "verdicts")
            )
            async with self.clock.limit("verdicts"), background(read()):
                await streams.write()
            found += [streams.pace[0]] if streams.pace else []
        return tuple(found)

    async def loads(
        self, large: ServerMeasurement, numbers: Sequence[int], arms: Sequence[Arm]
    ) -> ServerMeasurement:
        """
        Measure so many streams of the large model at once, which *large* gets, then as many runs of
        all *arms*.
        """
        cells = [(number, arm) for number in numbers for arm in (None, *arms)]
        step = self.on_part("loads", len(cells))
        for place, (number, arm) in enumerate(cells):
            limit = self.clock.limit("loads", 1 / (len(cells) - place))
            if arm is not None:
                await self._runs(arm, number, limit)
            else:
                streams = Streams(
                    self.solver.large, list(islice(cycle(self.problems), number)), lambda: False
                )
                async with limit:
                    await streams.write()
                large = with_load(large, number, streams.pace)
            step()
        return large

    async def _runs(self, arm: Arm, number: int, limit: AbstractAsyncContextManager[None]) -> None:
        """Solve *number* problems at once with *arm*, one after the other, until the *limit*."""
        options = arm.resolve(self.solver.settings.run).model_copy(
            update={"auto": False, "ahead": AHEAD}
        )
        paces = [RunPace() for _ in range(number)]

        async def user(place: int, pace: RunPace) -> None:
            for problem in islice(cycle(self.problems), place, None, number):
                await self.solver.solve(problem, options, observe=pace)
                pace.mark = None

        try:
            async with limit:
                with separate_cache(f"{arm.name} {number}"):
                    await at_once(map(user, range(number), paces))
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            self.skipped[arm.name] = str(exc)
            return
        for each in paces:
            each.stop()
        if tokens := sum(pace.tokens for pace in paces):
            self.runs[arm.name, number] = sum(pace.seconds for pace in paces) / tokens

    async def drafts(self) -> None:
        """
        Write the beginnings of all chains, several at a time, then try drafts of every method after
        them.
        """
        step, gate = self.on_part("chains", len(self.problems)), asyncio.Semaphore(AT_ONCE)

        async def begin(number: int) -> None:
            async with gate:
                if not self.clock.over("chains"):
                    await self.chain(
                        number, min(MOST_TOKENS, self.solver.settings.run.budget.tokens), "chains"
                    )
            step()

        async with self.clock.limit("chains"):
            await at_once(map(begin, range(len(self.problems))))
        chosen = list(
            spread((beginning.places for beginning in self.beginnings.values()), self.seed)
        )
        step = self.on_part("drafts", len(chosen) * len(self.methods))

        async def draft(arm: Arm, chain: Chain, own: int | None) -> None:
            async with gate:
                await self.attempt(arm, chain, own)
            step()

        async with self.clock.limit("drafts"):
            await at_once(draft(arm, chain, own) for chain, own in chosen for arm in self.methods)


def with_load(
    server: ServerMeasurement, streams: int, measured: tuple[float, int] | None
) -> ServerMeasurement:
    """Add the pace *measured* with so many *streams* at once."""
    if measured is None:
        return server
    seconds, most = measured
    sequences = most if most < streams else server.sequences
    key = min(streams, sequences or streams)
    known = server.between.get(key, ())
    return replace(server, sequences=sequences, between={**server.between, key: (*known, seconds)})


def spread(chains: Iterable[Sequence[Place]], seed: int) -> Iterator[Place]:
    """
    At most `PLACES` places of each chain, drawn by *seed*, in turns, so that a cut leaves a fair
    part.
    """
    rng = random.Random(seed)
    queues = [rng.sample(places, min(PLACES, len(places))) for places in chains]
    for at in range(PLACES):
        yield from (queue[at] for queue in queues if at < len(queue))


async def measure(
    solver: Solver, methods: Sequence[Arm], problems: Sequence[str], concurrency: Sequence[int], minutes: float,
    seed: int = 0, on_part: OnPart = lambda part, total: lambda: None,
) -> Measurements:  # fmt: skip
    """
    Measure both servers of *solver* and drafts of the *methods* after beginnings of chains, within
    *minutes*.

    *concurrency* are the numbers of problems at once, besides one, for which runs of the best
    methods are measured. *on_part* is called with the name of each part and its number of units;
    what it returns is called after each unit. Raise `StepspecError` for a pair that cannot be
    measured at all, with the cause and the cure.
    """
    check_models(solver)
    clock = Clock(minutes)
    work = Measuring(
        solver, methods, problems, clock, seed, on_part, trials={arm.name: [] for arm in methods}
    )
    await work.ready()
    if (can := work.capabilities.get("large")) is not None and can.prompt_logprobs is False:
        work.skipped |= {arm.name: NO_SCORES for arm in methods if arm.policy in SCORING}
    step = on_part("paces", 2 * REPEATS)
    large, small = [await work.paces(end, step) for end in (solver.large, solver.small)]
    await work.verdicts()
    small = replace(small, contended=await work.contended())
    await work.drafts()
    arms = tuple(arm for arm in methods if work.trials[arm.name] or arm.name not in work.skipped)
    if not arms:
        raise StepspecError(
            f"no method can be measured: {'; '.join(f'{k}: {v}' for k, v in work.skipped.items())}"
        )

    def measured(large: ServerMeasurement) -> Measurements:
        return Measurements(
            small, large, tuple(work.plain), arms,
            tuple(beginning.seen for beginning in work.beginnings.values()),
            {arm.name: tuple(work.trials[arm.name]) for arm in arms}, clock.seconds, work.skipped,
            work.runs,
        )  # fmt: skip

    best = [method.arm for method in predict(measured(large)).methods[:LOADED]]
    return measured(
        await work.loads(large, sorted({number for number in concurrency if number > 1}), best)
    )


def check_models(solver: Solver) -> None:
    """Raise `ConfigurationError` if both servers serve the same model."""
    if solver.small.name == solver.large.name:
        raise ConfigurationError(
            f"both servers serve {solver.large.name!r}: no model drafts for itself or judges"
            " itself; name a smaller one with --small, or serve two different models under their"
            " own names (--served-model-name)"
        )


def unlimited(settings: Settings) -> Settings:
    """Return *settings* of a solver with which no request to a model waits in this program."""
    ends = {"small": settings.small, "large": settings.large}
    update = {
        role: end.model_copy(update=UNLIMITED)
        for role, end in ends.items()
        if isinstance(end, Endpoint)
    }
    return settings.model_copy(update=update)
