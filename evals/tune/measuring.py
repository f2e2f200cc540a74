"""
Measure a pair of servers within a limit of time: paces, chains, drafts with verdicts, short runs.

Each part has a share of the time, and leaves what it does not need to the others. At its end, what
is under way is cancelled, and what was seen until then counts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle, islice, zip_longest
from statistics import fmean

from stepspec.api import Solver
from stepspec.orchestrator.chain import Chain
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import ReplicatedEndpoint
from stepspec.orchestrator.endpoints.request_context import separate_cache
from stepspec.orchestrator.errors import ConfigurationError, EndpointUnreachable, StepspecError

from ..sample import Arm, derive_seed
from .drafts import Place, Trier, begin_chain, places_of, write_chain
from .judging import is_error
from .paces import Arrival, PairPaces, ServerPace, at_most, opened, paces_of, write_streams
from .prediction import MethodTrials, predict
from .rounds import Round, RoundWatch

PACE_STREAMS = 4  # one after the other, at each server
MAX_CHAIN_TOKENS = 2048
CHAIN_PLACES = 20  # places of one chain
ALONE_PLACES = 4  # places in which nothing else runs, to time verdicts
READY_SHARE = 0.1  # of the time, at which this part ends
LARGE_SHARE = 0.15
SMALL_SHARE = 0.2
PACES_SHARE = 0.25
CHAINS_SHARE = 0.5
DRAFTS_SHARE = 0.75


@dataclass
class Measured:
    """All that is known of a pair so far."""

    methods: dict[str, MethodTrials]
    """What was measured of each method, by its name."""
    paces: PairPaces | None = None
    """How fast both servers write; None: not yet known."""
    chains: dict[int, Chain] = field(default_factory=dict[int, Chain])
    """The large model's chains that have a step, by the number of the problem."""
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    """Why a method is not measured any more, by its name."""
    seconds: float = 0.0
    """Seconds that it took."""
    interrupted: bool = False
    """Whether it was cut by Ctrl-C."""

    @classmethod
    def of(cls, arms: Sequence[Arm]) -> Measured:
        """Nothing is known of *arms* yet."""
        return cls({arm.name: MethodTrials(arm) for arm in arms})

    @property
    def lengths(self) -> Mapping[int, int]:
        """The tokens of each chain, by the number of the problem."""
        return {number: chain.tokens for number, chain in self.chains.items()}

    @property
    def tried(self) -> list[MethodTrials]:
        """The methods of which anything is known."""
        return [method for method in self.methods.values() if method.trials]

    @property
    def going_on(self) -> list[MethodTrials]:
        """The methods whose requests have not failed."""
        return [method for name, method in self.methods.items() if name not in self.skipped]


class Measuring:
    """
    One measurement of the pair of a solver.

    *on_part* is called with the name of each part when it begins.
    """

    def __init__(
        self,
        solver: Solver,
        arms: Sequence[Arm],
        problems: Sequence[str],
        users: int,
        on_part: Callable[[str], object] = lambda part: None,
    ) -> None:
        self._solver = solver
        self._problems = problems
        self._users = users
        self._on_part = on_part
        self._minutes = 0.0
        self._began = 0.0  # on the clock of the event loop
        self.found = Measured.of(arms)

    async def measure(self, minutes: float) -> Measured:
        """
        Measure for at most so many *minutes*, and return what is known.

        Nothing but the paces is measured where no method can pay. A cancellation, as by Ctrl-C,
        ends the measurement. Raise `StepspecError` for a pair that cannot be measured at all, with
        the cause and the cure.
        """
        check_models(self._solver)
        self._minutes = minutes
        self._began = asyncio.get_running_loop().time()
        self._on_part("paces")
        try:
            async with at_most(self._left(READY_SHARE)):
                await self._solver.warm_up()
            self.found.paces = await self._paces()
            if not self.found.paces.hopeless:
                await self._chains()
                await self._drafts()
                await self._runs(self.found.paces)
        except asyncio.CancelledError:
            self.found.interrupted = True
        self.found.seconds = minutes * 60 - self._left()
        return self.found

    def _left(self, share: float = 1.0) -> float:
        """Seconds until this *share* of the time is over."""
        return self._began + share * self._minutes * 60 - asyncio.get_running_loop().time()

    async def _paces(self) -> PairPaces:
        large = await self._pace(self._solver.large, self._left(LARGE_SHARE))
        small = await self._pace(self._solver.small, self._left(SMALL_SHARE))
        streams: list[list[Arrival]] = []
        problems = list(islice(cycle(self._problems), self._users))
        async with at_most(self._left(PACES_SHARE)):
            await write_streams(self._solver.large, problems, streams)
        loaded = fmean(paces_of(streams) or large.tokens)
        return PairPaces(
            small,
            large,
            loaded,
            self._users,
            self._solver.settings.run.ahead,
        )

    async def _pace(self, endpoint: ReplicatedEndpoint, seconds: float) -> ServerPace:
        """
        Measure streams that have the server of *endpoint* to themselves.

        Raise `StepspecError` if it writes no two tokens within so many *seconds*.
        """
        streams: list[list[Arrival]] = []
        async with at_most(seconds):
            for problem in islice(cycle(self._problems), PACE_STREAMS):
                await write_streams(endpoint, [problem], streams)
        tokens = paces_of(streams)
        if not tokens:
            raise StepspecError(
                f"the {endpoint.role} model at {endpoint.settings.url} wrote no two tokens in"
                f" {seconds:.0f} s: does `stepspec solve` get an answer from it? Then give more"
                " --minutes",
            )
        first = min(some[1].seconds - some[0].seconds for some in streams if len(some) > 1)
        return ServerPace(tokens, first)

    async def _chains(self) -> None:
        """Let the large model write its chains, several at a time."""
        self._on_part("chains")
        gate = asyncio.Semaphore(self._users)
        limit = min(MAX_CHAIN_TOKENS, self._solver.settings.run.budget.tokens)

        async def write(number: int, problem: str) -> None:
            async with gate:
                start = await begin_chain(self._solver, problem)
                sampling = self._solver.settings.run.sampling
                seeded = sampling.with_seed(derive_seed(0, number, 0))
                async with opened(self._solver.large, seeded) as model:
                    async for chain in write_chain(model, start, limit):
                        self.found.chains[number] = chain

        async with at_most(self._left(CHAINS_SHARE)):
            await at_once(map(write, count(), self._problems))

    async def _drafts(self) -> None:
        """
        Draft in places of all chains, and let every method judge the drafts.

        Raise `StepspecError` if requests of every method fail.
        """
        rng = random.Random(0)
        chains = self.found.chains
        places = list(spread([places_of(number, chains[number]) for number in sorted(chains)], rng))
        self._on_part("drafts")
        gate = asyncio.Semaphore(self._users)
        sampling = self._solver.settings.run.sampling.seeded()
        async with (
            opened(self._solver.small, sampling) as small,
            opened(self._solver.large, sampling) as large,
        ):
            trier = Trier(small, large, self._solver)

            async def attempt(number: int, place: Place) -> None:
                async with gate:
                    await self._attempt(trier, place, alone=number < ALONE_PLACES)

            async with at_most(self._left(DRAFTS_SHARE)):
                for number, place in enumerate(places[:ALONE_PLACES]):
                    await attempt(number, place)
                await at_once(map(attempt, count(ALONE_PLACES), places[ALONE_PLACES:]))
        if not self.found.going_on:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.found.skipped.items())
            raise StepspecError(f"no method can be measured: {reasons}")

    @contextmanager
    def _skipping(self, arm: Arm) -> Generator[None]:
        """Measure *arm* no more if a request in the block fails, unless the server is gone."""
        try:
            yield
        except EndpointUnreachable:
            raise
        except StepspecError as exc:
            self.found.skipped[arm.name] = str(exc)

    async def _attempt(self, trier: Trier, place: Place, *, alone: bool) -> None:
        """Draft once in *place*, and let every method judge the draft."""
        draft = await trier.small.write(place.chain, top=1)
        if not draft.tokens:
            return
        accepted: dict[str, bool] = {}
        for method in self.found.going_on:
            arm = method.arm
            with self._skipping(arm):
                trial = await trier.attempt(arm, place, draft, alone=alone)
                if trial is None:
                    continue
                method.trials.append(trial)
                accepted[arm.name] = trial.accepted
        if await is_error(trier.large, place, draft):
            for name, passed in accepted.items():
                self.found.methods[name].errors.append((place.problem, passed))

    async def _runs(self, paces: PairPaces) -> None:
        """Run the methods that may pay for some seconds each, alone and with all users."""
        figures = [predict(method, paces, self.found.lengths) for method in self.found.tried]
        figures.sort(key=lambda method: (method.careless, -method.alone.value))
        worth = [method.arm.name for method in figures if method.alone.value > 1]
        cells = [(name, size) for name in worth for size in (1, self._users)]
        self._on_part("runs")
        for place, (name, size) in enumerate(cells):
            if name not in self.found.skipped:
                method = self.found.methods[name]
                seconds = self._left() / (len(cells) - place)
                method.runs[size] = await self._run(method.arm, size, seconds)

    async def _run(self, arm: Arm, size: int, seconds: float) -> list[list[Round]]:
        """Solve problems with *arm*, *size* at the same time, for so many *seconds*."""
        defaults = self._solver.settings.run
        options = arm.resolve(defaults).model_copy(update={"auto": False, "ahead": defaults.ahead})
        watches: list[RoundWatch] = []

        async def user(first: int) -> None:
            for problem in islice(
                cycle(self._problems),
                first,
                first + len(self._problems),
                size,
            ):
                watches.append(RoundWatch())
                await self._solver.solve(problem, options, observe=watches[-1])

        with self._skipping(arm), separate_cache(f"{arm.name} {size}"):
            async with at_most(seconds):
                await at_once(map(user, range(size)))
        return [watch.rounds for watch in watches if watch.rounds]


def spread(chains: Sequence[Sequence[Place]], rng: random.Random) -> Iterator[Place]:
    """
    At most `CHAIN_PLACES` places of each chain, drawn by *rng*.

    The chains take turns, so that a cut leaves a fair part of the problems and of their chains.
    """
    queues = [rng.sample(places, min(CHAIN_PLACES, len(places))) for places in chains]
    for row in zip_longest(*queues):
        yield from filter(None, row)


def check_models(solver: Solver) -> None:
    """Raise `ConfigurationError` if both servers serve the same model."""
    if solver.small.name == solver.large.name:
        raise ConfigurationError(
            f"both servers serve {solver.large.name!r}: no model drafts for itself or judges"
            " itself; name a smaller one with --small, or serve two different models under their"
            " own names (--served-model-name)",
        )
