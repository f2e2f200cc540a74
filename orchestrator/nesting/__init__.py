"""Nested pairs: two models and a policy over them stand in for one model, to any depth."""

from .endpoint import (
    NestedEndpoint,
    NestedPair,
    described,
    known,
    leaves,
    named,
    neighbours,
    require_agreement,
    servers,
)
from .model import Nested

__all__ = [
    "Nested",
    "NestedEndpoint",
    "NestedPair",
    "described",
    "known",
    "leaves",
    "named",
    "neighbours",
    "require_agreement",
    "servers",
]
