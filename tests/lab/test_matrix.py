"""The matrix of worlds, judges and loads: its conditions, its tables, and its command."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from lab import load as load_module
from lab.arms import AUTO, BILD, REFLECTIVE
from lab.crowd import TWO_LARGE, Deployment, Timing
from lab.matrix import ARMS, main, tasks
from lab.matrix_tables import (
    Condition,
    Measured,
    arms_under,
    auto_rows,
    auto_sheet,
    conditions,
    method_rows,
    method_sheet,
    verdict,
)
from stepspec.evals.arms import LARGE, SHIPPED
from stepspec.evals.sample import Arm, Sample
from stepspec.orchestrator.errors import ConfigurationError

from ..evals.scripted import solution
from .test_load import PacedSolver


def test_large_alone_on_two_servers_and_reflective_verification_have_their_places() -> None:
    def names(judge: str, at_once: int) -> set[str]:
        return {arm.name for arm in arms_under(Condition("long", judge, at_once), ARMS)}

    usual = {LARGE.name, *(arm.name for arm in ARMS)}
    assert names("large", 1) == names("judge-75", 1) == usual
    assert names("large", 4) == usual | {TWO_LARGE.name}
    assert names("judge-75", 4) == usual - {REFLECTIVE.name}


@pytest.mark.parametrize(
    ("worlds", "judges", "loads", "complaint"),
    [
        (("wide",), (), (1,), "no world 'wide'"),
        (
            ("short",),
            ("judge-75",),
            (1,),
            "the world 'short' has no judge 'judge-75'; it has: large",
        ),
        (("long", "short"), ("judge-7",), (1,), "no judge 'judge-7'"),
        (("long",), (), (), "no condition"),
    ],
)
def test_what_there_is_not_is_named(
    worlds: Sequence[str], judges: Sequence[str], loads: Sequence[int], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        conditions(worlds, judges, loads)


def test_a_judge_of_one_world_leaves_the_others_out() -> None:
    assert conditions(("long", "short"), ("judge-90",), (4,)) == [Condition("long", "judge-90", 4)]


def timings(arm: Arm, seconds: float, n: int, wrong: int = 0, large: int = 10) -> list[Timing]:
    made = solution("7", seconds=seconds, large=large)

    def timing(correct: bool) -> Timing:
        sample = Sample(arm.name, correct, seconds, made.ledger, {"large": 0.03})
        return Timing(seconds, 0.5, seconds, 40, correct, sample=sample)

    return [timing(number >= wrong) for number in range(n)]


def by_arm(n: int, seconds: Mapping[str, float], wrong: int = 0) -> dict[str, list[Timing]]:
    arms = {arm.name: arm for arm in (LARGE, TWO_LARGE, *ARMS)}
    return {
        name: timings(arms[name], each, n, wrong if name == BILD.name else 0)
        for name, each in seconds.items()
    }


ALONE = Condition("long", "large", 1)
FOUR = Condition("long", "large", 4)
TIMES = {LARGE.name: 4.0, SHIPPED.name: 2.0, BILD.name: 1.0, REFLECTIVE.name: 3.0, AUTO.name: 1.02}
UNDER_LOAD = {
    LARGE.name: 4.0,
    TWO_LARGE.name: 3.0,
    SHIPPED.name: 6.0,
    BILD.name: 5.0,
    AUTO.name: 4.4,
}
MEASURED: Measured = {ALONE: by_arm(2, TIMES), FOUR: by_arm(4, UNDER_LOAD)}


def test_auto_is_compared_with_the_better_of_large_alone_and_the_best_fixed_method() -> None:
    alone, four = auto_rows(MEASURED)
    assert (alone.better, alone.auto_to_better.value, alone.above) == (BILD.name, 1.02, False)
    assert (four.better, four.above) == (LARGE.name, True)
    assert four.auto_to_large.value == pytest.approx(1.1)
    assert verdict([alone]) == "auto is within 1.05 under 1 of 1 conditions"
    assert verdict([alone, four]).endswith(
        "1 of 2 conditions; above: long, large, 4 at once (1.10)"
    )
    assert "above 1.05" in auto_sheet([alone, four]).markdown().splitlines()[-1]


def test_a_method_that_loses_problems_is_not_the_better_one() -> None:
    careless: Measured = {ALONE: by_arm(2, TIMES, wrong=1), FOUR: by_arm(4, UNDER_LOAD)}
    assert auto_rows(careless)[0].better == SHIPPED.name
    rows = {row.name: row for row in method_rows(careless)}
    assert rows[BILD.name].lost == pytest.approx(1 / 6)


def test_methods_are_summed_over_loads_and_timed_one_at_a_time() -> None:
    rows = {row.name: row for row in method_rows(MEASURED)}
    ours = rows[SHIPPED.name]
    assert (ours.n, ours.accuracy.value, ours.alone) == (6, 1.0, 2)
    assert ours.to_large is not None
    assert (ours.to_large.value, ours.accepted) == (0.5, 0.8)
    assert rows[REFLECTIVE.name].n == 2
    assert rows[TWO_LARGE.name].to_large is None
    lines = method_sheet(list(rows.values())).markdown().splitlines()
    assert (
        lines[4]
        == "| long | large | large alone | 6 | 100% [61%, 100%] |  | 1.00 [1.00, 1.00] | 2 | 80% |"
    )


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> tuple[PacedSolver, list[tuple[str, str, bool]]]:
    """A scripted solver in the place of the miniature pairs, and what was started."""
    solver = PacedSolver(lambda policy, problem: 0.004)
    started = list[tuple[str, str, bool]]()

    @asynccontextmanager
    async def miniature(
        profile: str, world: str, judge: str, *, two: bool, console: Console
    ) -> AsyncGenerator[Deployment]:
        started.append((world, judge, two))
        yield Deployment(solver.solver, solver.solver if two else None)

    monkeypatch.setattr(load_module, "miniature_deployment", miniature)
    return solver, started


def test_the_command_writes_its_figures_and_resumes(
    deployed: tuple[PacedSolver, list[tuple[str, str, bool]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    solver, started = deployed
    output = tmp_path / "matrix.json"
    options: dict[str, Any] = {"world": ["short"], "concurrency": "1,4", "output": output}
    main(**options, as_markdown=True)
    figures = orjson.loads(output.read_bytes())
    assert [(each["world"], each["judge"], each["concurrency"]) for each in figures["loads"]] == [
        ("short", "large", 1),
        ("short", "large", 4),
    ]
    names = [LARGE.name, TWO_LARGE.name, *(arm.name for arm in ARMS)]
    assert [cell["name"] for cell in figures["loads"][1]["cells"]] == names
    assert {row["name"] for row in figures["methods"]} == {*names}
    assert [row["condition"]["concurrency"] for row in figures["auto"]] == [1, 4]
    assert started == [("short", "large", True)]
    printed = capsys.readouterr().out
    assert "| short | large | BiLD, steps | 16 |" in printed
    assert "auto is within 1.05 under" in printed
    path = tmp_path / "matrix.short-large.blocks.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    solver.solved.clear()
    main(**options)
    assert len({problem for problem in solver.solved if problem}) >= 8
    main(**options)
    assert len(started) == 2  # a third start would have nothing to measure
    with pytest.raises(ConfigurationError, match="other: profile"):
        main(**options, profile="slow")


def test_the_rounds_of_every_judge_have_the_same_problems() -> None:
    first = tasks(Condition("long", "large", 4), 1)
    assert len(first) == 4
    assert tasks(Condition("long", "judge-75", 4), 1) == first
    assert tasks(Condition("long", "judge-75", 4), 2)[0] not in first
    assert tasks(Condition("long", "large", 1), 0)[0] not in first
