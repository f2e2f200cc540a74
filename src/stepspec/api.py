"""The public interface: solve problems with two served models."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from stepspec.orchestrator import trace
from stepspec.orchestrator.answer import require_json
from stepspec.orchestrator.auto import Auto
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, connect
from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Chain, Message, Party, Toolset
from stepspec.orchestrator.concurrency import all_entered, at_once, background
from stepspec.orchestrator.endpoints import (
    Endpoint,
    ModelEndpoint,
    ReplicatedEndpoint,
    Sampling,
)
from stepspec.orchestrator.endpoints.chat_template import disagreement
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.endpoints.metrics import poll_queue
from stepspec.orchestrator.endpoints.request_context import carrying
from stepspec.orchestrator.errors import ConfigurationError, EndpointError, EndpointUnavailable
from stepspec.orchestrator.events import Decided, Event, Observer, Started
from stepspec.orchestrator.http.slots import MIN_CONCURRENCY
from stepspec.orchestrator.interfaces import Policy, PolicyFactory
from stepspec.orchestrator.run import Outcome
from stepspec.orchestrator.run import run as run_to_the_answer
from stepspec.orchestrator.run_options import Limits, RunOptions, RunOverrides
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.step_ends import StepEnds

from . import policies, prompts
from . import settings as configuration
from .run_parts import (
    AnswerPlan,
    Connections,
    check_policies,
    connected_critic,
    context_room,
)
from .settings import RunConditions, Settings, SettingsOverrides

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 1800.0  # that work of hours waits for a model that went down, before it ends


class StreamArguments(RunOverrides, total=False):
    """The arguments of `Solver.stream`: the arguments of `Solver.solve` without the observer."""

    run: RunOptions | None
    sampling: Sampling | None
    seed: int | None
    budget: Budget | None
    stop: Sequence[str]
    format: Format | None
    tools: Toolset | None
    clock: trace.Stopwatch | None
    trace_to: Path | None
    session: str | None


class EventStream:
    """The events of one run, to iterate over as they happen, and then its solution."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._solving: asyncio.Task[Solution] | None = None
        self.put = self._events.put_nowait

    def end(self, solving: asyncio.Task[Solution]) -> None:
        self._solving = solving
        if not solving.cancelled():
            solving.exception()  # Raised where it is asked for: by the iteration, or by `solution`.
        self._events.put_nowait(None)

    @property
    def solution(self) -> Solution:
        """
        The solution of the run that has ended.

        Raise the error of a run that failed. Raise `RuntimeError` if the run goes on, or was
        cancelled.
        """
        if self._solving is None:
            raise RuntimeError("the run is not over: iterate over its events first")
        if self._solving.cancelled():
            raise RuntimeError(
                "the run was cancelled, because its block was left before it was over"
            )
        return self._solving.result()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)  # A second iteration ends at once.
        self.solution  # noqa: B018  # A failed run raises here.


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """What a run needs beyond its options, once its problem is known."""

    chain: Chain
    """The problem."""
    answering: AnswerPlan
    """How the answer is written."""
    budget: Budget
    """The tokens, steps and seconds that are left."""
    lost: EndpointError | None
    """Why the small model cannot be used; None: it can be."""
    stop: tuple[str, ...]
    """Texts that end the answer."""


def _decides(run: RunOptions) -> bool:
    """
    Whether the large model may write alone where that is faster.

    By default it may not with a seed, which promises that runs repeat.
    """
    if run.policy in policies.BASELINES:
        return False
    if run.auto is None:
        return run.sampling.seed is None
    return run.auto


REQUESTS_PER_RUN = 4
"""Requests that a run may have at one model: a draft, a verdict, a repair and a bet."""


def _require_agreement(small: ReplicatedEndpoint, large: ReplicatedEndpoint) -> None:
    """
    Raise `ConfigurationError` if the models cannot be a pair.

    A server that comes up later is refused in that case.
    """

    def conflict(one: ModelEndpoint, other: ModelEndpoint) -> str:
        if one.known and other.known:
            return disagreement(one.template.thinks, other.template.thinks)
        return ""

    if reason := conflict(small, large):
        raise ConfigurationError(f"{small.name} and {large.name} cannot be a pair: {reason}")
    small.refuses = partial(conflict, other=large)


class Solver:
    """
    Keeps connections to both models, and solves many problems, also at the same time.

    It takes complete `Settings`, or both models and other settings as keyword arguments. Arguments
    come before variables, the TOML file and the defaults (see `stepspec.settings`)::

        async with Solver(small="http://localhost:8001/v1", large="http://localhost:8002/v1") as
        solver:
            solutions = await asyncio.gather(*map(solver.solve, problems))

    Raise `ConfigurationError` for wrong settings. Entering raises an `EndpointError` for a server
    that cannot be used.
    """

    def __init__(
        self,
        small: Settings | str | Endpoint | None = None,
        large: str | Endpoint | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        if not isinstance(small, Settings):
            settings = _load_checked({"small": small, "large": large, **overrides})
        elif large is not None or overrides:
            raise TypeError(
                "settings are complete: use settings.with_overrides(...), or leave them out"
            )
        else:
            settings = small
            check_policies(settings)
        self.settings = settings
        self.prompts = settings.prompts
        self._exit = AsyncExitStack()
        small_settings = self._endpoint(settings.small)
        self.small = connect(small_settings, optional=settings.policy != "small")
        self.large = connect(self._endpoint(settings.large))
        self.critic = connected_critic(settings.critic, self._requests)
        self.auto = Auto(settings.prior)
        self._needs_both = False

    def _endpoint(self, endpoint: Endpoint | None) -> Endpoint:
        if endpoint is None:
            raise configuration.without_models(self.settings)
        return endpoint.with_room(self._requests)

    @property
    def _requests(self) -> int:
        """The requests that a model takes at a time if its settings name no number."""
        return max(MIN_CONCURRENCY, REQUESTS_PER_RUN * self.settings.service.max_running)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            critics = [self.critic] if self.critic else []
            await all_entered(stack, (self.small, self.large, *critics))
            _require_agreement(self.small, self.large)
            for url, cause in self.down.items():
                log.warning("%s is down, going on without it until it works: %s", url, cause)
            if self.settings.calibration:
                self.settings.calibration.warn_of_differences(self.conditions(self.settings.run))
            await stack.enter_async_context(
                poll_queue(self.large.queue, self.auto.server_load.poll)
            )
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    @property
    def down(self) -> Mapping[str, str]:
        """The URL and the cause of every server that failed and has passed no probe since."""
        return {**self.small.down, **self.large.down}

    @property
    def waiting(self) -> Mapping[Party, int]:
        """The number of requests to models that wait for a slot of their endpoint, by role."""
        waiting: dict[Party, int] = {
            "small": self.small.waiting,
            "large": self.large.waiting,
        }
        if isinstance(self.critic, RewardModelEndpoint):
            waiting["critic"] = self.critic.connection.slots.waiting
        return waiting

    def require_both(self) -> None:
        """
        Let no run go on without a model. Raise `EndpointUnavailable` if the small model is down.

        From now on a run waits up to `OUTAGE_SECONDS` for a model that goes down, and then fails.
        """
        if not self.small.usable:
            causes = "; ".join(f"{url}: {cause}" for url, cause in self.down.items())
            raise EndpointUnavailable(causes, role="small", url=self.small.settings.url)
        self._needs_both = True
        self.small.patience = OUTAGE_SECONDS
        self.large.patience = OUTAGE_SECONDS
        if isinstance(self.critic, RewardModelEndpoint):
            self.critic.patience = OUTAGE_SECONDS

    async def warm_up(self) -> None:
        """Use every server once, because the first request compiles. Then no run waits for it."""
        await at_once(server.warm_up() for server in (*self.small.up, *self.large.up))

    def policy(
        self,
        name: str | PolicyFactory | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        budget: Budget | None = None,
        observe: Observer = lambda event: None,
    ) -> Policy:
        """
        Build a policy over both models for one run that begins now.

        Arguments that are None come from the settings.
        """
        run = self.resolve(budget=budget, policy=name, options=options)
        models = self._connections.models(
            run.budget.budget(),
            run.sampling.seeded(),
            observe,
            trace.Stopwatch(),
            AnswerPlan(),
        )
        return models.policy_of(run)

    def resolve(
        self,
        run: RunOptions | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> RunOptions:
        """
        Return *run*, or the options of the settings, changed by the other arguments.

        Arguments that are None change nothing. Raise `ConfigurationError` for a wrong value, and
        for an option that the policy lacks.
        """
        before = run or self.settings.run
        named: Any = configuration.by_name(overrides)
        resolved = before.with_overrides(named) if named else before
        if (resolved.policy, resolved.options) != (before.policy, before.options):
            policies.check(resolved.policy, resolved.options, has_critic=self.settings.rates_steps)
        values = {
            "sampling": (sampling or before.sampling).with_seed(seed),
            "budget": before.budget if budget is None else Limits.of(budget),
        }
        return resolved.model_copy(update=values)

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        stop: Sequence[str] = (),
        format: Format | None = None,
        tools: Toolset | None = None,
        observe: Observer = lambda event: None,
        clock: trace.Stopwatch | None = None,
        trace_to: Path | None = None,
        session: str | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> Solution:
        """
        Solve one *problem*: a text, or a conversation whose last turn poses it.

        *run* has the options of the run (see `resolve`). By default they are those of the settings.
        *sampling*, *seed*, *budget* and *overrides* change these options. None changes nothing.

        The answer ends before the first of the *stop* strings. A *format*, "json" or a JSON schema,
        is the form of the large model's answer. Both models read about the *tools*. The large
        model's answer may call them (see the solution's ``calls``).

        *seed* is the seed of the sampling. Without one a run draws its own, and the solution has
        it. A run with ``auto`` or with one model alone has no seed, because without a seed one
        stream writes many steps. With the same seed a run writes the same chain at any lookahead,
        if the servers give equal requests equal tokens. With ``auto`` the chain depends on the
        time, and the seed is not used.

        *observe* sees every event as it happens. *clock* gives the times in events and trace. It is
        a new clock by default, and no two runs may share one. *trace_to* is the file of the trace,
        also of a run that fails. A file that cannot be written is logged as a warning. *session* is
        the value of the session header: the runs of a session use the same replica of each model
        while it is up. A run without a session uses the replicas with the fewest runs.

        If the small model fails for good, the large one goes on alone, and the solution says so.
        Raise an `EndpointError` if the large model fails. Raise `MalformedReply` if its server does
        not keep to the format, and `MissingCapability` if its server has no parser for calls. Raise
        `ConfigurationError` for wrong arguments.
        """
        began = asyncio.get_running_loop().time()
        run = self.resolve(run, sampling=sampling, seed=seed, budget=budget, **overrides)
        calling = tools is not None and tools.callable
        if format is not None and not self.thinks and not calling:
            raise ConfigurationError(
                "a format needs models that think in a block of its own before they answer"
            )
        chain = Chain.of(
            problem,
            StepEnds.of(run.delimiter),
            system=run.system,
            tools=tools.tools if tools else (),
        )
        answering = await self._connections.answering(tools, run, format)
        # The policy "large" does not use the small model.
        small = self.large if run.policy == "large" else self.small
        room, lost = await context_room(chain, small, self.large, needs_small=run.policy == "small")
        chain = replace(chain, thinks=await self.large.thinks(chain.messages, chain.tools))
        recorder = trace.Recorder(clock or trace.Stopwatch())
        budget = run.budget.budget().fit(room)
        try:
            # Only a run that decides may have to wait for its turn.
            async with self.auto.server_load.slot() if _decides(run) else nullcontext():
                prepared = PreparedRun(
                    chain=chain,
                    answering=answering,
                    budget=budget.after(asyncio.get_running_loop().time() - began),
                    lost=lost,
                    stop=tuple(stop),
                )
                with (
                    carrying(self._session(session), run.priority, session or ""),
                    prompts.replacing(self.prompts),
                ):
                    outcome = await self._run(run, prepared, recorder, observe)
            # A stop string may cut the JSON.
            complete = outcome.reason == "stop" and not outcome.calls and not stop
            if format is not None and complete:
                require_json(outcome.text, self.large.settings.url)
        finally:
            if trace_to is not None:
                _write_trace(trace_to, recorder.moments)
        return Solution.of(outcome, recorder.moments)

    async def _run(
        self,
        run: RunOptions,
        prepared: PreparedRun,
        recorder: trace.Recorder,
        observe: Observer,
    ) -> Outcome:
        """Build the parts of the run, and run it."""

        def watch(event: Event) -> None:
            recorder(event)
            auto.read(recorder.last)
            if isinstance(event, Decided) and event.advice and not auto.record.explained:
                auto.record.explained = True
                log.warning("the large model goes on alone: %s", event.advice)
            observe(event)

        decides = _decides(run)
        baseline = run.policy in policies.BASELINES
        chain = prepared.chain
        sampling = run.sampling if baseline else run.sampling.seeded()
        if decides:
            sampling = sampling.model_copy(update={"seed": None})
        models = self._connections.models(
            prepared.budget,
            sampling,
            watch,
            recorder.clock,
            prepared.answering,
        )
        large = models.policy_of(run.model_copy(update={"policy": "large", "options": {}}))
        auto = self.auto.run(
            run.policy,
            run.options,
            run.ahead,
            large if decides else None,
            run.lead,
        )
        parts = models.parts(
            run,
            auto if auto.large_policy else None,
            fallback=None if run.policy == "small" else large,
            stop=prepared.stop,
            lost=None if baseline else prepared.lost,
            needs_small=self._needs_both,
        )
        started = Started(
            chain.messages,
            run.policy,
            tuple(self.models.items()),
            sampling.seed if sampling.repeats else None,
            policies.threshold(run.policy, run.options),
            chain.tools,
            chain.thinks,
        )
        try:
            watch(started)
            return await run_to_the_answer(parts, chain, watch)
        finally:
            auto.close()
            models.leave()

    def _session(self, value: str | None) -> Mapping[str, str]:
        """Return the header that keeps the requests of one run together."""
        name = self.settings.session_header
        return {name: value or uuid.uuid4().hex} if name else {}

    @property
    def _connections(self) -> Connections:
        return Connections(self.small, self.large, self.critic)

    @property
    def thinks(self) -> bool:
        """
        Whether the reasoning stands in a block of its own before the answer.

        It does if the large model thinks. The small model need not think. Known once entered.
        """
        return self.large.template.thinks

    def conditions(self, run: RunOptions) -> RunConditions:
        """Return the values of *run* that a calibration compares. Known once entered."""
        with prompts.replacing(self.prompts):
            return RunConditions(run.policy, self.models, configuration.conditions(run))

    @property
    def models(self) -> Mapping[str, str]:
        """What the models call themselves, by role; known once entered."""
        names: dict[str, str] = {"small": self.small.name, "large": self.large.name}
        if self.critic:
            names["critic"] = self.critic.name
        return names

    @property
    def templates(self) -> list[dict[str, Any]]:
        """The settings that change a chat template, of each model. Runs depend on them."""
        names = {"template", "thinks", "marks"}
        models = (self.small.settings, self.large.settings)
        return [model.model_dump(include=names, exclude_defaults=True) for model in models]

    @asynccontextmanager
    async def stream(
        self,
        problem: str | Sequence[Message],
        **arguments: Unpack[StreamArguments],
    ) -> AsyncGenerator[EventStream]:
        """
        Solve one problem while its events are iterated over; the *arguments* are those of `solve`.

        ::

            async with solver.stream(problem) as events:
                async for event in events: ...
            print(events.solution.answer)

        Leaving the block early cancels the run and every request of it.
        """
        stream = EventStream()
        async with background(self.solve(problem, observe=stream.put, **arguments)) as (solving,):
            solving.add_done_callback(stream.end)
            yield stream


def _load_checked(arguments: Mapping[str, Any]) -> Settings:
    """Load the settings. An error about a policy names the source that chose it."""
    settings = configuration.load(**arguments)
    try:
        check_policies(settings)
    except ConfigurationError as exc:
        raise configuration.named(exc, settings, arguments) from exc
    return settings


async def asolve(
    problem: str | Sequence[Message],
    small: str | Endpoint | None = None,
    large: str | Endpoint | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Solution:
    """
    Solve one *problem*; *overrides* are the settings that `Solver` takes. For more than one, keep a
    `Solver`.
    """
    async with Solver(small, large, **overrides) as solver:
        return await solver.solve(problem)


def solve(
    problem: str | Sequence[Message],
    small: str | Endpoint | None = None,
    large: str | Endpoint | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Solution:
    """
    Solve one *problem* and wait for it; *overrides* are the settings that `Solver` takes.

    ::

        solve("What is 6 x 7?", small="http://localhost:8001/v1",
        large="http://localhost:8002/v1").answer
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asolve(problem, small, large, **overrides))
    raise ConfigurationError(
        "solve() cannot wait inside a running event loop: use `await asolve(...)` there"
    )


def _write_trace(path: Path, moments: Sequence[trace.Moment]) -> None:
    """Write a trace. A failure is logged: the run has found its solution."""
    try:
        trace.write(path, moments)
    except OSError as exc:
        log.warning("the trace is not written to %s: %s", path, exc.strerror)
