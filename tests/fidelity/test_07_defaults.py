"""`Sampling(seed=3)` meant temperature 0 while `sampling={"seed": 3}` meant 0.6."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepspec import Sampling
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.settings import Settings, load


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)


def test_a_sampling_has_the_same_defaults_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = Sampling(temperature=0.6, top_p=0.95, seed=3)
    assert Sampling(seed=3) == load(sampling={"seed": 3}).sampling == load(sampling=Sampling(seed=3)).sampling
    assert Sampling(seed=3) == expected
    assert Settings().sampling == load().sampling == Sampling()
    (tmp_path / "stepspec.toml").write_text("[sampling]\nseed = 3\n")
    assert load().sampling == expected
    monkeypatch.setenv("STEPSPEC_SAMPLING__TOP_K", "20")
    assert load().sampling == expected.model_copy(update={"top_k": 20})


def test_what_is_greedy_says_so() -> None:
    assert (GREEDY.temperature, GREEDY.top_p, GREEDY.seed) == (0, 1, None)
