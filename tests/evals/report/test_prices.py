"""GPU-seconds and money, computed by hand; counters of servers; the choice of cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepspec.evals.arms import LARGE, SHIPPED, SMALL
from stepspec.evals.report.figures import compute_figures, samples_by_number, server_counters
from stepspec.evals.report.prices import GpuRental, Prices, compute_costs, load_prices
from stepspec.evals.report.section import choose_cases
from stepspec.orchestrator.errors import ConfigurationError

from .made import ARMS, mixed, samples

DOCS = Path(__file__).parents[3] / "docs"


def test_gpus_are_held_for_the_duration_of_the_runs_that_need_them() -> None:
    found = {cost.name: cost for cost in compute_costs(compute_figures(samples(), ARMS), Prices())}
    assert set(found) == {arm.name for arm in ARMS}  # and no oracle
    assert (found[LARGE.name].held, found[LARGE.name].busy, found[LARGE.name].of_baseline) == (4.0, 4.0, 1.0)
    assert (found[SMALL.name].held, found[SMALL.name].of_baseline) == (1.0, 0.25)
    shipped = found[SHIPPED.name]
    assert (shipped.held, shipped.busy, shipped.of_baseline) == (7.0, 1.5, 1.75)
    assert shipped.money_held is None


def test_money_is_gpu_seconds_times_prices() -> None:
    prices = Prices(
        currency="EUR",
        large=GpuRental(gpus=2, per_gpu_hour=3.6),
        small=GpuRental(gpus=0.5, per_gpu_hour=7.2, gpu="A10"),
    )
    found = {cost.name: cost for cost in compute_costs(compute_figures(samples(), ARMS), prices)}
    large, shipped = found[LARGE.name], found[SHIPPED.name]
    assert large.money_held == pytest.approx(4.0 * 2 * 0.001)
    assert large.money_right == pytest.approx(0.008 / 0.75)
    assert shipped.held == pytest.approx(3.5 * 2.5)
    assert shipped.money_held == pytest.approx(3.5 * (2 * 0.001 + 0.5 * 0.002))
    assert shipped.money_busy == pytest.approx(1.0 * 2 * 0.001 + 0.5 * 0.5 * 0.002)
    assert shipped.of_baseline == pytest.approx(0.0105 / 0.008)
    assert prices.summary == "small: 0.5 x A10 at 7.2 EUR an hour; large: 2 x GPU at 3.6 EUR an hour"


def test_the_documented_price_file_is_one() -> None:
    prices = load_prices(DOCS / "prices.toml")
    assert (prices.currency, prices.large.gpus, prices.small.gpus) == ("USD", 2, 0.25)
    assert "prices.toml" in (DOCS / "evals.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[large]\ngpus = 0", "greater than 0"),
        ("[huge]\ngpus = 1", "huge: Extra inputs"),
        ("currency =", "Invalid value"),
        ('currency = "EUR"\n[large]\nper_gpu_hour = 2', "per_gpu_hour for both"),
        ("[large]\nper_gpu_hour = 2\n[small]\nper_gpu_hour = 2", "need a currency"),
    ],
)
def test_a_file_that_is_no_price_file_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=complaint):
        load_prices(path)
    with pytest.raises(ConfigurationError, match="no price file"):
        load_prices(tmp_path / "none.toml")


def session(before: dict[str, float], after: dict[str, float] | None) -> dict[str, Any]:
    ended = {} if after is None else {"counters": [after]}
    return {"servers": [{"role": "large", "counters": before}], **ended}


def counters(
    queried: float, hit: float, drafts: float = 0, drafted: float = 0, accepted: float = 0
) -> dict[str, float]:
    return {
        "vllm:prefix_cache_queries_total": queried,
        "vllm:prefix_cache_hits_total": hit,
        "vllm:spec_decode_num_drafts_total": drafts,
        "vllm:spec_decode_num_draft_tokens_total": drafted,
        "vllm:spec_decode_num_accepted_tokens_total": accepted,
    }


def test_counters_are_the_difference_of_two_readings() -> None:
    sessions = [
        session(counters(100, 50), counters(300, 100, 10, 40, 30)),
        session(counters(300, 100, 10, 40, 30), None),  # killed
        session({}, counters(100, 100, 10, 40, 10)),  # a server that had counted nothing yet
        session(counters(900, 900), counters(5, 5)),  # a server that was started again meanwhile
    ]
    (found,) = server_counters(sessions)
    assert (found.role, found.sessions, found.queried, found.hit, found.hits) == ("large", 2, 300, 150, 0.5)
    assert found.speculation is not None
    assert (found.speculation.rate, found.speculation.length) == (0.5, 3.0)
    assert server_counters([session({}, None)]) == []


def test_servers_that_do_not_speculate_have_no_acceptance() -> None:
    (found,) = server_counters([session(counters(0, 0), counters(0, 0))])
    assert (found.hits, found.speculation) == (None, None)


def test_cases_are_the_failed_and_the_slow_problems() -> None:
    chosen = choose_cases(compute_figures(samples(), ARMS), samples_by_number(samples(), ARMS, 1), 1)
    assert [case.seconds for case in chosen.slowest] == [5.0, 4.0, 3.0, 2.0]
    assert {case.arm for case in chosen.slowest} == {SHIPPED.name}
    assert [(case.problem, case.outcome) for case in chosen.lost] == [(2, "wrong")]
    assert [(case.problem, case.outcome, case.baseline_seconds) for case in chosen.gained] == [(3, "right", 4.0)]
    assert [(case.rejected, case.drafts) for case in chosen.disputed] == [(1, 4)] * 4


def test_the_most_disputed_are_those_with_the_most_rejected_drafts() -> None:
    quick = mixed(0.5)
    done = {**samples(), (1, SHIPPED.name): replace(quick, ledger=replace(quick.ledger, accepted=1))}
    sure = mixed(9.0)
    done[2, SHIPPED.name] = replace(sure, ledger=replace(sure.ledger, accepted=4))
    chosen = choose_cases(compute_figures(done, ARMS), samples_by_number(done, ARMS, 1), 1)
    assert [(case.problem, case.rejected) for case in chosen.disputed] == [(1, 3), (3, 1), (0, 1)]
