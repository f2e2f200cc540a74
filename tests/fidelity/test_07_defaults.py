"""`Sampling(seed=3)` meant temperature 0 while `sampling={"seed": 3}` meant 0.6."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lab.bench import BASELINES
from stepspec import Sampling
from stepspec.orchestrator.endpoints import GREEDY
from stepspec.orchestrator.errors import ConfigurationError
from stepspec.settings import Settings, load

from ..evals.scripted import SolveCall
from ..lab.test_bench import FIGURES, Servers, measured, servers

pytestmark = pytest.mark.usefixtures("nowhere")
ARMS = len(BASELINES)

__all__ = ["servers"]  # the fixture


def test_a_sampling_has_the_same_defaults_wherever_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = Sampling(temperature=0.6, top_p=0.95, seed=3)
    assert (
        Sampling(seed=3)
        == load(sampling={"seed": 3}).sampling
        == load(sampling=Sampling(seed=3)).sampling
    )
    assert Sampling(seed=3) == expected
    assert Settings().sampling == load().sampling == Sampling()
    (tmp_path / "stepspec.toml").write_text("[sampling]\nseed = 3\n")
    assert load().sampling == expected
    monkeypatch.setenv("STEPSPEC_SAMPLING__TOP_K", "20")
    assert load().sampling == expected.model_copy(update={"top_k": 20})


def test_the_greedy_sampling_is_explicit() -> None:
    assert (GREEDY.temperature, GREEDY.top_p, GREEDY.seed) == (0, 1, None)


def temperature(run: SolveCall) -> float:
    return run.sampling.temperature


def test_the_bench_interleaves_both_samplings_and_shows_the_default_first(
    servers: Servers, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(sampling="both")
    rows = orjson.loads(FIGURES.read_bytes())
    assert [row["sampling"]["temperature"] for row in rows] == [0.6] * ARMS + [0.0] * ARMS
    assert [row["name"] for row in rows[:ARMS]] == [row["name"] for row in rows[ARMS:]]
    assert {row["n"] for row in rows} == {2}
    first = servers.solver.calls[: 2 * ARMS]
    second = servers.solver.calls[2 * ARMS :]
    # every arm at both samplings before the next problem, all by one seed
    for problem in (first, second):
        assert sorted(map(temperature, problem)) == [0.0] * ARMS + [0.6] * ARMS
        assert len({run.seed for run in problem}) == 1
    assert first[0].seed != second[0].seed
    printed = capsys.readouterr().out
    assert (
        0 <= printed.index("Sampled at temperature 0.6") < printed.index("Greedy (temperature 0)")
    )


def test_a_sampling_that_does_not_exist_is_refused(servers: Servers) -> None:
    with pytest.raises(ConfigurationError, match="there are 'both', 'default', 'greedy'"):
        measured(sampling="hot")
