"""The simulation beside the seconds of a real GPU."""

from __future__ import annotations

import asyncio

import pytest

from lab.simulation.costs import ServerCosts
from lab.simulation.grid import GPUS, find_pair
from lab.simulation.measured import H200, TOTAL, lengths, rows, seconds
from lab.simulation.server import Card, Request, SimulatedServer
from lab.virtual_clock import run
from stepspec.evals.arms import SHIPPED
from stepspec.evals.sample import Arm

ONE = "qwen3-32b-h200"
TWO = "qwen3-32b-two-h200"


def test_the_simulation_is_within_a_tenth_of_what_was_measured() -> None:
    for row in rows([("specreason", SHIPPED)], ONE):
        assert row["ratio"] == pytest.approx(row["measured ratio"], rel=0.1)


def test_the_script_is_that_which_was_measured() -> None:
    assert sum(lengths()) == TOTAL
    assert lengths()[:3] == [28, 68, 67]


def test_servers_of_one_card_slow_each_other_by_what_they_do() -> None:
    card = Card()
    large = SimulatedServer(
        ServerCosts(2.0, per_prompt_token=1.0, beside=1.5, reading_beside=2.0), card
    )
    small = SimulatedServer(ServerCosts(1.0, beside=3.0, beside_reading=10.0), card)

    async def work() -> list[float]:
        loop = asyncio.get_running_loop()
        alone = Request("a", 1, 2)
        small.submit(alone)
        await small.reach(alone, 2)
        times = [loop.time()]
        beside = Request("b", 1, 1)
        large.submit(Request("c", 4, 3))
        await asyncio.sleep(0.5)  # the large one reads its prompt: 2 + 4 s
        small.submit(beside)
        await small.reach(beside, 1)
        times.append(loop.time() - times[0])
        return times

    alone, beside = run(work())[0]
    assert alone == 2.0
    assert beside == 0.5 + 10.0


@pytest.mark.parametrize(("pair", "gain"), [(TWO, True), (ONE, False)])
def test_a_hedge_from_the_start_gains_where_the_large_model_has_its_own_card(
    pair: str, gain: bool
) -> None:
    known = find_pair(GPUS, pair)
    hedged = Arm.of("hedged", "specreason", hedge=1.0)
    times = [seconds(known, arm, H200[1]) for arm in (SHIPPED, hedged)]
    assert (times[1] < 0.92 * times[0]) == gain
