"""Pairs on GPUs of published figures: the file, the cells, and the break-even point."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from typer.testing import CliRunner

from lab.simulation.__main__ import app
from lab.simulation.grid import (
    GPUS,
    SHARES,
    Chains,
    break_even,
    crossing,
    find_pair,
    read_pairs,
    simulate_cell,
    slower,
)
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.orchestrator.errors import ConfigurationError

SHORT = Chains(steps=6, tokens=40)


def test_the_shipped_file_has_pairs_whose_small_models_are_faster() -> None:
    pairs = read_pairs(GPUS)
    assert len(pairs) >= 6
    for pair in pairs.values():
        assert pair.small.seconds(8) < pair.large.seconds(8)
        assert pair.cards(SHIPPED) == pair.cards(LARGE) + (0 if pair.shared else pair.small_cards)


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("qwen3-32b", {8: 16.7, 16: 19.3, 32: 25.3, 64: 32.3}),
        ("qwen3-8b", {8: 9.7, 16: 11.9, 32: 16.9, 63: 26.6}),
    ],
)
def test_passes_reproduce_the_published_times_between_tokens(
    model: str, published: dict[int, float]
) -> None:
    """
    Medians in milliseconds, by the number of sequences, at the mean context that the file assumes.
    """
    costs = find_pair(GPUS, model).large
    context = {"qwen3-32b": 3700, "qwen3-8b": 4100}[model]
    for sequences, milliseconds in published.items():
        assert 1000 * costs.seconds(sequences, 0, sequences * context) == pytest.approx(
            milliseconds, rel=0.1
        )


def test_a_wrong_file_and_an_unknown_pair_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"there is no pair 'x' in gpus\.toml; there are: qwen3-32b"
    ):
        find_pair(GPUS, "x")
    path = tmp_path / "gpus.toml"
    path.write_text("[servers.a]\nper_pass = 1.0\n[pairs]\n")
    with pytest.raises(ConfigurationError, match="not the costs of servers"):
        read_pairs(path)


def test_drafts_that_are_good_at_one_share_are_good_at_a_higher_one() -> None:
    few, many = (
        {
            (at, place)
            for at, script in enumerate(SHORT.scripts(share))
            for place, t in enumerate(script.turns)
            if t.kept
        }
        for share in (0.3, 0.8)
    )
    assert few < many
    assert SHORT.scripts(0.5) == SHORT.scripts(0.5) != replace(SHORT, seed=1).scripts(0.5)


def test_a_better_small_model_and_a_faster_one_save_time() -> None:
    pair = find_pair(GPUS, "qwen3-32b")
    bad, good = (simulate_cell(pair, SHIPPED, 2, SHORT, share, 4) for share in (0.2, 0.9))
    assert good.figures.mean < bad.figures.mean
    faster = replace(pair, small=slower(pair.small, 2.0))
    assert simulate_cell(faster, SHIPPED, 2, SHORT, 0.9, 4).figures.mean < good.figures.mean
    alone = simulate_cell(pair, LARGE, 2, SHORT, 1.0, 4)
    assert (alone.cards, good.cards) == (2, 3)
    assert good.hourly == pytest.approx(3600 * good.figures.problems_per_second / 3)


def test_a_crossing_is_the_least_rate_from_which_on_the_method_pays() -> None:
    assert crossing({0.0: 2.0, 0.5: 1.2, 1.0: 0.8}) == pytest.approx(0.75)
    assert crossing({0.0: 0.9, 0.5: 1.2, 1.0: 0.8}) == pytest.approx(0.75)
    assert crossing({0.0: 0.9, 0.5: 0.8, 1.0: 0.7}) == 0.0
    assert crossing({0.0: 5.0, 1.0: 1.01}) is None


def test_a_faster_small_model_breaks_even_at_a_lower_share() -> None:
    pair = find_pair(GPUS, "qwen3-32b")
    slow, fast = (break_even(pair, SHIPPED, speed, 1, SHORT, 4) for speed in (1.5, 6.0))
    assert list(slow) == list(SHARES)
    least = crossing(fast)
    assert least is not None
    of_slow = crossing(slow)
    assert of_slow is None or least < of_slow


def test_the_commands_write_figures_and_a_plot(tmp_path: Path) -> None:
    output = tmp_path / "grid.json"
    few = [
        "--users",
        "1,2",
        "--steps",
        "3",
        "--tokens",
        "10",
        "--problems",
        "2",
        "--output",
        str(output),
    ]
    result = CliRunner().invoke(app, ["grid", "--accepted", "0.8", *few])
    assert result.exit_code == 0, result.output
    written = orjson.loads(output.read_bytes())
    assert "simulated" in written["note"]
    assert [(cell["name"], cell["users"]) for cell in written["cells"]] == [
        (name, users) for name in ("large alone", "specreason") for users in (1, 2)
    ]
    assert ElementTree.parse(output.with_suffix(".svg")).getroot().tag.endswith("}svg")
    result = CliRunner().invoke(app, ["break-even", "--speed", "4", *few])
    assert result.exit_code == 0, result.output
    assert [cell["speed"] for cell in orjson.loads(output.read_bytes())["cells"]] == [4.0, 4.0]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--users", "1.5"], "numbers with commas"),
        (["--users", "0"], "above 0"),
        (["--accepted", "much"], "numbers with commas"),
        (["--accepted", "1.2"], "from 0 to 1"),
        (["--pair", "unknown"], "there is no pair"),
    ],
)
def test_wrong_flags_are_refused(flags: list[str], why: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["grid", *flags, "--output", str(tmp_path / "grid.json")])
    assert isinstance(result.exception, ConfigurationError)
    assert why in str(result.exception)
