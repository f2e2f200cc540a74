"""
What a service offers, and the runs that a request asks for.

The service imports no policy and no solver: whoever makes a service passes in an `Offer`. A request
names a model. It is a method, or ``auto`` (the default method), or one of the two served models. A
request to a served model is forwarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stepspec.orchestrator.budget import Budget
from stepspec.orchestrator.chain import Message, Party, Role, Toolset
from stepspec.orchestrator.endpoints import ReplicatedEndpoint, Sampling
from stepspec.orchestrator.endpoints.interfaces import Format
from stepspec.orchestrator.errors import ConfigurationError, near
from stepspec.orchestrator.events import Observer
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.solution import Solution
from stepspec.orchestrator.trace import Stopwatch

from ..errors import ApiError, bad_request
from ..json_types import JsonFields, JsonObject
from ..settings import ServiceSettings
from .schemas import Effort, Request, StepspecOptions, Wanted

AUTO = "auto"
ROLES: tuple[Role, ...] = ("small", "large")

EFFORT: Mapping[Effort, float] = {
    "minimal": 1 / 16, "low": 1 / 4, "medium": 1 / 2, "high": 1.0, "xhigh": 1.0, "max": 1.0,
}  # fmt: skip
"""
The share of the tokens for thinking that each effort leaves. The answer gets the others.
"""

MAX_PRIORITY = 1000
"""A priority is a number from -1000 to 1000, as for runs."""


class Engine(Protocol):
    """Solves problems with two served models, many at the same time."""

    @property
    def small(self) -> ReplicatedEndpoint: ...

    @property
    def large(self) -> ReplicatedEndpoint: ...

    @property
    def waiting(self) -> Mapping[Party, int]:
        """The number of requests to models that wait for a slot, by role."""
        ...

    async def solve(
        self,
        problem: str | Sequence[Message],
        run: RunOptions | None = None,
        *,
        stop: Sequence[str] = (),
        format: Format | None = None,
        tools: Toolset | None = None,
        session: str | None = None,
        observe: Observer = ...,
        clock: Stopwatch | None = None,
    ) -> Solution:
        """
        Solve one *problem* with the options *run*.

        The runs of one *session* use the same replica of each model while that replica is up. The
        times in events are from *clock*. If the call is cancelled, all its requests to the models
        are closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method that clients can choose."""

    description: str
    """The method in one sentence."""
    options: JsonFields
    """The method's own defaults of all its options, by name."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a service offers."""

    engine: Engine
    """Solves the problems."""
    methods: Mapping[str, ServedMethod]
    """The methods, by name."""
    defaults: RunOptions = field(default_factory=RunOptions)
    """The options of a run whose request sets none. ``defaults.policy`` is the default method."""
    version: str = "0"
    """The version of the service."""
    session_header: str = ""
    """The header whose value names the session of a request. "": the service has no sessions."""
    check: Callable[[str, JsonFields], object] = lambda method, options: options
    """
    Raises `ConfigurationError`, which names the option, if the options are wrong for the method.
    """

    def configured_options(self, method: str) -> JsonFields:
        """Return the options of *method* in the settings. Only the default method has any."""
        return self.defaults.options if method == self.defaults.policy else {}

    def default_options(self, method: str) -> JsonFields:
        """Return all options of *method*, with the values for a request that sets none."""
        return {**self.methods[method].options, **self.configured_options(method)}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model. Requests to it are forwarded."""

    role: Role
    """The role of the model."""
    endpoint: ReplicatedEndpoint
    """Its servers."""

    @property
    def name(self) -> str:
        """The model's own name."""
        return self.endpoint.name

    @property
    def full_name(self) -> str:
        """The name that no other model has."""
        return f"{self.role}:{self.name}"


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """The model names that a request can choose from."""

    offer: Offer
    """What the service offers."""

    @property
    def methods(self) -> tuple[str, ...]:
        return (AUTO, *self.offer.methods)

    @property
    def served(self) -> Mapping[str, ServedModel]:
        """
        The served models by name.

        A model whose name is not unique has its role as a prefix: ``small:NAME``. A model whose
        server was never up is left out, because its name is not known.
        """
        known = self._known
        names = [*self.methods, *[model.name for model in known]]
        return {
            (model.name if names.count(model.name) == 1 else model.full_name): model
            for model in known
        }

    def find(self, name: str) -> str | ServedModel:
        """
        Return the method or the served model called *name*. Raise `ApiError` if there is none.
        """
        if name == AUTO:
            return self.offer.defaults.policy
        if name in self.offer.methods:
            return name
        models = {model.full_name: model for model in self._known} | dict(self.served)
        if name not in models:
            hint = near(name, [*self.methods, *self.served])
            raise ApiError(
                404,
                f"there is no model {name!r}{hint}; GET /v1/models lists them",
                "model",
                "model_not_found",
            )
        return models[name]

    def endpoint(self, role: Role) -> ReplicatedEndpoint:
        engine = self.offer.engine
        return engine.small if role == "small" else engine.large

    def listing(self, created: int) -> list[JsonObject]:
        """Return the list of models in OpenAI's shape, with the context length of each."""
        return [self.describe(name, created) for name in (*self.methods, *self.served)]

    def describe(self, name: str, created: int) -> JsonObject:
        """Return one entry of the list. Raise `ApiError` if there is no model *name*."""
        model = self.find(name)
        owner = "stepspec"
        models = self._known
        if isinstance(model, ServedModel):
            owner = "vllm"
            models = [model]
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": owner,
            "max_model_len": min(model.endpoint.room for model in models),
        }

    @property
    def _known(self) -> list[ServedModel]:
        """The models whose servers have been up."""
        engine = self.offer.engine
        models = (ServedModel("small", engine.small), ServedModel("large", engine.large))
        return [model for model in models if model.endpoint.known]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run that a request asks for."""

    wanted: Wanted
    """What the request asks for."""
    run: RunOptions
    """All options of the run."""

    def within(self, seconds: float) -> RunRequest:
        """Return a copy that ends after *seconds* at the latest."""
        budget = self.run.budget
        limit = min(budget.seconds or seconds, seconds)
        limits = replace(budget, seconds=limit)
        return replace(self, run=self.run.model_copy(update={"budget": limits}))


@dataclass(frozen=True, slots=True)
class Resolver:
    """Makes runs from requests to one method, within the limits of the settings."""

    method: str
    """The name of the method."""
    offer: Offer
    """What the service offers, with the defaults of all options."""
    settings: ServiceSettings
    """The settings of the service, with the limits."""
    auto: bool = False
    """
    Whether the large model may answer alone where the method does not pay, as for the model "auto".

    The request and the settings may decide otherwise. A run with a seed stays with its method,
    because its text must not depend on measured times.
    """
    best_priority: int | None = None
    """The best priority that the client's key allows. None: the key allows any."""

    def runs(self, request: Request) -> tuple[RunRequest, ...]:
        """
        Return a run for each choice that *request* asks for, each with a seed of its own.

        Raise `ApiError` if the request is wrong.
        """
        wanted = request.wanted
        sampling = self._sampling(request)
        limit = self.settings.max_choices
        if wanted.choices > limit:
            raise bad_request(f"n={wanted.choices}: at most {limit} choices are allowed", "n")
        if wanted.choices > 1 and sampling.temperature == 0:
            raise bad_request(
                "n is above 1 and the temperature 0: all choices would be the same answer", "n"
            )
        self._check_conversation(wanted)
        _check_tools(wanted.tools)
        run = self._run_options(request, sampling, self._limits(request.stepspec, wanted))
        if sampling.seed is None:
            return (RunRequest(wanted, run),) * wanted.choices
        samplings = [sampling.with_seed(sampling.seed + choice) for choice in range(wanted.choices)]
        runs = [run.model_copy(update={"sampling": each}) for each in samplings]
        return tuple([RunRequest(wanted, each) for each in runs])

    def _run_options(
        self,
        request: Request,
        sampling: Sampling,
        limits: Budget,
    ) -> RunOptions:
        """Return all options of the run. Only the options of the method are validated here."""
        overrides = request.stepspec
        chosen = overrides.model_dump(exclude={"options", "budget", "thinking"}, exclude_none=True)
        values: JsonObject = {
            "policy": self.method,
            "options": self._options(overrides.options or {}),
            "sampling": sampling,
            "budget": limits,
        }
        if self.best_priority is not None:
            asked = chosen.get("priority")
            allowed = _allowed_priority(asked, self.best_priority, "stepspec.priority")
            values["priority"] = allowed
        run = self.offer.defaults.model_copy(update=chosen | values)
        if run.auto is None:
            run = run.model_copy(update={"auto": self.auto and sampling.seed is None})
        return run

    def _check_conversation(self, wanted: Wanted) -> None:
        """Raise `ApiError` if no model could answer the conversation."""
        conversation = wanted.conversation
        limit = self.settings.max_messages
        wrong = _orphan_result(conversation)
        if len(conversation) > limit:
            wrong = (
                f"the conversation has {len(conversation)} messages: at most {limit} are allowed"
            )
        elif not conversation:
            wrong = "the conversation is empty: send a message to answer"
        elif conversation[-1].role == "assistant":
            wrong = (
                "the last message is the assistant's: the conversation has to end with a message to"
                " answer"
            )
        if wrong:
            raise bad_request(wrong, wanted.conversation_name)

    def _options(self, requested: JsonFields) -> JsonObject:
        """Return the options of the method. The options *requested* override the settings."""
        options = {**self.offer.configured_options(self.method), **requested}
        if requested or self.method != self.offer.defaults.policy:
            try:
                self.offer.check(self.method, options)
            except ConfigurationError as exc:
                raise self._wrong_option(exc, requested) from exc
        return options

    def _wrong_option(self, exc: ConfigurationError, requested: JsonFields) -> ApiError:
        if not requested:
            return bad_request(str(exc), "model")
        if not exc.option:
            return bad_request(str(exc), "stepspec.options")
        known = exc.option in self.offer.methods[self.method].options
        code = "invalid_value" if known else "unknown_parameter"
        return bad_request(str(exc), f"stepspec.options.{exc.option}", code)

    def _sampling(self, request: Request) -> Sampling:
        """
        Return the sampling of *request*.

        The seed in the settings is not used, because it would give each client the same answer.
        """
        update = request.model_dump(include={*Sampling.model_fields}, exclude_none=True)
        if update.get("top_k") == -1:  # vLLM's name for all tokens
            update["top_k"] = 0
        return self.offer.defaults.sampling.model_copy(update={"seed": None} | update)

    def _limits(self, overrides: StepspecOptions, wanted: Wanted) -> Budget:
        """Return the budget in the settings, with the limits that the request asks for."""
        defaults = self.offer.defaults.budget
        tokens = wanted.tokens or defaults.tokens
        if self.settings.max_tokens is not None:
            tokens = min(tokens, self.settings.max_tokens)
        update: JsonObject = {"tokens": tokens}
        if wanted.tokens or tokens < defaults.tokens:
            update["answer"] = None  # what the settings reserve is for their own limit of tokens
        if overrides.budget:
            update |= overrides.budget.model_dump(exclude_none=True)
        reserved = update.setdefault("answer", defaults.answer)
        if reserved is not None and reserved >= tokens:
            raise bad_request(
                f"{reserved} tokens for the answer leave none of {tokens} to think",
                "stepspec.budget.answer",
            )
        limits = replace(defaults, **update)
        available = tokens - limits.for_answer
        share = EFFORT[wanted.effort or "max"]
        thinking = min(int(available * share), wanted.thinking or available)
        if thinking == available:
            return limits
        return replace(limits, answer=tokens - max(1, thinking))


def _orphan_result(conversation: Sequence[Message]) -> str:
    """Return the error if a result belongs to no call; "" if each result belongs to a call."""
    called: set[str] = set()
    for turn in conversation:
        if turn.role == "tool" and turn.call_id not in called:
            return (
                f"a tool's result is for the call {turn.call_id!r}, which no message before it"
                " makes: send the assistant's message with its calls too"
            )
        called |= {call.id for call in turn.calls}
    return ""


def forwarded_priority(content: JsonFields, best: int | None) -> int | None:
    """
    Return the priority that a forwarded request has among runs. None: the request keeps its own.

    *best* is the best priority that the client's key allows. None: the key allows any. A request
    without a priority gets *best*. Raise `ApiError` if the request asks for a better priority.
    """
    if best is None:
        return None
    asked = content.get("priority")
    if asked is not None and not (type(asked) is int and abs(asked) <= MAX_PRIORITY):
        raise bad_request(
            f"priority: send an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}", "priority"
        )
    return _allowed_priority(asked, best, "priority")


def _allowed_priority(asked: int | None, best: int, param: str) -> int:
    """Return *asked*, or *best* without it. Raise `ApiError` if *asked* is better than *best*."""
    if asked is not None and asked < best:
        raise bad_request(
            f"{param} is {asked}, and the API key allows {best} at best: send {best} or more; lower"
            " is first",
            param,
        )
    return best if asked is None else asked


def _check_tools(toolset: Toolset) -> None:
    """Raise `ApiError` if two tools have one name, or if the choice cannot be obeyed."""
    if not toolset.tools and (toolset.forced or toolset.choice == "required"):
        raise bad_request("tool_choice asks for a call, and tools is empty", "tool_choice")
    names = [tool.name for tool in toolset.tools]
    if len(set(names)) < len(names):
        name = max(names, key=names.count)
        raise bad_request(f"two tools are called {name!r}: give each a name of its own", "tools")
    if toolset.forced and toolset.forced not in names:
        hint = near(toolset.forced, names)
        raise bad_request(
            f"tool_choice names {toolset.forced!r}, which is no tool{hint}", "tool_choice"
        )
