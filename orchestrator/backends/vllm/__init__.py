"""The client of vLLM: models that write, score and answer questions over HTTP."""

from .endpoint import VllmEndpoint, connect
from .model import VllmModel
from .reward_model import RewardModelEndpoint

__all__ = ["RewardModelEndpoint", "VllmEndpoint", "VllmModel", "connect"]
