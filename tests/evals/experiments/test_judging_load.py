"""Every way to judge less sends what its name says; the figures come from real servers only."""

from __future__ import annotations

from statistics import fmean

import pytest

from stepspec.evals.experiments.judging_crossing import (
    GROUP,
    MOST,
    WAYS,
    crossing,
    crossings,
    even,
    judging,
    qwen3_reads,
    small_print,
    writing,
)
from stepspec.evals.experiments.judging_crossing import table as crossing_table
from stepspec.evals.experiments.judging_load import (
    Cell,
    Measured,
    Measurements,
    crossing_lines,
    main,
    measure_all,
    measured_crossing,
    paced,
    summarise,
    table,
)
from stepspec.evals.simulation.costs import ServerCosts
from stepspec.evals.testbed.stand_in import StandIn
from stepspec.orchestrator.endpoints import VllmEndpoint
from stepspec.orchestrator.errors import ConfigurationError

PAPER, SEVERAL, BILD = WAYS[0], WAYS[1], WAYS[-1]
BLOCK = 16  # tokens of the server's prefix cache


async def test_every_way_reads_the_steps_and_its_own_question_and_no_more() -> None:
    server = StandIn(block=BLOCK, scale_out=True)
    async with server.serve("large", suffix_scoring=True) as endpoint, VllmEndpoint(endpoint) as large:
        await large.capabilities()
        found = await measure_all(large, [1, 2], tokens=600, steps=2 * GROUP, repeats=1)
    assert [(one.way, one.at_once, one.steps) for one in found.ways[: len(WAYS)]] == [
        (way.name, 1, 2 * GROUP) for way in WAYS
    ]
    assert {load: len(paces) for load, paces in found.writing.items()} == {1: 1, 2: 1}
    read = {one.way: one for one in found.ways if one.at_once == 2}
    # A verdict reads, besides the steps, a question; and up to a block of the cache again. A score reads the whole
    # chain where the cache ends with it, now and then.
    paper, several, bild = (read[way.name].read for way in WAYS)
    assert found.tokens < bild
    assert bild < several < paper
    for one in read.values():
        assert one.first > 600  # nothing is cached
        # Nothing that a verdict has read is read again before a repair, also where the question stands before it.
        assert one.repair <= (GROUP + 1) * found.tokens + BLOCK


def test_writing_and_judging_cost_what_their_passes_cost() -> None:
    costs = ServerCosts(0.02, 0.0002, 0.0001, tokens=1000)
    assert writing(costs, 40, 1) == pytest.approx(40 * 0.0202)
    assert writing(costs, 40, 10) == pytest.approx(40 * (0.02 + 10 * 0.0002) / 10)
    assert judging(costs, 100, 1, 1) == pytest.approx(0.02 + 0.01)
    assert judging(costs, 100, 1, 10) == pytest.approx((0.02 + 0.1) / 10)
    assert judging(costs, 100, 1, 11) == pytest.approx((2 * 0.02 + 0.11) / 11)  # two passes, of 1000 tokens at the most
    assert judging(costs, 50, 4, 1) == pytest.approx((0.02 + 0.02) / 4)
    assert writing(ServerCosts(0.02, written=2.5), 40, 1) == pytest.approx(writing(ServerCosts(0.02), 16, 1))


def test_the_curves_cross_where_judging_takes_as_long_as_writing() -> None:
    costs = even(0.02, 0.000165)
    found = crossing(PAPER, costs, 40, 109)
    assert found.at_once is not None
    assert judging(costs, 109, 1, found.at_once) >= writing(costs, 40, found.at_once)
    assert judging(costs, 109, 1, found.at_once - 1) < writing(costs, 40, found.at_once - 1)
    # By hand: (s - 1) F = n (r - s) p.
    assert found.at_once == int(39 * 0.02 / (69 * 0.000165)) + 1
    assert found.at_80 is not None
    assert found.at_80 < found.at_once
    assert found.limit == pytest.approx(109 / 40)


def test_reading_the_steps_alone_never_takes_as_long_as_writing_them() -> None:
    found = crossing(BILD, even(0.02, 0.000165), 40, 40)
    assert (found.at_once, found.limit) == (None, 1.0)
    assert crossing(BILD, ServerCosts(0.02, sequences=MOST), 40, 40).limit is None


def test_who_reads_less_crosses_later() -> None:
    reads = qwen3_reads(40)
    found = crossings(even(0.02, 0.000165), 40, reads)
    assert [one.read for one in found] == [reads[way.name] for way in WAYS]
    assert (reads[PAPER.name], reads[SEVERAL.name], reads[BILD.name]) == (109, 61.75, 40)
    by_reads = [one.at_once or MOST + 1 for one in sorted(found, key=lambda one: one.read)]
    assert by_reads == sorted(by_reads, reverse=True)
    assert crossing_table(found).row_count == len(WAYS)
    assert "20 ms a pass and 165 us a token" in small_print(even(0.02, 0.000165), 40)


def test_medians_are_compared_with_writing_at_the_same_load() -> None:
    ways = [Measured(PAPER.name, 4, 8, seconds, 100, 700, 20) for seconds in (0.03, 0.01, 0.02)]
    measured = Measurements(ways, {4: [0.002, 0.001, 0.003]}, tokens=20)
    (found,) = summarise(measured, even(0.02, 0.0001), [PAPER])
    assert (found.n, found.seconds, found.least, found.most) == (3, 0.02, 0.01, 0.03)
    assert found.of_writing == pytest.approx(0.02 / (20 * 0.002))
    assert found.expected == pytest.approx(fmean([(0.02 + 0.04) / 4]) / (20 * (0.02 + 0.0004) / 4))
    assert table([found], measured).row_count == 2


def cell(at_once: int, of_writing: float, way: str = "one") -> Cell:
    return Cell(way, at_once, 1, 0.1, 0.1, 0.1, 100, 700, 20, of_writing, None)


@pytest.mark.parametrize(
    ("ratios", "load"),
    [
        ({1: 0.25, 4: 0.5, 16: 1.5}, 8),  # halfway, in factors
        ({1: 0.25, 4: 1.0}, 4),
        ({1: 1.0, 4: 2.0}, 1),
        ({1: 0.25, 4: 0.5}, None),
    ],
)
def test_the_measured_curves_cross_between_the_loads_on_both_sides(ratios: dict[int, float], load: int | None) -> None:
    assert measured_crossing([cell(*ratio) for ratio in ratios.items()]) == (load and pytest.approx(load))


def test_every_way_has_a_line_about_where_the_measured_curves_cross() -> None:
    cells = [cell(1, 0.5), cell(1, 0.5, "two"), cell(4, 2.0), cell(4, 0.9, "two")]
    assert [*crossing_lines(cells)] == ["one: as much as writing from 2 at once", "two: less up to 4 at once"]


def test_the_costs_are_those_of_the_profile() -> None:
    assert paced("off") is None
    costs = paced("paced")
    assert costs is not None
    assert (costs.per_pass, costs.per_sequence, costs.per_prompt_token) == (0.03, 0.00006, 0.00006)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_pass": 0.02}, "belong together"),
        ({"users": "1,two"}, "numbers with commas"),
        ({"users": "0,4"}, "1 is the least"),
        ({"steps": 6}, "multiple of 4"),
    ],
)
def test_wrong_options_are_refused_before_a_server_starts(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        main(**{"users": "1", "steps": 8, **options})  # type: ignore[arg-type]


def test_a_calculation_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    main(per_pass=0.02, per_token=0.000165, step=40)
    assert "as in the paper          109         69     49         2.73" in capsys.readouterr().out
