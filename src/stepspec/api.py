"""The public interface: solve problems with two served models."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from stepspec.orchestrator import trace
from stepspec.orchestrator.answer import require_json
from stepspec.orchestrator.auto import Auto
from stepspec.orchestrator.backends.vllm import RewardModelEndpoint, connect
from stepspec.orchestrator.chain import Chain, Message, Party, Toolset
from stepspec.orchestrator.concurrency import all_entered, at_once, background
from stepspec.orchestrator.endpoints import (
    Endpoint,
    ReplicatedEndpoint,
)
from stepspec.orchestrator.endpoints.chat_template import Template, disagreement
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.endpoints.metrics import poll_queue
from stepspec.orchestrator.endpoints.request_context import carrying
from stepspec.orchestrator.errors import ConfigurationError, EndpointError, EndpointUnavailable
from stepspec.orchestrator.events import Decided, Event, Observer, Started
from stepspec.orchestrator.http.slots import MIN_CONCURRENCY
from stepspec.orchestrator.run import Outcome
from stepspec.orchestrator.run import run as run_to_the_answer
from stepspec.orchestrator.run_options import RunOptions, RunOverrides
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
from .settings import Settings, SettingsOverrides

log = logging.getLogger(__name__)

OUTAGE_SECONDS = 1800.0
"""After `Solver.require_both`, a run waits at most this long for a model that is down."""


class StreamArguments(RunOverrides, total=False):
    """The arguments of `Solver.stream`: the arguments of `Solver.solve` without the observer."""

    run: RunOptions | None
    seed: int | None
    stop: Sequence[str]
    format: Format | None
    tools: Toolset | None
    clock: trace.Stopwatch | None
    trace_to: Path | None
    session: str | None


class EventStream:
    """The events of one run. Iterate over the events as they happen. Then read the solution."""

    def __init__(
        self,
        events: asyncio.Queue[Event | None],
        solving: asyncio.Task[Solution],
    ) -> None:
        self._events = events
        self._solving = solving

    @property
    def solution(self) -> Solution:
        """
        The solution of the run, after the run has ended.

        If the run failed, its error is raised. `RuntimeError` is raised if the run has not ended,
        or was cancelled.
        """
        if not self._solving.done():
            raise RuntimeError("the run is not over: iterate over its events first")
        if self._solving.cancelled():
            raise RuntimeError(
                "the run was cancelled: the block of `solver.stream()` was left before its end"
            )
        return self._solving.result()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)  # A second iteration ends at once.
        self.solution  # noqa: B018  # Raises the error of a failed run.


def _uses_auto(run: RunOptions) -> bool:
    """
    Whether the run may let the large model write alone when this is faster (`auto`).

    By default, a run with a seed must not do this: decisions depend on measured times, but runs
    with the same seed have to be equal.
    """
    if run.policy in policies.BASELINES:
        return False
    if run.auto is None:
        return run.sampling.seed is None
    return run.auto


REQUESTS_PER_RUN = 4
"""The requests that one run usually has at one model: a draft, a verdict, a repair and a bet."""


def _require_agreement(small: ReplicatedEndpoint, large: ReplicatedEndpoint) -> None:
    """
    Raise `ConfigurationError` if the models cannot be a pair.

    Servers of the small model that come up later are checked in the same way.
    """

    def conflict(template: Template) -> str:
        """Return why a small model with *template* cannot be in the pair. "": it can."""
        return disagreement(template.thinks, large.template.thinks) if large.known else ""

    reason = conflict(small.template) if small.known else ""
    if reason:
        raise ConfigurationError(f"{small.name} and {large.name} cannot be a pair: {reason}")
    small.reason_to_refuse = lambda server: conflict(server.template)


class Solver:
    """
    Keeps connections to both models, and solves many problems, also at the same time.

    The arguments are both models, and other settings as keyword arguments. Or pass one
    argument, complete `Settings`. Arguments override variables of the environment. Variables
    override the TOML file. The file overrides the defaults (see `stepspec.settings`)::

        async with Solver(
            small="http://localhost:8001/v1",
            large="http://localhost:8002/v1",
        ) as solver:
            solutions = await asyncio.gather(*map(solver.solve, problems))

    Raise `ConfigurationError` for wrong settings. ``async with`` connects the models. It raises an
    `EndpointError` if a server cannot be used. `thinks`, `models`, `conditions` and `templates` are
    available inside the block.
    """

    def __init__(
        self,
        small: Settings | str | Endpoint | None = None,
        large: str | Endpoint | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        if not isinstance(small, Settings):
            settings = configuration.load(small=small, large=large, **overrides)
        elif large is not None or overrides:
            raise TypeError(
                "Solver(settings) takes no further arguments: change the settings with"
                " settings.with_overrides(...)"
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
        """
        Return the settings *endpoint*.

        Fill in the default number of simultaneous requests if it is missing.
        """
        if endpoint is None:
            raise configuration.missing_models_error(self.settings)
        return endpoint.with_default_concurrency(self._requests)

    @property
    def _requests(self) -> int:
        """How many requests a model takes at the same time, unless its settings give a number."""
        return max(MIN_CONCURRENCY, REQUESTS_PER_RUN * self.settings.service.max_running)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            rewarding = [self.critic] if isinstance(self.critic, RewardModelEndpoint) else []
            await all_entered(stack, (self.small, self.large, *rewarding))
            _require_agreement(self.small, self.large)
            for url, cause in self.down.items():
                log.warning(
                    "%s is down, going on without it until it works: %s",
                    url,
                    cause,
                )
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
    def connections(self) -> Connections:
        """The connections that all runs share. Each run makes its models from them."""
        return Connections(self.small, self.large, self.critic)

    @property
    def down(self) -> Mapping[str, str]:
        """The error of every server that is down, by the URL of the server."""
        return {**self.small.down, **self.large.down}

    @property
    def waiting(self) -> Mapping[Party, int]:
        """How many requests wait for a slot of their endpoint, by the role of the model."""
        waiting: dict[Party, int] = {
            "small": self.small.waiting,
            "large": self.large.waiting,
        }
        if isinstance(self.critic, RewardModelEndpoint):
            waiting["critic"] = self.critic.connection.slots.waiting
        return waiting

    def require_both(self) -> None:
        """
        From now on, a run raises an error if it cannot use both models.

        Raise `EndpointUnavailable` if the small model is down now. If a model goes down later, a
        run waits up to `OUTAGE_SECONDS` for this model, and then fails.
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
        """
        Send one request to every server.

        A server compiles kernels for its first request. After this call, no run waits for them.
        """
        await at_once(server.warm_up() for server in (*self.small.up, *self.large.up))

    def resolve(
        self,
        run: RunOptions | None = None,
        *,
        seed: int | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> RunOptions:
        """
        Return the options of a run: *run*, changed by the other arguments.

        If *run* is None, the options come from the settings. An argument that is None changes
        nothing. Raise `ConfigurationError` for a wrong value, and for an option that the policy
        does not have.
        """
        before = run or self.settings.run
        named: Any = configuration.with_policy_name(overrides)
        resolved = before.with_overrides(named) if named else before
        if (resolved.policy, resolved.options) != (before.policy, before.options):
            policies.check(
                resolved.policy,
                resolved.options,
                has_critic=self.settings.rates_steps,
            )
        return resolved.model_copy(update={"sampling": resolved.sampling.with_seed(seed)})

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        seed: int | None = None,
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
        Solve one problem.

        *problem* is a text, or a conversation whose last message contains the problem. *run* has
        the options of the run. By default, the options come from the settings. *seed* and
        *overrides*, such as ``sampling`` and ``budget``, change these options (see `resolve`).

        The answer ends before the first of the *stop* strings. *format* is the form of the large
        model's answer: "json" or a JSON schema. The prompts of both models describe the *tools*.
        Only the large model's answer may call a tool (see `Solution.calls`).

        *seed* is the seed of the sampling. If *seed* is None, the run draws a seed, and
        `Solution.seed` is the drawn seed. With ``auto``, or with one model alone, no seed is drawn,
        because without a seed one open request can write several steps, which is faster. If the
        servers answer equal requests with equal tokens, two runs with the same seed write the same
        chain. The number of drafts ahead does not matter. With ``auto``, the chain depends on
        measured times, and *seed* is not used.

        *observe* is called with every event. *clock* gives the times in events and in the trace. By
        default it is a new clock. Two runs must not share a clock. *trace_to* is the file of the
        trace, which is also written if the run fails. If the file cannot be written, a warning is
        logged. *session* is the value of the session header. A model can have several servers. All
        runs of a session use the same server of each model while this server is up. A run without a
        session uses the server with the fewest runs.

        If the small model fails for good, the large model goes on alone, and the solution reports
        this. Raise an `EndpointError` if the large model fails. Raise `MalformedReply` if the large
        model's server does not keep to the format. Raise `MissingCapability` if this server has no
        parser for tool calls. Raise `ConfigurationError` for wrong arguments.
        """
        began = asyncio.get_running_loop().time()
        run = self.resolve(run, seed=seed, **overrides)
        calling = tools is not None and tools.callable
        if format is not None and not self.thinks and not calling:
            raise ConfigurationError(
                "a format needs a large model that thinks in a separate block before its answer"
            )
        chain = Chain.of(
            problem,
            StepEnds.of(run.delimiter),
            system=run.system,
            tools=tools.tools if tools else (),
        )
        plan = await self.connections.answer_plan(tools, run, format, stop)
        # The policy "large" does not use the small model.
        small = self.large if run.policy == "large" else self.small
        # `room`: the tokens that the chain may have in the context of each model.
        room, small_model_error = await context_room(
            chain,
            small,
            self.large,
            needs_small=run.policy == "small",
        )
        thinks = await self.large.call(lambda server: server.thinks(chain.messages, chain.tools))
        chain = replace(chain, thinks=thinks)
        recorder = trace.Recorder(clock or trace.Stopwatch())
        try:
            # A run with auto waits here until its chain probably fits into the large model's cache.
            slot = self.auto.server_load.slot() if _uses_auto(run) else nullcontext()
            async with slot:
                waited = asyncio.get_running_loop().time() - began
                limits = run.budget.fit(room).after(waited)
                run = run.model_copy(update={"budget": limits})
                with (
                    carrying(
                        headers=self._session_header(session),
                        run_priority=run.priority,
                        session=session or "",
                    ),
                    prompts.replacing(self.prompts),
                ):
                    outcome = await self._run(
                        run, chain, plan, small_model_error, recorder, observe
                    )
            # An answer that calls tools has no format, and a stop string may cut the JSON.
            has_format = outcome.reason == "stop" and not outcome.calls and not stop
            if format is not None and has_format:
                require_json(outcome.text, self.large.settings.url)
        finally:
            if trace_to is not None:
                _write_trace(trace_to, recorder.moments)
        return Solution.of(outcome, recorder.moments)

    async def _run(
        self,
        run: RunOptions,
        chain: Chain,
        plan: AnswerPlan,
        small_model_error: EndpointError | None,
        recorder: trace.Recorder,
        observe: Observer,
    ) -> Outcome:
        """
        Build the parts of the run, and run it from *chain*, which has no steps.

        If there is a *small_model_error*, the run leaves out the small model.
        """

        # `auto` needs the models, and the models need `watch`. So `watch` uses `auto` before its
        # assignment below. No event comes before this assignment.
        def watch(event: Event) -> None:
            recorder(event)
            auto.read(recorder.last)
            if isinstance(event, Decided) and event.advice and not auto.record.explained:
                auto.record.explained = True
                log.warning("the large model goes on alone: %s", event.advice)
            observe(event)

        uses_auto = _uses_auto(run)
        sampling = run.sampling
        if uses_auto:
            sampling = sampling.model_copy(update={"seed": None})
        elif run.policy not in policies.BASELINES:
            sampling = sampling.seeded()
        models = self.connections.models(run.budget, sampling, watch, recorder.clock, plan)
        large = models.policy_of(run.model_copy(update={"policy": "large", "options": {}}))
        large_policy = large if uses_auto else None
        auto = self.auto.run(run.policy, run.options, run.ahead, large_policy)
        # Without `large_policy`, auto only measures: it decides nothing. The policy "small" runs
        # without the large model, so it has no fallback.
        parts = models.parts(
            run,
            auto if auto.large_policy else None,
            fallback=None if run.policy == "small" else large,
            small_model_error=small_model_error,
            needs_small=self._needs_both,
        )
        started = Started(
            messages=chain.messages,
            policy=run.policy,
            models=tuple(self.models.items()),
            seed=sampling.seed if sampling.samples_by_seed else None,
            threshold=policies.threshold(run.policy, run.options),
            tools=chain.tools,
            thinks=chain.thinks,
        )
        try:
            watch(started)
            return await run_to_the_answer(parts, chain, watch)
        finally:
            auto.close()
            models.leave()

    def _session_header(self, session: str | None) -> Mapping[str, str]:
        """Return the header by which a router sends all requests of a run to the same server."""
        name = self.settings.session_header
        return {name: session or uuid.uuid4().hex} if name else {}

    @property
    def thinks(self) -> bool:
        """
        Whether the large model thinks in a separate block before its answer.

        The small model may write without thinking.
        """
        return self.large.template.thinks

    def conditions(self, run: RunOptions) -> dict[str, Any]:
        """Return the values of *run* that must be the same as when a calibration was made."""
        with prompts.replacing(self.prompts):
            values = configuration.conditions(run)
        return {"policy": run.policy, "models": self.models, **values}

    @property
    def models(self) -> Mapping[str, str]:
        """The name of each model on its server, by role."""
        names: dict[str, str] = {"small": self.small.name, "large": self.large.name}
        if self.critic:
            names["critic"] = self.critic.name
        return names

    @property
    def templates(self) -> list[dict[str, Any]]:
        """For each model, the settings that change its chat template."""
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
        Solve one problem, and give the events of the run while they happen.

        ::

            async with solver.stream(problem) as events:
                async for event in events: ...
            print(events.solution.answer)

        *arguments* are the arguments of `solve`. If the block is left early, the run and all its
        requests are cancelled.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        solution = self.solve(problem, observe=events.put_nowait, **arguments)

        def end(solving: asyncio.Task[Solution]) -> None:
            events.put_nowait(None)
            if not solving.cancelled():
                solving.exception()  # Read the error. Otherwise asyncio would log it.

        async with background(solution) as (solving,):
            solving.add_done_callback(end)
            yield EventStream(events, solving)


async def asolve(
    problem: str | Sequence[Message],
    small: str | Endpoint | None = None,
    large: str | Endpoint | None = None,
    **overrides: Unpack[SettingsOverrides],
) -> Solution:
    """
    Solve one problem.

    *overrides* are the settings that `Solver` takes. For more than one problem, keep a `Solver`.
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
    Solve one problem, and wait for the solution.

    *overrides* are the settings that `Solver` takes::

        solution = solve(
            "What is 6 x 7?",
            small="http://localhost:8001/v1",
            large="http://localhost:8002/v1",
        )
        print(solution.answer)
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asolve(problem, small, large, **overrides))
    raise ConfigurationError(
        "solve() cannot wait inside a running event loop: use `await asolve(...)` there"
    )


def _write_trace(path: Path, moments: Sequence[trace.Moment]) -> None:
    """Write a trace. Only log an error, because the caller still needs the solution."""
    try:
        trace.write(path, moments)
    except OSError as exc:
        log.warning("the trace is not written to %s: %s", path, exc.strerror)
