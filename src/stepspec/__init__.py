"""Reasoning-step-level speculation over two vLLM endpoints."""

from .api import Solver, asolve, solve
from .orchestrator import Budget, Chain, Ledger, Message, Step
from .orchestrator.endpoints import Endpoint, Sampling
from .orchestrator.errors import StepspecError
from .orchestrator.nesting import NestedPair
from .orchestrator.solution import Solution, SolvedStep

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
    "asolve",
    "solve",
]
