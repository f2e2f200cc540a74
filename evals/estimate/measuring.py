"""
Measure a pair of servers within a deadline: their times, then runs of every arm on a few problems.

The parts have shares of the deadline. A part that is through sooner leaves its time to the others; runs that are not
over at the end of their part are cancelled and not used.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from statistics import fmean, median
from typing import TypeAlias

from stepspec.api import Solver
from stepspec.orchestrator.answer import CLOSED
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Message, Step
from stepspec.orchestrator.concurrency import at_once
from stepspec.orchestrator.endpoints import GREEDY, ModelEndpoint, ReplicatedModel
from stepspec.orchestrator.endpoints.probe import Capabilities
from stepspec.orchestrator.errors import ConfigurationError, MissingCapability, StepspecError
from stepspec.orchestrator.events import Answered, Called, Committed, Event, Observer
from stepspec.orchestrator.interfaces import Model
from stepspec.orchestrator.trace import Moment, Recorder, Stopwatch
from stepspec.policies.grading import DIGITS
from stepspec.prompts import load

from ..arms import LARGE
from ..plan import turns
from ..sample import CUT, Arm, derive_seed, solve_once
from ..script import Script
from .measurements import Measurements, RecordedRun, ServerMeasurement, VerdictMeasurement

Arrival: TypeAlias = tuple[float, int]  # of tokens: the second, and how many there were by then

REPEATS, LEAST_REPEATS = 6, 2  # the least and the greatest of six enclose the true median with a probability of 97%
LOADED_REPEATS = 2  # with several streams at once, of which each measurement is the mean
TOKENS = 48  # that a stream writes to measure the time between them
ONE_PIECE = 0.0005  # seconds: tokens that arrive closer together came in one piece
SHORTEST = 0.05  # seconds that a stream lasts at least if it shows how many were written at the same time
SHORT, LONG = 16, 1024  # tokens of a prompt, besides the chat template
CHAIN = 400  # tokens after which verdicts are measured
ALONE = 2  # problems that every arm solves with nothing beside it
LEAST_TOKENS = 96  # of a run: fewer say little
ANSWER = 16  # tokens that a run which is cut keeps for its answer
AT_ONCE = 8  # runs at the same time, of which only what was written counts
TELLING = 0.3  # of the time to a first token, which reading a prompt takes at least if the time is to tell anything
DEFAULT_BLOCK = 16  # tokens, of a prefix cache that the server does not describe
SHARES = {"servers": 0.15, "alone": 0.4, "together": 0.8, "loads": 1.0}  # of the deadline, at the end of each part
SURE = 0.05  # of a judge's probability on grades, below which SpecReason accepts nothing
GRADING = frozenset({"specreason", "choose"})  # methods that ask the large model for grades
SCORING = frozenset({"bild", "reading", "reflective"})  # methods that let the large model score text
GRADE = load("specreason.grade")
NO_GRADE = (
    "asked for a grade, the large model puts {:.1%} of its probability on digits, so that every draft would be "
    "rejected: it does not understand the question; use another large model, or a method without grades"
)


@dataclass
class Clock:
    """The deadline of a measurement that begins now, in *minutes*, on the loop's own clock."""

    minutes: float
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time() - self.began

    def end(self, part: str) -> float:
        """When *part* has to end, in seconds since the beginning."""
        return SHARES[part] * self.minutes * 60

    def over(self, part: str) -> bool:
        return self.seconds >= self.end(part)

    def limit(self, part: str) -> asyncio.Timeout:
        """Limit a block to the end of *part*."""
        return asyncio.timeout_at(self.began + self.end(part))


@asynccontextmanager
async def opened(endpoint: ModelEndpoint, observe: Observer = lambda event: None) -> AsyncGenerator[Model]:
    """Yield a greedy model of *endpoint*, at one of its replicas."""
    model = endpoint.model(GREEDY, observe=observe)
    try:
        yield model
    finally:
        if isinstance(model, ReplicatedModel):
            model.leave()


async def time_streams(endpoint: ModelEndpoint, problems: Sequence[str]) -> tuple[float, int] | None:
    """
    Let the model begin to reason about all *problems* at the same time; return what `pace` makes of it.

    The text is the model's own, so that token-level speculation under it accepts as many tokens as in a run.
    """
    clock = asyncio.get_running_loop().time

    async def stream(problem: str) -> list[Arrival]:
        arrived: list[Arrival] = []

        def until(step: Step) -> bool:
            arrived.append((clock(), len(step.tokens)))
            return False

        async with opened(endpoint) as model:
            await model.write(Chain.of(problem), stop=(), limit=TOKENS, until=until)
        return arrived

    return pace([times for times in await at_once(map(stream, problems)) if len(times) > 1])


def pace(streams: Sequence[Sequence[Arrival]]) -> tuple[float, int] | None:
    """
    The seconds between two tokens of a stream, and how many *streams* were written at the same time at most.

    Where all streams overlap, the tokens of that time count. Where they do not, the server was full, and each stream
    counts from its first token to its last; streams that are over at once say nothing about that. None without streams.
    """
    if not streams:
        return None
    starts, ends = sorted(times[0][0] for times in streams), sorted(times[-1][0] for times in streams)
    most = max(sum(start <= at for start in starts) - sum(end < at for end in ends) for at in starts)
    if any(times[-1][0] - times[0][0] < SHORTEST for times in streams):
        most = len(streams)
    windows = [[arrival for arrival in times if starts[-1] <= arrival[0] <= ends[0]] for times in streams]
    if most < len(streams) or any(len(window) < 2 for window in windows):
        windows = [list(times) for times in streams]
    begun = [_first_piece(window) for window in windows]
    seconds = sum(window[-1][0] - at for window, (at, _) in zip(windows, begun, strict=True))
    written = sum(window[-1][1] - tokens for window, (_, tokens) in zip(windows, begun, strict=True))
    return (seconds / written, most) if written and seconds > 0 else None


def _first_piece(window: Sequence[Arrival]) -> Arrival:
    """When the first token of *window* arrived, and how many there were by then: several may come in one piece."""
    first, _ = window[0]
    together = [tokens for at, tokens in window if at - first < ONE_PIECE]
    return window[0] if len(together) == len(window) else (first, together[-1])


async def measure_server(
    endpoint: ModelEndpoint, can: Capabilities, problems: Sequence[str], clock: Clock, on_repeat: Callable[[], object]
) -> ServerMeasurement:
    """Measure one server that nobody else uses: the time between tokens, and the time to read a prompt."""
    between: list[float] = []
    per_token: list[float] = []
    cached: list[float] = []
    uncached: list[float] = []
    prompt = 0
    words = Words(endpoint)
    for repeat in range(REPEATS):
        if repeat >= LEAST_REPEATS and clock.over("servers"):
            break
        if (measured := await time_streams(endpoint, [problems[repeat % len(problems)]])) is not None:
            between.append(measured[0])
        short, long = [await words.prompt(length) for length in (SHORT, min(LONG, endpoint.room // 2))]
        brief, read_brief = await first_token(endpoint, short)
        first, read = await first_token(endpoint, long)
        again, _ = await first_token(endpoint, long)
        if read > read_brief:
            per_token.append((first - brief) / (read - read_brief))
        uncached.append(first)
        cached.append(again)
        prompt = read
        on_repeat()
    if not between or not per_token:
        raise StepspecError(
            f"the {endpoint.role} model at {endpoint.settings.url} wrote no two tokens about a problem: does "
            "`stepspec solve` get an answer from it?"
        )
    return ServerMeasurement(
        role=endpoint.role,
        url=endpoint.settings.url,
        model=endpoint.name,
        between={1: tuple(between)},
        prompt_token=tuple(per_token),
        cached=tuple(cached),
        uncached=tuple(uncached),
        prompt=prompt,
        block=(can.cache and (can.cache.unit or can.cache.block)) or DEFAULT_BLOCK,
        prefix_cache=can.prefix_cache
        if can.prefix_cache is not None
        else keeps_prompts(uncached, cached, per_token, prompt),
        suffix_scoring=bool(can.suffix_scoring),
    )


def keeps_prompts(
    uncached: Sequence[float], cached: Sequence[float], per_token: Sequence[float], prompt: int
) -> bool | None:
    """
    Whether a server that does not say so has a prefix cache: whether a repeated prompt is read in less time.

    None if reading the *prompt*, in tokens, takes too little of the time to the first token to tell.
    """
    reading = median(per_token) * prompt
    if reading < TELLING * median(uncached):
        return None
    return median(cached) < median(uncached) - reading / 2


class Words:
    """Makes prompts of random words, which are in no cache, for the model of an *endpoint*."""

    def __init__(self, endpoint: ModelEndpoint) -> None:
        self._endpoint, self._random = endpoint, random.Random()
        self._per_word = 0.0

    async def prompt(self, tokens: int) -> str:
        """Make a text of about so many *tokens*."""
        if not self._per_word:
            empty, full = [await self._endpoint.count(Chain.of(self._text(n)).messages) for n in (1, 65)]
            self._per_word = max(1.0, (full - empty) / 64)
        return self._text(max(1, round(tokens / self._per_word)))

    def _text(self, words: int) -> str:
        return " ".join(str(self._random.randrange(10, 1000)) for _ in range(words))


async def first_token(endpoint: ModelEndpoint, problem: str) -> tuple[float, int]:
    """Write one token about *problem*; return the seconds that took and the number of tokens in the prompt."""
    events: list[Event] = []
    async with opened(endpoint, events.append) as model:
        await model.write(Chain.of(problem), stop=(), limit=1)
    called = next(event for event in events if isinstance(event, Called))
    return called.seconds, called.prompt


async def measure_verdicts(endpoint: ModelEndpoint, clock: Clock) -> VerdictMeasurement:
    """Ask for grades of the steps of a growing chain; the first question, which reads all of it, does not count."""
    events: list[Event] = []
    steps = (Step(f"{number} + {number} is {2 * number}.\n\n", "small") for number in count(random.randrange(10**6)))
    chain, understood = Chain.of("Double some numbers."), list[float]()
    begin = await endpoint.count(chain.messages)
    one = await endpoint.count((*chain.messages, Message("user", next(steps).text))) - begin
    for step in islice(steps, max(1, min(CHAIN, endpoint.room // 4) // max(1, one))):
        chain = chain.extend(step)
    async with opened(endpoint, events.append) as model:
        for repeat in range(REPEATS + 1):
            if repeat > LEAST_REPEATS and clock.over("servers"):
                break
            chain = chain.extend(next(steps))
            understood.append(sum((await model.ask(chain, GRADE.text, DIGITS, opening=GRADE.opening)).values()))
    calls = [event for event in events if isinstance(event, Called) and event.fate == "done"][1:]
    return VerdictMeasurement(
        seconds=tuple(call.seconds for call in calls),
        read=tuple(call.prompt - call.cached for call in calls),
        chain=calls[-1].prompt,
        understood=fmean(understood),
    )


async def measure_load(
    endpoint: ModelEndpoint, server: ServerMeasurement, problems: Sequence[str], streams: int, clock: Clock
) -> ServerMeasurement:
    """Add the time between tokens with so many *streams* at once to what is known of the *server*."""
    times: list[float] = []
    sequences = server.sequences
    for _ in range(LOADED_REPEATS):
        with suppress(TimeoutError):
            async with clock.limit("loads"):
                measured = await time_streams(endpoint, list(islice(cycle(problems), streams)))
                if measured is not None:
                    times.append(measured[0])
                    sequences = measured[1] if measured[1] < streams else sequences
    if not times:
        return server
    key = min(streams, sequences or streams)
    known = {**server.between, key: (*server.between.get(key, ()), *times)}
    return replace(server, between=known, sequences=sequences)


class Recording:
    """Records runs of all *arms* on *problems*, of at most *limit* tokens each."""

    def __init__(
        self, solver: Solver, arms: Sequence[Arm], problems: Sequence[str], limit: int, seed: int,
        on_run: Callable[[], object],
    ) -> None:  # fmt: skip
        self._solver, self.arms, self._problems = solver, arms, problems
        self._budget, self._seed, self._on_run = Budget(limit, answer=ANSWER), seed, on_run
        self._runs: dict[tuple[int, str], RecordedRun] = {}

    async def alone(self, clock: Clock) -> None:
        """Let every arm solve the first problems, one run at a time, until the end of its part."""
        with suppress(TimeoutError):
            async with clock.limit("alone"):
                for number in range(min(ALONE, len(self._problems))):
                    for arm in turns(self.arms, number):
                        await self._run(number, arm, alone=True)

    async def together(self, clock: Clock) -> None:
        """Solve the other problems, several at a time, until the end of the part."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def run(number: int, arm: Arm) -> None:
            async with slots:
                await self._run(number, arm, alone=False)

        left = [
            (number, arm)
            for number in range(len(self._problems))
            for arm in turns(self.arms, number)
            if (number, arm.name) not in self._runs
        ]
        with suppress(TimeoutError):
            async with clock.limit("together"):
                await at_once(run(number, arm) for number, arm in left)

    def complete(self) -> dict[str, tuple[RecordedRun, ...]]:
        """The runs of each arm on the problems that all arms have solved, in their order."""
        numbers = [
            number
            for number in range(len(self._problems))
            if all((number, arm.name) in self._runs for arm in self.arms)
        ]
        return {arm.name: tuple(self._runs[number, arm.name] for number in numbers) for arm in self.arms}

    async def _run(self, number: int, arm: Arm, *, alone: bool) -> None:
        record = Recorder(Stopwatch())
        solved = await solve_once(
            self._solver, arm, self._problems[number],
            run_seed=derive_seed(self._seed, number, 0), budget=self._budget, observe=record,
        )  # fmt: skip
        self._on_run()
        if solved.solution is not None:
            cut = solved.solution.finish_reason in CUT
            moments = before_cut(record.moments) if cut else record.moments
            script = Script.of(moment.event for moment in moments)
            self._runs[number, arm.name] = RecordedRun(number, moments[-1].at, script, alone, cut)


def before_cut(moments: Sequence[Moment]) -> Sequence[Moment]:
    """
    The *moments* of a run until its tokens were used up.

    What follows is an answer in the middle of a thought, whose drafts are mostly rejected.
    """
    for place, moment in enumerate(moments):
        if isinstance(moment.event, Answered):
            return moments[:place]
        if isinstance(moment.event, Committed) and moment.event.step.note == CLOSED:
            return moments[:place]
    return moments


def run_limit(large: ServerMeasurement, arms: int, seconds: float, most: int) -> int:
    """The tokens that a run may have, so that every arm can solve `ALONE` problems in the *seconds* for that."""
    return min(most, max(LEAST_TOKENS, int(seconds / (arms * ALONE * large.token))))


async def measure(
    solver: Solver,
    methods: Sequence[Arm],
    problems: Sequence[str],
    concurrency: Sequence[int],
    minutes: float,
    seed: int = 0,
    on_part: Callable[[str, int], Callable[[], object]] = lambda part, total: lambda: None,
) -> Measurements:
    """
    Measure both servers of *solver*, then runs of the large model alone and of the *methods*, within *minutes*.

    *concurrency* are the numbers of streams at once for which the time between tokens is measured, besides one.
    *on_part* is called with the name of each part and its number of units; what it returns is called after each unit.
    Raise `StepspecError` for a pair that cannot be measured, with the cause and the cure.
    """
    if solver.small.name == solver.large.name:
        raise ConfigurationError(
            f"both servers serve {solver.large.name!r}: a model does not get faster by drafting for itself; name a "
            "smaller one with --small, or serve two different models under their own names (--served-model-name)"
        )
    can = {end.role: await end.capabilities() for end in (solver.small, solver.large)}
    skipped = {arm.name: why for arm in methods if (why := lacking(arm, can["large"]))}
    await solver.warm_up()
    clock = Clock(minutes)
    step = on_part("servers", 2 * REPEATS + 1)
    small, large = [
        await measure_server(end, can[end.role], problems, clock, step) for end in (solver.small, solver.large)
    ]
    verdict = await measure_verdicts(solver.large, clock)
    step()
    if verdict.understood < SURE:
        skipped |= {arm.name: NO_GRADE.format(verdict.understood) for arm in methods if arm.policy in GRADING}
    arms = (LARGE, *(arm for arm in methods if arm.name not in skipped))
    if len(arms) == 1:
        raise MissingCapability(f"no method can be measured: {'; '.join(f'{k}: {v}' for k, v in skipped.items())}")
    left = clock.end("alone") - clock.seconds
    limit = run_limit(large, len(arms), left, solver.settings.budget.tokens)
    recording = Recording(solver, arms, problems, limit, seed, on_part("runs", len(arms) * len(problems)))
    await recording.alone(clock)
    await recording.together(clock)
    loads = sorted({streams for streams in concurrency if streams > 1})
    step = on_part("loads", 2 * len(loads))
    for streams in loads:
        small = await measure_load(solver.small, small, problems, streams, clock)
        step()
        large = await measure_load(solver.large, large, problems, streams, clock)
        step()
    runs = recording.complete()
    if not runs[LARGE.name]:
        raise StepspecError(
            f"in {minutes:g} minutes no problem was solved by all of {', '.join(arm.name for arm in arms)}: name fewer "
            "methods with --policy, or more --minutes"
        )
    temperature = solver.settings.sampling.temperature
    return Measurements(small, large, verdict, arms, runs, limit, clock.seconds, temperature, skipped)


def lacking(arm: Arm, large: Capabilities) -> str:
    """Why *arm* cannot be measured on a *large* model's server with these capabilities; "" if it can."""
    if arm.policy in SCORING and large.prompt_logprobs is False:
        return "the large model's server does not score text (prompt_logprobs): it needs vLLM"
    return ""
