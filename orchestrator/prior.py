"""What is known of a method before its first run, as a table of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

ASSUMED_ACCEPT_RATE = 0.75
"""The accept rate of a method of which nothing is known: the mean of 25 logged runs is 0.79."""


class Prior(BaseModel):
    """What is known of the method before the first run, as ``stepspec tune`` measures it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    accept_rate: float = Field(default=ASSUMED_ACCEPT_RATE, ge=0, le=1)
    """The share of the small model's drafts that the method accepts."""
    verdict_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds of a verdict; none: it is measured."""
    pace: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The small model's seconds per token, over those of the large one."""
    runs: int | None = Field(default=None, ge=1)
    """
    Runs at once up to which the method saves time; with more the large model writes alone; none: no
    limit.
    """
