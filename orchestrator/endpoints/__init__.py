"""The vLLM client: settings, and models that write, score and ask over HTTP."""

from .critic import VllmCritic
from .interfaces import AnyEndpoint
from .model import VllmModel
from .replicas import ReplicatedEndpoint, connect
from .seated import ReplicatedModel
from .settings import CriticEndpoint, Deadlines, Endpoint, Sampling
from .template import Template, learn
from .vllm import VllmEndpoint
from .wire import GREEDY

__all__ = [
    "GREEDY",
    "AnyEndpoint",
    "CriticEndpoint",
    "Deadlines",
    "Endpoint",
    "ReplicatedEndpoint",
    "ReplicatedModel",
    "Sampling",
    "Template",
    "VllmCritic",
    "VllmEndpoint",
    "VllmModel",
    "connect",
    "learn",
]
