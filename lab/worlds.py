"""The miniature models that no user needs, and the pace of all of them in words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepspec.evals.testbed import Profile
from stepspec.evals.testbed.servers import FLAGS, SEQUENCES, paced_configuration

MODELS = Path(__file__).parent / "models"
SMALL_OTHER = MODELS / "small-other"
"""A small model of another vocabulary."""
TOOLS = (MODELS / "tools" / "large", MODELS / "tools" / "small")
"""The models for problems that need tools (`tests/tool_problems.py`)."""
TOOLS_CONTEXT = 4096  # tokens
TOOLS_FLAGS: Mapping[str, Any] = {
    **FLAGS,
    "max-model-len": TOOLS_CONTEXT,
    "kv-cache-memory-bytes": 384 * 2**20,
    "max-num-batched-tokens": SEQUENCES * TOOLS_CONTEXT,
}
"""The flags of servers of `TOOLS`."""


def describe_pace(profile: Profile, *roles: str) -> str:
    """Describe the pace of each of *roles* in words, for the small print of tables."""
    paces = {role: paced_configuration(profile, role) for role in roles}
    if not any(paces.values()):
        return "passes are not paced"
    parts = (
        f"{role} {pace['paced_seconds_per_pass'] * 1e3:g} ms"
        f" + {pace['paced_seconds_per_token'] * 1e6:g} us a token"
        for role, pace in paces.items()
    )
    return (
        f"only the cost of a forward pass is set ({', '.join(parts)}), to have the shape of a GPU's"
    )
