"""Nested pairs: two models and a policy over them stand in for one model, to any depth."""

from .endpoint import NestedEndpoint, answering, described, known, leaves, named, require_agreement, servers
from .model import Nested
from .settings import NestedPair, SmallModel, neighbours

__all__ = [
    "Nested",
    "NestedEndpoint",
    "NestedPair",
    "SmallModel",
    "answering",
    "described",
    "known",
    "leaves",
    "named",
    "neighbours",
    "require_agreement",
    "servers",
]
