"""The vLLM client: settings, and models that write, score and ask over HTTP."""

from .settings import Deadlines, Endpoint, Sampling
from .template import Template, learn
from .vllm import VllmEndpoint, VllmModel

__all__ = ["Deadlines", "Endpoint", "Sampling", "Template", "VllmEndpoint", "VllmModel", "learn"]
