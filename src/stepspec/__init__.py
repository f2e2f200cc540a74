"""Reasoning-step-level speculation over two vLLM endpoints."""

from .api import Solution, SolvedStep, Solver, asolve, solve
from .orchestrator import Budget, Chain, Ledger, Message, Step
from .orchestrator.endpoints import Endpoint, Sampling
from .orchestrator.errors import StepspecError

__all__ = [
    "Budget",
    "Chain",
    "Endpoint",
    "Ledger",
    "Message",
    "Sampling",
    "Solution",
    "SolvedStep",
    "Solver",
    "Step",
    "StepspecError",
    "asolve",
    "solve",
]
