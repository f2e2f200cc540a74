"""
The bench of the library's own cost: what it sends, and how its rounds become figures and verdicts.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from lab.chain_costs import MANY_STEPS, STEP_TOKENS, grown
from lab.overhead import (
    AT_64,
    BARE,
    CONTENDERS,
    LONG,
    OURS,
    SHORT,
    Cell,
    Round,
    growth,
    in_turn,
    measure,
    recorded,
    rows,
    verdicts,
)

from ..stand_in import StandIn

CPU = {OURS: 3.0, BARE: 2.0}


def rounds(scale: float = 1.0) -> list[Round]:
    """Two rounds; the first one was disturbed, for all contenders alike."""
    return [
        Round(
            number,
            cell,
            name,
            CPU.get(name, 30.0) * disturbed * (scale if cell == LONG else 1.0),
            400.0,
            0.25,
        )
        for number, disturbed in ((1, 5.0), (2, 1.0))
        for cell in (SHORT, AT_64, LONG)
        for name in in_turn(number)
    ]


def test_ratios_are_those_of_the_same_round() -> None:
    row = next(row for row in rows(rounds()) if row.cell == AT_64)
    assert (row.cpu_of_bare.value, row.cpu_of_bare.low, row.cpu_of_bare.high) == (1.5, 1.5, 1.5)
    assert (row.cpu_of_sdk.value, row.wall_of_bare.value, row.server) == (0.1, 1.0, 0.25)
    assert growth(rounds(1.25)).value == 1.25


@pytest.mark.parametrize(("scale", "met"), [(1.25, True), (1.5, False)])
def test_the_verdicts_compare_with_the_bars(scale: float, met: bool) -> None:
    at_64, longer = verdicts(rounds(scale))
    assert at_64[1] <= at_64[2]
    assert (longer[1] <= longer[2]) == met


async def test_the_floors_send_the_requests_of_a_run() -> None:
    requests = await recorded(grown(40, ""), 2)
    assert [path for path, _ in requests] == ["/v1/completions"] * 4
    assert [bool(body.get("stream")) for _, body in requests] == [True, False, True, False]
    assert len(requests[2][1]["prompt"]) - len(requests[0][1]["prompt"]) == STEP_TOKENS


async def test_every_contender_is_measured() -> None:
    cell = Cell(2, 40, 1)
    async with StandIn(steps=MANY_STEPS, step_tokens=STEP_TOKENS).listening() as base:
        measured = await measure(base, [cell], 1, Console(quiet=True))
    assert {each.contender for each in measured} == set(CONTENDERS)
    assert {(each.number, each.contender) for each in measured} == {
        (1, name) for name in CONTENDERS
    }
    assert all(each.cell == cell and min(each.cpu, each.wall) > 0 for each in measured)
