"""What is known of a method before its first run: a table of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Prior(BaseModel):
    """What is known of the method before the first run, as ``stepspec tune`` measures it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The default is a little below the mean of 25 logged runs, 0.79.
    accept_rate: float = Field(default=0.75, ge=0, le=1)
    """The share of the small model's drafts that the method accepts."""
    verdict_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds of a verdict; none: the first runs measure them."""
    pace: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The small model's seconds per token, divided by those of the large model."""
    runs: int | None = Field(default=None, ge=1)
    """
    The most runs at once with which the method saves time; none: no limit.

    With more runs the large model writes alone.
    """
