"""The servers of a model: settings, replicas and their circuit breakers."""

from .chat_template import Template
from .replicas import ReplicatedEndpoint, ReplicatedModel
from .settings import GREEDY, CriticEndpoint, Deadlines, Endpoint, Sampling

__all__ = [
    "GREEDY",
    "CriticEndpoint",
    "Deadlines",
    "Endpoint",
    "ReplicatedEndpoint",
    "ReplicatedModel",
    "Sampling",
    "Template",
]
