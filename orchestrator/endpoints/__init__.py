"""The servers of a model: settings, replicas with circuit breakers, and the interface of both."""

from .chat_template import Template
from .interfaces import ModelEndpoint
from .replicas import ReplicatedEndpoint, ReplicatedModel
from .settings import GREEDY, CriticEndpoint, Deadlines, Endpoint, Sampling

__all__ = [
    "GREEDY",
    "CriticEndpoint",
    "Deadlines",
    "Endpoint",
    "ModelEndpoint",
    "ReplicatedEndpoint",
    "ReplicatedModel",
    "Sampling",
    "Template",
]
