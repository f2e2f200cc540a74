"""What the service serves, given to it by argument: it knows no policy and no solver by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Unpack

from ..budget import Budget
from ..chain import Message
from ..endpoints import ModelEndpoint, Sampling
from ..endpoints.vllm_protocol import Format
from ..events import Observer
from ..feedback.drift import LEAST, Drift
from ..feedback.shadow import ShadowRecord
from ..run_options import RunOverrides
from ..solution import Solution
from ..stats import Acceptance, wilson


class Engine(Protocol):
    """Solves problems with two served models, many at the same time."""

    @property
    def small(self) -> ModelEndpoint: ...

    @property
    def large(self) -> ModelEndpoint: ...

    async def solve(
        self,
        problem: str | Sequence[Message],
        *,
        sampling: Sampling | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
        stop: Sequence[str] = (),
        format: Format | None = None,
        observe: Observer = ...,
        trace_to: Path | None = None,
        session: str | None = None,
        **overrides: Unpack[RunOverrides],
    ) -> Solution:
        """Solve one *problem*; cancelling the call closes every request of it."""
        ...


@dataclass(frozen=True, slots=True)
class CalibrationStatus:
    """With *confidence*, *policy* loses at most *max_loss* of the problems while its *option* has this *value*."""

    policy: str
    option: str
    value: float
    max_loss: float
    confidence: float


@dataclass(frozen=True, slots=True)
class JudgeStatus:
    """
    What there is to know by now; None where nothing is.

    The *promise* is that of the calibration in force, and *drift* the grades since. *shadows* are the checks so far.
    """

    promise: CalibrationStatus | None = None
    drift: Drift | None = None
    shadows: ShadowRecord | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The same as values of JSON."""
        return {
            "promise": self.promise and asdict(self.promise),
            "drift": self.drift and _drift(self.drift),
            "shadows": self.shadows and _shadows(self.shadows),
        }


def _drift(drift: Drift) -> dict[str, Any]:
    return {"moved": drift.moved, "grades": drift.live.n, "least": LEAST, "drifted": drift.drifted}


def _shadows(record: ShadowRecord) -> dict[str, Any]:
    interval = wilson(record.agreed, record.checked) if record.checked else None
    return asdict(record) | {"checked": record.checked, "interval": interval}


@dataclass(frozen=True, slots=True)
class Method:
    """
    One method as clients choose it: what it is *about*, and its *options* with their defaults.

    *judges* is whether anything may be rejected in it.
    """

    about: str
    options: Mapping[str, Any]
    judges: bool = True


@dataclass(frozen=True, slots=True)
class Offer:
    """
    What is served: the *engine*, its *methods* by name, and what applies to requests that do not say.

    *policy* is the default method, and *options* are those configured for it. *trust* tells what is known by now about
    the judge, *speculation* what the servers count of token-level speculation, by role or path. *session_header* is the
    header of a request that keeps what belongs together on one server; "" if there is none. *check* takes a method
    and options for it, and raises `ConfigurationError` for wrong values.
    """

    engine: Engine
    methods: Mapping[str, Method]
    policy: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling = field(default_factory=Sampling)
    budget: Budget = field(default_factory=Budget)
    version: str = "0"
    trust: Callable[[], JudgeStatus] = JudgeStatus
    speculation: Callable[[], Mapping[str, Acceptance]] = dict[str, Acceptance]
    session_header: str = ""
    check: Callable[[str, Mapping[str, Any]], object] = lambda method, options: options

    @property
    def unjudged(self) -> frozenset[str]:
        """The methods in which nothing is judged."""
        return frozenset(name for name, method in self.methods.items() if not method.judges)

    def options_of(self, method: str) -> Mapping[str, Any]:
        """The options of *method* as a request that says nothing has them."""
        return {**self.methods[method].options, **(self.options if method == self.policy else {})}
