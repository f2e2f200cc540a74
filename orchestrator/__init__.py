"""Chains, the loop that grows them, and the seams to models and policies."""

from .budget import Budget
from .chain import Accept, Chain, Message, Rating, Rival, Rollback, Step, Token, Verdict
from .interfaces import Critic, Model, Policy
from .ledger import Ledger
from .reason import reason

__all__ = [
    "Accept",
    "Budget",
    "Chain",
    "Critic",
    "Ledger",
    "Message",
    "Model",
    "Policy",
    "Rating",
    "Rival",
    "Rollback",
    "Step",
    "Token",
    "Verdict",
    "reason",
]
