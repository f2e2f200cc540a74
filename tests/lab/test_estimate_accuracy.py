"""What was predicted beside what was measured, and the bar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer

from lab import estimate_accuracy
from lab.crowd import Timing
from lab.estimate_accuracy import Comparison, arms_by_load, compare, main
from lab.simulation.estimated import compared
from lab.simulation.grid import GPUS, Chains, find_pair
from stepspec.evals.arms import PLAIN, SHIPPED
from stepspec.evals.estimate.prediction import predict
from stepspec.evals.results import Interval
from stepspec.orchestrator.errors import ConfigurationError

from ..evals.estimate.made import LARGE_SERVER, measured

LOADED = replace(LARGE_SERVER, between={1: (0.1,), 4: (0.2,)})
ESTIMATE = predict(measured(8, 2, large=LOADED, runs={(SHIPPED.name, 4): 0.05}), [4])
GOOD = Comparison("SpecReason", 1, 1, Interval(3.1, 2.5, 3.9), Interval(2.9, 2.7, 3.1), 3.4)


def timed(*latencies: float) -> list[Timing]:
    return [Timing(latency) for latency in latencies]


def test_each_load_is_measured_at_the_depth_estimated_for_it() -> None:
    arms = arms_by_load(ESTIMATE)
    assert list(arms) == [1, 4]
    assert [arm.name for arm in arms[4]] == [PLAIN.name, "SpecReason, 1 ahead"]
    assert [arm.run.ahead for arm in (arms[1][1], arms[4][1])] == [3, 1]


def test_speed_ups_are_compared_over_the_same_problems() -> None:
    timings: dict[tuple[int, str], list[Timing]] = {}
    for load, ahead, slower in ((1, 3, 1.0), (4, 1, 2.0)):
        timings[load, PLAIN.name] = timed(8.0 * slower, 12.0 * slower)
        timings[load, f"SpecReason, {ahead} ahead"] = timed(4.0, 4.0)
    first, loaded = compare(ESTIMATE, timings)
    assert (first.method, first.concurrency, first.measured_seconds) == (SHIPPED.name, 1, 4.0)
    assert (first.measured.value, loaded.measured.value) == pytest.approx((2.5, 5.0))
    assert first.measured.low <= 2.5 <= first.measured.high
    assert first.predicted == ESTIMATE.methods[0].alone.gain
    assert first.off == pytest.approx(first.predicted.value / 2.5 - 1)


@pytest.mark.parametrize(("predicted", "code"), [(3.1, 0), (3.7, 1), (2.1, 1)])
def test_a_prediction_that_is_far_off_is_named_and_exit_code_1(
    predicted: float,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = replace(GOOD, predicted=Interval(predicted, 2.0, 4.0))

    async def work(*arguments: Any) -> list[Comparison]:
        return [comparison]

    monkeypatch.setattr(estimate_accuracy, "run", work)
    raised = 0
    try:
        main(output=tmp_path / "estimate.json")
    except typer.Exit as exc:
        raised = exc.exit_code
    assert raised == code
    printed = capsys.readouterr().out
    assert f"{predicted:.2f} [2.00, 4.00]" in printed
    assert ("missed: SpecReason, 1 at once" in printed) == bool(code)
    (row,) = orjson.loads((tmp_path / "estimate.json").read_bytes())
    assert row["off"] == pytest.approx(predicted / 2.9 - 1)


def test_more_blocks_than_problems_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="every block needs a problem"):
        main(blocks=9, counted=4)


@pytest.mark.parametrize("pair", ["qwen3-32b-h200", "qwen3-32b-two-h200"])
@pytest.mark.parametrize("accepted", [0.5, 0.95])
def test_an_estimate_of_a_simulated_pair_is_right_alone_and_under_load(
    pair: str, accepted: float
) -> None:
    rows = list(
        compared(find_pair(GPUS, pair), [SHIPPED], Chains(steps=40, tokens=50), accepted, [8])
    )
    assert [row["users"] for row in rows] == [1, 8]
    # two minutes have too few bursts of rejections to know the accept rate better
    assert [row["over"] for row in rows] == pytest.approx(
        [1, 1], abs=0.1 if accepted > 0.9 else 0.25
    )
