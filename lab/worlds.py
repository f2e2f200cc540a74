"""The miniature models that no user needs, and the pace of all of them in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepspec.evals.testbed import servers
from stepspec.evals.testbed.servers import World, read_pace

MODELS = Path(__file__).parent / "models"
SHORT = replace(servers.SHORT, folders=(*servers.SHORT.folders, MODELS))
"""The world of the package, and its model that no user needs: ``small-other``."""
TOOLS = World("tools", (MODELS / "tools",), context=4096, cache=384)
"""The models for problems that need tools (`tests/tool_problems.py`)."""


def describe_pace(profile: str, *roles: str) -> str:
    """Describe the pace of each of *roles* in words, for the small print of tables."""
    paces = [(role, pace) for role in roles if (pace := read_pace(profile, role)) is not None]
    if not paces:
        return "passes are not paced"
    parts = (
        f"{role} {p.seconds_per_pass * 1e3:g} ms + {p.seconds_per_token * 1e6:g} us a token"
        for role, p in paces
    )
    return (
        f"only the cost of a forward pass is set ({', '.join(parts)}), to have the shape of a GPU's"
    )
