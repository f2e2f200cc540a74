"""The bench of several workers: what it counts, and the table that it makes of its rounds."""

from __future__ import annotations

import io
import os

from rich.console import Console

from stepspec.evals.experiments.worker_scaling import DIRECT, Rate, Target, measure, show
from stepspec.evals.testbed.stand_in import StandIn


async def test_a_round_counts_all_requests_and_the_time_of_every_process() -> None:
    server = StandIn(names=("huge",), steps=2, step_tokens=4)
    async with server.listening() as url:
        rate = await measure(Target("pass-through", 2, f"{url}/v1", (os.getpid(), os.getpid())), 4, 30)
    assert rate.requests == 30
    assert rate.per_second == 30 / rate.seconds
    assert rate.busy == 2 * rate.parent
    assert server.running == 0


def test_the_table_has_the_ratio_of_paired_rounds() -> None:
    rounds = [
        Rate(kind, workers, 100, seconds, 2.0, 0.1)
        for kind, workers, seconds in ((DIRECT, 0, 0.1), ("specreason", 1, 1.0), ("specreason", 2, 0.5))
        for _ in range(3)
    ]
    printed = Console(file=io.StringIO(), width=120)
    show(printed, rounds, 16)
    assert isinstance(printed.file, io.StringIO)
    rows = [line.replace("│", " ").split() for line in printed.file.getvalue().splitlines()]
    assert ["specreason", "1", "100", "2.00"] in rows
    assert ["specreason", "2", "200", "2.00", "[2.00,", "2.00]", "2.00", "0.10"] in rows
    assert ["no", "service", "1000"] in rows
