"""The vLLM client: settings, and models that write, score and ask over HTTP."""

from .chat_template import Template
from .interfaces import ModelEndpoint
from .replicas import ReplicatedEndpoint, ReplicatedModel, connect
from .reward_model import RewardModelEndpoint
from .settings import CriticEndpoint, Deadlines, Endpoint, Sampling
from .vllm import VllmEndpoint
from .vllm_model import VllmModel
from .vllm_protocol import GREEDY

__all__ = [
    "GREEDY",
    "CriticEndpoint",
    "Deadlines",
    "Endpoint",
    "ModelEndpoint",
    "ReplicatedEndpoint",
    "ReplicatedModel",
    "RewardModelEndpoint",
    "Sampling",
    "Template",
    "VllmEndpoint",
    "VllmModel",
    "connect",
]
