"""
Reasoning-step-level speculation over two vLLM endpoints.

``__all__`` and `stepspec.prompts.load` are what stepspec promises: other names may change with any
version. `errors`, `events` and `trace` are modules with everything that is raised, that happens in
a run, and that reads and writes records of runs.
"""

import importlib.metadata
from typing import TYPE_CHECKING, Any

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
from stepspec.orchestrator.nesting import NestedPair
from stepspec.orchestrator.run_options import RunOptions
from stepspec.orchestrator.solution import Solution, SolvedStep, solved_steps
from stepspec.orchestrator.verifiers import Candidate
from stepspec.policies import Method, Threshold

from .api import EventStream, Solver, asolve, solve
from .settings import Settings

if TYPE_CHECKING:
    from stepspec.evals.benchmarks import Benchmark
    from stepspec.evals.grading.graders import Answer
    from stepspec.evals.sample import Task

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
    "NestedPair",
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

LAZY = {
    "Answer": "stepspec.evals.grading.graders",
    "Benchmark": "stepspec.evals.benchmarks",
    "Task": "stepspec.evals.sample",
}
"""The modules of names that are seldom needed."""


def __getattr__(name: str) -> Any:
    """Look up what is seldom needed when it is first used."""
    if name == "__version__":
        return importlib.metadata.version("stepspec")
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
