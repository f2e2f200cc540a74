"""Reasoning-step-level speculation over two vLLM endpoints."""

from importlib.metadata import version

from stepspec.orchestrator import Budget, Chain, Ledger, Message, Step
from stepspec.orchestrator.endpoints import Endpoint, Sampling
from stepspec.orchestrator.errors import StepspecError
from stepspec.orchestrator.nesting import NestedPair
from stepspec.orchestrator.solution import Solution, SolvedStep

from .api import Solver, asolve, solve

__all__ = [
    "Budget",
    "Chain",
    "Endpoint",
    "Ledger",
    "Message",
    "NestedPair",
    "Sampling",
    "Solution",
    "SolvedStep",
    "Solver",
    "Step",
    "StepspecError",
    "__version__",
    "asolve",
    "solve",
]

__version__ = version("stepspec")
