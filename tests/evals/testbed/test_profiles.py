from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepspec.evals.experiments.tables import small_print
from stepspec.evals.testbed.profiles import Pace, pace, paced_drafter
from stepspec.orchestrator.errors import ConfigurationError


def test_the_default_profile_paces_large_and_small_differently() -> None:
    assert pace("paced", "large") == Pace(seconds_per_pass=0.030, seconds_per_token=0.000060)
    assert pace("paced", "small") == pace("paced", "small-other") == Pace(0.006, 0.000020)
    assert pace("paced", "tiny") == Pace(0.003, 0.000010)


def test_off_paces_nobody() -> None:
    assert pace("off", "large") is None


def test_an_unknown_profile_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no pacing profile 'fast'; there are: off, paced, slow"):
        pace("fast", "large")


def test_a_pace_reaches_vllm_through_the_models_configuration() -> None:
    assert Pace(0.5, 0.25).overrides() == {
        "architectures": ["PacedQwen3ForCausalLM"],
        "paced_seconds_per_pass": 0.5,
        "paced_seconds_per_token": 0.25,
    }


def test_a_drafter_is_paced_by_a_configuration_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64}))
    (tmp_path / "model.safetensors").write_text("weights")
    with paced_drafter(tmp_path, Pace(0.5, 0.25)) as folder:
        assert json.loads((folder / "config.json").read_text()) == {
            "architectures": ["PacedQwen3ForCausalLM"],
            "hidden_size": 64,
            "paced_seconds_per_pass": 0.5,
            "paced_seconds_per_token": 0.25,
        }
        assert (folder / "model.safetensors").read_text() == "weights"
    assert not folder.exists()
    assert (tmp_path / "model.safetensors").exists()
    with paced_drafter(tmp_path, None) as folder:
        assert folder == tmp_path


def test_a_role_that_a_profile_forgot_is_refused_and_not_left_unpaced() -> None:
    with pytest.raises(
        ConfigurationError, match="'slow' has no pace for 'smol'; it has: large, small, small-other, ti"
    ):
        pace("slow", "smol")
    assert pace("off", "smol") is None


def test_slow_is_three_times_as_long_for_every_model() -> None:
    for role in ("large", "small", "small-other", "tiny"):
        slow, usual = pace("slow", role), pace("paced", role)
        assert slow is not None
        assert usual is not None
        assert slow.seconds_per_pass == pytest.approx(3 * usual.seconds_per_pass)
        assert slow.seconds_per_token == pytest.approx(3 * usual.seconds_per_token)


def test_a_table_says_what_the_passes_were_set_to() -> None:
    assert "(large 30 ms + 60 us a token, small 6 ms + 20 us a token)" in small_print("paced")
    assert "(large 90 ms + 180 us a token, small 18 ms + 60 us a token, tiny 9 ms" in small_print("slow", "tiny")
    assert "passes take what they take. Seconds" in small_print("off")
