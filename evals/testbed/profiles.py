"""How long the miniature models' forward passes take: named profiles, read from ``profiles.toml``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepspec.orchestrator.errors import ConfigurationError

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


def described(profile: str, *roles: str) -> str:
    """What a pass of each of *roles* is set to, in words."""
    known = [(role, one) for role in roles if (one := pace(profile, role)) is not None]
    if not known:
        return "passes take what they take"
    said = (f"{role} {p.seconds_per_pass * 1e3:g} ms + {p.seconds_per_token * 1e6:g} us a token" for role, p in known)
    return f"only the cost of a forward pass is set ({', '.join(said)}), to have the shape of a GPU's"


def pace(profile: str, role: str) -> Pace | None:
    """
    Return the pace of *role* in *profile*; None if the profile paces nobody.

    Raise ConfigurationError for an unknown profile, and for a role that the profile should pace and does not.
    """
    profiles = tomllib.loads(PROFILES.read_text(encoding="utf-8"))
    if profile not in profiles:
        raise ConfigurationError(f"there is no pacing profile {profile!r}; there are: {', '.join(sorted(profiles))}")
    paces = profiles[profile]
    if paces and role not in paces:
        raise ConfigurationError(f"the pacing profile {profile!r} has no pace for {role!r}; it has: {', '.join(paces)}")
    return Pace(**paces[role]) if paces else None


@contextmanager
def paced_drafter(model: Path, pace: Pace | None) -> Generator[Path]:
    """
    Yield a folder that vLLM takes for *model* at its *pace*; without a pace, *model* itself.

    vLLM gives the overrides of its command line to the model that it serves, and not to the one that drafts for it.
    """
    if pace is None or not model.is_dir():
        yield model
        return
    with TemporaryDirectory(prefix="stepspec-drafter-") as made:
        folder = Path(made)
        for file in model.iterdir():
            if file.name != "config.json":
                (folder / file.name).symlink_to(file.resolve())
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**config, **pace.overrides()}), encoding="utf-8")
        yield folder
