"""
Measure a pair of servers within a limit of time: paces, chains, drafts with verdicts, short runs.

Each part has a share of the time, and leaves what it does not need to the others. At its end, what
is under way is cancelled, and what was seen until then counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator.chain import Rollback, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import Endpoint, ModelEndpoint
from stepspec.orchestrator.endpoints.request_context import separate_cache
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnreachable, StepspecError
from stepspec.orchestrator.events import Committed, Event, Judged, Repaired
from stepspec.settings import Settings

from ..sample import Arm, derive_seed
from .drafts import LargeChain, Place, Round, Trier
from .judging import JudgedDraft, is_error, lets_through, slipped
from .paces import Arrival, ServerPace, opened, seconds_per_token, write_streams
from .prediction import MethodTrials, PairPaces, SeenRun, predict

OnPart: TypeAlias = Callable[[str, int], Callable[[], object]]
"""Called with the name and the size of a part; what it returns is called after each unit."""

PACE_REPEATS = 4
MAX_CHAIN_TOKENS = 2048
CHAIN_PLACES = 20  # places of one chain
ALONE_PLACES = 4  # places in which nothing else runs, to time verdicts
MAX_SLIPS = 60
UNLIMITED = {"max_concurrency": 4096}  # of an endpoint: the queue is to be the server's
READY = 0.1  # the share of the time at which this part ends
PACES = 0.15
CHAINS = 0.5
DRAFTS = 0.75
RUNS = 1.0


def silent(name: str, total: int) -> Callable[[], object]:
    """Show nothing of a part."""
    return lambda: None


@dataclass
class Clock:
    """The limit of a measurement that begins now."""

    minutes: float
    """The limit."""
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """When it began, on the clock of the event loop."""

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began

    def left(self, share: float) -> float:
        """Seconds until this *share* of the time is over."""
        return share * self.minutes * 60 - self.seconds

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None]:
        """Leave the block after so many *seconds*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                yield


@dataclass
class RunWatch:
    """Observes one run after the other, and keeps their rounds."""

    runs: list[SeenRun] = field(default_factory=list[SeenRun])
    """The runs that are over, or were cut."""
    _rounds: list[Round] = field(default_factory=list[Round])
    _judged: dict[int, Judged] = field(default_factory=dict[int, Judged])
    _cut: Step | None = None
    _first: float = 0.0
    _last: float = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Judged(index):
                self._judged[index] = event
            case Repaired(index, step, rollback):
                draft = self._cut or self._judged[index].draft
                kept = len(draft.cut(rollback.keep).tokens)
                drafted = len(draft.tokens)
                self._add(Round(drafted, 0, False, kept, rollback.keep, len(step.tokens), 0.0))
                self._cut = None
                self._judged.clear()  # the drafts after it are lost
            case Committed(index, step):
                judged = self._judged.pop(index, None)
                if judged is None:
                    return  # a repair, which has its own event
                verdict = judged.verdict
                if isinstance(verdict, Rollback) and verdict.chosen is None:
                    self._cut = judged.draft
                    return
                drafted = len(step.tokens) if step.author == "small" else 0
                written = len(step.tokens) - drafted
                self._add(Round(drafted, 0, True, drafted, len(step.text), written, 0.0))
            case _:
                pass

    def _add(self, round: Round) -> None:
        self._last = asyncio.get_running_loop().time()
        if not self._rounds:
            self._first = self._last
        self._rounds.append(round)

    def stop(self) -> None:
        """The run is over, or was cut: keep its rounds."""
        if self._rounds:
            self.runs.append(SeenRun(self._last - self._first, tuple(self._rounds)))
        self._rounds = []
        self._cut = None
        self._judged.clear()


@dataclass
class Measured:
    """All that is known of a pair so far."""

    arms: tuple[Arm, ...]
    """The methods that are compared."""
    paces: PairPaces | None = None
    """How fast both servers write; None: not yet known."""
    chains: dict[int, LargeChain] = field(default_factory=dict[int, LargeChain])
    """The large model's chains, by the number of the problem."""
    methods: dict[str, MethodTrials] = field(default_factory=dict[str, MethodTrials])
    """What was measured of each method, by its name."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Why a method is not measured any more, by its name."""
    seconds: float = 0.0
    """Seconds that it took."""
    interrupted: bool = False
    """Whether it was cut by Ctrl-C."""

    def weights(self) -> Mapping[int, float]:
        """How many tokens of its chain a token of a trial stands for, by the problem."""
        tried: dict[int, int] = {}
        for method in self.methods.values():
            own: dict[int, int] = {}
            for trial in method.trials:
                own[trial.problem] = own.get(trial.problem, 0) + trial.own
            tried |= {
                problem: max(tokens, tried.get(problem, 0)) for problem, tokens in own.items()
            }
        return {
            problem: self.chains[problem].written.tokens / tokens
            for problem, tokens in tried.items()
            if tokens
        }


class Measuring:
    """One measurement of the pair of a solver."""

    def __init__(
        self,
        solver: Solver,
        arms: Sequence[Arm],
        problems: Sequence[str],
        users: int,
        on_part: OnPart = silent,
    ) -> None:
        self._solver = solver
        self._problems = problems
        self._users = users
        self._on_part = on_part
        self.found = Measured(tuple(arms))
        self.found.methods = {arm.name: MethodTrials(arm) for arm in arms}

    async def measure(self, minutes: float, seed: int = 0) -> Measured:
        """
        Measure for at most so many *minutes*, and return what is known.

        Nothing but the paces is measured where no method can pay. A cancellation, as by Ctrl-C,
        ends the measurement. *seed* is that of the samples and the slips. Raise `StepspecError` for
        a pair that cannot be measured at all, with the cause and the cure.
        """
        check_models(self._solver)
        clock = Clock(minutes)
        rng = random.Random(seed)
        try:
            async with clock.limit(clock.left(READY)):
                await self._solver.warm_up()
            self.found.paces = await self._paces(clock)
            if not self.found.paces.hopeless:
                await self._chains(clock, seed)
                await self._drafts(clock, rng)
                self._require_methods()
                await self._runs(clock)
        except asyncio.CancelledError:
            self.found.interrupted = True
        self.found.seconds = clock.seconds
        return self.found

    async def _paces(self, clock: Clock) -> PairPaces:
        ends = (self._solver.large, self._solver.small)
        step = self._on_part("paces", len(ends) * PACE_REPEATS + 1)
        large, small = [await self._server(end, clock, step) for end in ends]
        streams: list[list[Arrival]] = [[] for _ in range(self._users)]
        problems = list(islice(cycle(self._problems), self._users))
        if self._users > 1:
            async with clock.limit(max(clock.left(PACES), clock.left(CHAINS) / 4)):
                await write_streams(self._solver.large, problems, streams)
        step()
        loaded = seconds_per_token(streams)
        large = ServerPace(large.tokens, large.first, loaded)
        return PairPaces(small, large, self._users, self._solver.settings.run.ahead)

    async def _server(
        self, endpoint: ModelEndpoint, clock: Clock, step: Callable[[], object]
    ) -> ServerPace:
        """
        Measure streams that have the server of *endpoint* to themselves.

        Raise `StepspecError` if not even the first one has two tokens when half of the time is
        over.
        """
        tokens: list[float] = []
        first: list[float] = []
        for repeat in range(PACE_REPEATS):
            arrived: list[Arrival] = []
            problem = self._problems[repeat % len(self._problems)]
            began = asyncio.get_running_loop().time()
            async with clock.limit(clock.left(PACES if tokens else CHAINS)):
                await write_streams(endpoint, [problem], [arrived], lambda: clock.left(PACES) < 0)
            pace = seconds_per_token([arrived])
            if pace is not None:
                tokens.append(pace)
                first.append(arrived[0].seconds - began)
            step()
            if clock.left(PACES) < 0:
                break
        if not tokens:
            raise StepspecError(
                f"the {endpoint.role} model at {endpoint.settings.url} wrote no two tokens about a"
                " problem: does `stepspec solve` get an answer from it?"
            )
        return ServerPace(tuple(tokens), min(first))

    async def _chains(self, clock: Clock, seed: int) -> None:
        """Let the large model write its chains, several at a time."""
        step = self._on_part("chains", len(self._problems))
        gate = asyncio.Semaphore(self._users)
        limit = min(MAX_CHAIN_TOKENS, self._solver.settings.run.budget.tokens)

        async def write(number: int, problem: str) -> None:
            async with gate:
                chain = await LargeChain.begin(self._solver, problem)
                self.found.chains[number] = chain
                sampling = self._solver.settings.run.sampling
                seeded = sampling.with_seed(derive_seed(seed, number, 0))
                async with opened(self._solver.large, seeded) as model:
                    await chain.write(model, limit, lambda: clock.left(CHAINS) < 0)
            step()

        async with clock.limit(clock.left(CHAINS)):
            await at_once(map(write, count(), self._problems))

    async def _drafts(self, clock: Clock, rng: random.Random) -> None:
        """Draft in places of all chains, and let every method judge the drafts."""
        chains = self.found.chains
        places = list(spread([chains[number].places(number) for number in sorted(chains)], rng))
        step = self._on_part("drafts", len(places))
        gate = asyncio.Semaphore(self._users)
        sampling = self._solver.settings.run.sampling.seeded()
        async with (
            opened(self._solver.small, sampling) as small,
            opened(self._solver.large, sampling) as large,
        ):
            trier = Trier(small, large, self._solver)

            async def attempt(number: int, place: Place) -> None:
                async with gate:
                    await self._attempt(trier, place, rng, alone=number < ALONE_PLACES)
                step()

            async with clock.limit(clock.left(DRAFTS)):
                for number, place in enumerate(places[:ALONE_PLACES]):
                    await attempt(number, place)
                await at_once(map(attempt, count(ALONE_PLACES), places[ALONE_PLACES:]))

    def _require_methods(self) -> None:
        """Raise `StepspecError` if no method could be measured, because requests failed."""
        skipped = self.found.skipped
        if len(skipped) == len(self.found.arms):
            reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
            raise StepspecError(f"no method can be measured: {reasons}")

    async def _attempt(
        self, trier: Trier, place: Place, rng: random.Random, *, alone: bool
    ) -> None:
        """Draft once in *place*, and let every method judge the draft and a slip."""
        draft = await trier.small.write(place.chain, top=1)
        if not draft.tokens:
            return
        error = await is_error(trier.large, place, draft)
        slip = slipped(place, rng)
        for arm in self.found.arms:
            if arm.name in self.found.skipped:
                continue
            known = self.found.methods[arm.name]
            slips = known.slips
            try:
                trial = await trier.attempt(arm, place, draft, alone=alone)
                if slip is not None and len(slips) < MAX_SLIPS:
                    judged = await trier.attempt(arm, place, slip.draft)
                    slips = (*slips, (place.problem, lets_through(judged, slip)))
            except EndpointUnreachable:
                raise
            except StepspecError as exc:
                self.found.skipped[arm.name] = str(exc)
                continue
            known = self.found.methods[arm.name]
            judged_draft = JudgedDraft(place.problem, len(draft.tokens), error, trial.accepted)
            self.found.methods[arm.name] = MethodTrials(
                arm, (*known.trials, trial), (*known.drafts, judged_draft), slips
            )

    async def _runs(self, clock: Clock) -> None:
        """Run the methods that may pay for some seconds each, alone and with all users."""
        paces = self.found.paces
        assert paces is not None
        weights = self.found.weights()
        tried = [method for method in self.found.methods.values() if method.trials]
        figures = [predict(method, paces, weights) for method in tried]
        figures.sort(key=lambda method: (method.careless, -method.alone.value))
        sizes = sorted({1, self._users})
        cells = [(each.arm, size) for each in figures if each.alone.value > 1 for size in sizes]
        step = self._on_part("runs", len(cells))
        for place, (arm, size) in enumerate(cells):
            if arm.name not in self.found.skipped:
                left = clock.left(RUNS) / (len(cells) - place)
                runs = await self._run(arm, size, clock, left)
                known = self.found.methods[arm.name]
                self.found.methods[arm.name] = MethodTrials(
                    arm, known.trials, known.drafts, known.slips, {**known.runs, size: runs}
                )
            step()

    async def _run(self, arm: Arm, size: int, clock: Clock, seconds: float) -> tuple[SeenRun, ...]:
        """Solve problems with *arm*, *size* at the same time, for so many *seconds*."""
        run = arm.resolve(self._solver.settings.run)
        options = run.model_copy(update={"auto": False, "ahead": self._solver.settings.run.ahead})
        watches = [RunWatch() for _ in range(size)]

        async def user(first: int, watch: RunWatch) -> None:
            for problem in islice(cycle(self._problems), first, first + len(self._problems), size):
                await self._solver.solve(problem, options, observe=watch)
                watch.stop()

        try:
            async with clock.limit(seconds):
                with separate_cache(f"{arm.name} {size}"):
                    await at_once(map(user, count(), watches))
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            self.found.skipped[arm.name] = str(exc)
        for watch in watches:
            watch.stop()
        return tuple(run for watch in watches for run in watch.runs)


def spread(chains: Sequence[Sequence[Place]], rng: random.Random) -> Iterator[Place]:
    """
    At most `CHAIN_PLACES` places of each chain, drawn by *rng*.

    The chains take turns, so that a cut leaves a fair part of the problems and of their chains.
    """
    queues = [rng.sample(places, min(CHAIN_PLACES, len(places))) for places in chains]
    for index in range(CHAIN_PLACES):
        yield from (queue[index] for queue in queues if index < len(queue))


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
