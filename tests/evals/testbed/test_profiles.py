from __future__ import annotations

import pytest

from stepspec.evals.testbed.profiles import Pace, pace
from stepspec.orchestrator.errors import ConfigurationError


def test_the_default_profile_paces_large_and_small_differently() -> None:
    assert pace("paced", "large") == Pace(seconds_per_pass=0.030, seconds_per_token=0.000060)
    assert pace("paced", "small") == pace("paced", "small-other") == Pace(0.006, 0.000020)


def test_off_paces_nobody() -> None:
    assert pace("off", "large") is None


def test_an_unknown_profile_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no pacing profile 'fast'; there are: off, paced"):
        pace("fast", "large")


def test_a_pace_reaches_vllm_through_the_models_configuration() -> None:
    assert Pace(0.5, 0.25).overrides() == {
        "architectures": ["PacedQwen3ForCausalLM"],
        "paced_seconds_per_pass": 0.5,
        "paced_seconds_per_token": 0.25,
    }
