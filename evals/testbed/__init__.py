"""
The miniature pair: tiny trained models that real vLLM serves on a CPU, with their
problems.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Profile: TypeAlias = Literal["paced", "slow", "off"]
"""The name of a table of ``profiles.toml``, which has the pace of each model."""
SpeculationMethod: TypeAlias = Literal["none", "ngram", "draft_model"]
"""How the servers of the pair draft tokens for their own models."""
