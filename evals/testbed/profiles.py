"""How long the miniature models' forward passes take: named profiles, read from ``profiles.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...orchestrator.errors import ConfigurationError

PROFILES = Path(__file__).with_name("profiles.toml")
ARCHITECTURE = "PacedQwen3ForCausalLM"


@dataclass(frozen=True, slots=True)
class Pace:
    """What one pass takes at least: so many seconds, and so many more for each token in it."""

    seconds_per_pass: float
    seconds_per_token: float

    def overrides(self) -> dict[str, Any]:
        """Return what to change in a Qwen3's Hugging Face configuration so that vLLM serves it at this pace."""
        return {"architectures": [ARCHITECTURE], **{f"paced_{name}": value for name, value in asdict(self).items()}}


def pace(profile: str, role: str) -> Pace | None:
    """Return the pace of *role* in *profile*; None if the profile does not pace it."""
    profiles = tomllib.loads(PROFILES.read_text(encoding="utf-8"))
    if profile not in profiles:
        raise ConfigurationError(f"there is no pacing profile {profile!r}; there are: {', '.join(sorted(profiles))}")
    return Pace(**profiles[profile][role]) if role in profiles[profile] else None
