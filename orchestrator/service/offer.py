"""What the service serves and reports, as its builder passes it in: the service imports no policy and no solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..chain import Message, Toolset
from ..endpoints import ModelEndpoint
from ..endpoints.vllm_protocol import Format
from ..events import Observer
from ..run_options import RunOptions
from ..solution import Solution
from ..trace import Stopwatch


class Engine(Protocol):
    """Solves problems with two served models, many at the same time."""

    @property
    def small(self) -> ModelEndpoint: ...

    @property
    def large(self) -> ModelEndpoint: ...

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
        Solve one *problem* with the options *run*; cancelling the call closes all its requests to the models.

        The runs of one *session* use the same replica of each model while it is up.

        The times in events are from *clock*.
        """
        ...


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A method as clients choose it, with its default *options*; *judges* says whether it can reject a draft."""

    description: str
    options: Mapping[str, Any]
    judges: bool = True


@dataclass(frozen=True, slots=True)
class Offer:
    """
    What a service offers: the *engine*, its *methods* by name, and *defaults*, the options of a run that sets none.

    The policy of the *defaults* is the default method. *session_header* is the header that keeps the requests of one
    session on one server; "" if there is none. *check* raises `ConfigurationError`, which names the option, if the
    options are wrong for the method.
    """

    engine: Engine
    methods: Mapping[str, ServedMethod]
    defaults: RunOptions = field(default_factory=RunOptions)
    version: str = "0"
    session_header: str = ""
    check: Callable[[str, Mapping[str, Any]], object] = lambda method, options: options

    @property
    def unjudged(self) -> frozenset[str]:
        """The methods that accept every draft."""
        return frozenset(name for name, method in self.methods.items() if not method.judges)

    def configured_options(self, method: str) -> Mapping[str, Any]:
        """The options of *method* that the settings set: those of the default method, none of any other."""
        return self.defaults.options if method == self.defaults.policy else {}

    def default_options(self, method: str) -> Mapping[str, Any]:
        """All options of *method*, with the values for a request that sets none."""
        return {**self.methods[method].options, **self.configured_options(method)}
