"""
Reasoning-step-level speculation over two vLLM endpoints.

``__all__`` and `stepspec.prompts.load` are what stepspec promises: other names may change with any
version. `errors`, `events` and `trace` are modules with everything that is raised, that happens in
a run, and that reads and writes records of runs.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepspec.evals.benchmarks import Benchmark
    from stepspec.evals.grading.graders import Answer
    from stepspec.evals.sample import Task
    from stepspec.orchestrator import Budget, Chain, Ledger, Message, errors, events, trace
    from stepspec.orchestrator.chain import (
        Accept,
        Rating,
        Rival,
        Rollback,
        Step,
        Token,
        Tool,
        ToolCall,
        Toolset,
        Verdict,
    )
    from stepspec.orchestrator.endpoints import Endpoint, Sampling
    from stepspec.orchestrator.errors import ConfigurationError, EndpointError, StepspecError
    from stepspec.orchestrator.events import Event, Observer
    from stepspec.orchestrator.interfaces import Model, Policy
    from stepspec.orchestrator.run_options import RunOptions
    from stepspec.orchestrator.solution import Solution, SolvedStep, solved_steps
    from stepspec.orchestrator.verifiers import Candidate
    from stepspec.policies import Method, Threshold

    from .api import EventStream, Solver, asolve, solve
    from .settings import Settings

    __version__: str

__all__ = [
    "Accept",
    "Answer",
    "Benchmark",
    "Budget",
    "Candidate",
    "Chain",
    "ConfigurationError",
    "Endpoint",
    "EndpointError",
    "Event",
    "EventStream",
    "Ledger",
    "Message",
    "Method",
    "Model",
    "Observer",
    "Policy",
    "Rating",
    "Rival",
    "Rollback",
    "RunOptions",
    "Sampling",
    "Settings",
    "Solution",
    "SolvedStep",
    "Solver",
    "Step",
    "StepspecError",
    "Task",
    "Threshold",
    "Token",
    "Tool",
    "ToolCall",
    "Toolset",
    "Verdict",
    "__version__",
    "asolve",
    "errors",
    "events",
    "solve",
    "solved_steps",
    "trace",
]

MODULES = {
    "stepspec.api": ("EventStream", "Solver", "asolve", "solve"),
    "stepspec.settings": ("Settings",),
    "stepspec.policies": ("Method", "Threshold"),
    "stepspec.evals.benchmarks": ("Benchmark",),
    "stepspec.evals.grading.graders": ("Answer",),
    "stepspec.evals.sample": ("Task",),
    "stepspec.orchestrator": ("errors", "events", "trace"),
    "stepspec.orchestrator.budget": ("Budget",),
    "stepspec.orchestrator.chain": (
        *("Accept", "Chain", "Message", "Rating", "Rival", "Rollback"),
        *("Step", "Token", "Tool", "ToolCall", "Toolset", "Verdict"),
    ),
    "stepspec.orchestrator.endpoints": ("Endpoint", "Sampling"),
    "stepspec.orchestrator.errors": ("ConfigurationError", "EndpointError", "StepspecError"),
    "stepspec.orchestrator.events": ("Event", "Observer"),
    "stepspec.orchestrator.interfaces": ("Model", "Policy"),
    "stepspec.orchestrator.ledger": ("Ledger",),
    "stepspec.orchestrator.run_options": ("RunOptions",),
    "stepspec.orchestrator.solution": ("Solution", "SolvedStep", "solved_steps"),
    "stepspec.orchestrator.verifiers": ("Candidate",),
}
"""The names of each module. A module is imported when one of its names is first used."""

PLACES = {name: module for module, names in MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Look up a name of ``__all__`` when it is first used."""
    if name == "__version__":
        value: Any = resolve_name("importlib.metadata.version")("stepspec")
    elif name in PLACES:
        value = resolve_name(f"{PLACES[name]}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *globals()]
